"""Kinds and ranges of a policy's fields, checked as it is made."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from functools import cache
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from ebbtide.errors import InputError, unknown_name

_NEEDED = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


def check_fields(
    policy: Any,
    *,
    positive: Sequence[str] = (),
    not_negative: Sequence[str] = (),
    shares: Sequence[str] = (),
    finite: Sequence[str] = (),
    between: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> None:
    """Raise `InputError` for the first field that is out of range, or not of the kind that it is declared as.

    A field that is one of several words may be given as plain text; it is made that word.

    Args:
        policy: The policy.
        positive: Names of fields above 0.
        not_negative: Names of fields of 0 or more.
        shares: Names of fields above 0, and 1 at most.
        finite: Names of fields that cannot be infinite.
        between: The least and the largest value of a field, by its name.
    """
    _make_words(policy)
    for name, hint in _hints(type(policy)).items():  # type: ignore[arg-type]
        _check_kind(name, getattr(policy, name), hint)
    for name in (*between, *positive, *not_negative, *shares):
        # Of a field that may also be something else, such as None.
        if not is_number(getattr(policy, name)):
            raise InputError(f"is {getattr(policy, name)!r:.80}; a number is needed", field=name)
    for name in finite:
        if math.isinf(getattr(policy, name)):
            raise InputError(f"is {getattr(policy, name)}; it must be finite", field=name)
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


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    """The declared kinds of a policy's fields, those that cannot be found out left out."""
    try:
        found = get_type_hints(kind, vars(sys.modules[kind.__module__]))
    except (KeyError, NameError, TypeError):
        # A policy of a user's own may declare what it does not import.
        return {}
    return {each.name: found[each.name] for each in fields(kind) if each.name in found}


def is_number(value: Any) -> bool:
    """Return whether a value is a number; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_kind(name: str, value: Any, hint: Any) -> None:
    """Raise `InputError` if a value is not of a declared kind; kinds that nobody can check are not.

    What a sequence or a mapping holds is not looked at.
    """
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if not any(_is_of(value, option) for option in options):
        needed = " or ".join(_NEEDED.get(one) or _words(one) for one in options if one is not type(None))
        raise InputError(f"is {value!r:.80}; {needed} is needed", field=name)
    if float in options and is_number(value) and math.isnan(value):
        raise InputError("is nan; a number is needed", field=name)


def _is_of(value: Any, kind: Any) -> bool:
    if kind in (None, type(None)):
        return value is None
    if kind is bool:
        return isinstance(value, bool | np.bool_)
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind is float:
        return is_number(value)
    origin = get_origin(kind) or kind
    if not isinstance(origin, type) or origin is object:
        return True
    if getattr(origin, "_is_protocol", False):
        # Anything may have what a protocol asks for, but what is plain.
        return value is not None and not isinstance(value, str | bytes | Real)
    if issubclass(origin, Sequence) and not issubclass(origin, str | bytes) and isinstance(value, str | bytes):
        return False
    return isinstance(value, origin)


def _words(kind: Any) -> str:
    name = getattr(get_origin(kind) or kind, "__name__", str(kind))
    name = name.lower() if name in ("Mapping", "Sequence") else name
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
