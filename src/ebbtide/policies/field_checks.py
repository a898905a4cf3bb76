"""Ranges of a policy's fields, checked as it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ebbtide.errors import InputError


def check_fields(
    policy: Any,
    *,
    positive: Sequence[str] = (),
    not_negative: Sequence[str] = (),
    shares: Sequence[str] = (),
    between: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> None:
    """Raise `InputError` for the first field that is out of range, or no number at all.

    Args:
        policy: The policy.
        positive: Names of fields above 0.
        not_negative: Names of fields of 0 or more.
        shares: Names of fields above 0, and 1 at most.
        between: The least and the largest value of a field, by its name.
    """
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
