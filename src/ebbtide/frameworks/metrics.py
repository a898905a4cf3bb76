"""Select a trial's metrics from the values that frameworks log."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

from ebbtide.trial import RESERVED

# Kinds of NumPy's types: booleans, signed and unsigned integers, floats.
_NUMBERS = "biuf"


def reportable(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the single numbers among logged values, by name, with `_` for `/`.

    Names of counters, such as `step`, are left out: the trial counts steps itself.
    """
    named = {str(name).replace("/", "_"): value for name, value in values.items()}
    return {name: value for name, value in named.items() if name not in RESERVED and _is_number(value)}


def _is_number(value: Any) -> bool:
    if isinstance(value, numbers.Real):
        return True
    size = getattr(value, "numel", None)
    if callable(size):
        return bool(size() == 1 and not value.is_complex())
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    return kind in _NUMBERS and bool(kind) and getattr(value, "size", 0) == 1
