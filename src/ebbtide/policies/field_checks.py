"""Ranges of a policy's fields, checked as it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from numbers import Real
from types import MappingProxyType
from typing import Any

from ebbtide.errors import InputError, unknown_name


def check_fields(
    policy: Any,
    *,
    positive: Sequence[str] = (),
    not_negative: Sequence[str] = (),
    shares: Sequence[str] = (),
    between: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> None:
    """Raise `InputError` for the first field that is out of range, or no number at all.

    A field that is one of several words may be given as plain text; it is made that word.

    Args:
        policy: The policy.
        positive: Names of fields above 0.
        not_negative: Names of fields of 0 or more.
        shares: Names of fields above 0, and 1 at most.
        between: The least and the largest value of a field, by its name.
    """
    _make_words(policy)
    for name in (*between, *positive, *not_negative, *shares):
        value = getattr(policy, name)
        if not isinstance(value, Real) or isinstance(value, bool):
            raise InputError(f"is {value!r:.80}; a number is needed", field=name)
    for name, (least, most) in between.items():
        if not least <= getattr(policy, name) <= most:
            raise InputError(f"is {getattr(policy, name)}; it must be from {least:g} to {most:g}", field=name)
    for name in positive:
        if not getattr(policy, name) > 0:
            raise InputError(f"is {getattr(policy, name)}; it must be positive", field=name)
    for name in not_negative:
        if not getattr(policy, name) >= 0:
            raise InputError(f"is {getattr(policy, name)}; it cannot be negative", field=name)
    for name in shares:
        if not 0 < getattr(policy, name) <= 1:
            raise InputError(f"is {getattr(policy, name)}; a share is needed, above 0 and 1 at most", field=name)


def _make_words(policy: Any) -> None:
    """Make plain text the word that it stands for: a comparison by `is` would not hold for it."""
    for each in fields(policy):
        if not isinstance(each.default, StrEnum):
            continue
        words, value = type(each.default), getattr(policy, each.name)
        if value not in list(words):
            raise InputError(unknown_name(each.name, str(value), words).problem, field=each.name)
        # The policy is being made: nobody has seen it yet.
        object.__setattr__(policy, each.name, words(value))
