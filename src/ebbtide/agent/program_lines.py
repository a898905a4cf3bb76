"""Checks of the numbers in lines of JSON that a program prints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ebbtide.agent.protocol import MOST_STEPS

# Names of numbers in a program's lines that belong to Ebbtide's protocol and are no results.
_OURS = frozenset({"step", "started", "saved", "finished", "left", "save_s", "step_s", "api", "epoch"})
_MOST_FIELDS, _MOST_OF_NAME = 50, 80


@dataclass
class Heard:
    """Names of the numbers that a program has reported.

    Attributes:
        names: Names that are not part of Ebbtide's protocol.
    """

    names: set[str] = field(default_factory=set)

    def new_names(self, line: Mapping[str, Any]) -> tuple[str, ...]:
        """Return names that were not reported before, which may explain a misspelt metric."""
        # JSON has no NaN, so Ebbtide's own lines list the names of numbers that are not finite.
        strange = line.get("not_finite")
        reported = {
            *(
                name
                for name, value in line.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            ),
            *(name for name in (strange if isinstance(strange, list) else ()) if isinstance(name, str)),
        }
        new = {name[:_MOST_OF_NAME] for name in reported - _OURS} - self.names
        if not new or len(self.names) >= _MOST_FIELDS:
            return ()
        self.names |= new
        return tuple(sorted(new)[:_MOST_FIELDS])


def step_of(value: object) -> int | None:
    """A step as a program prints it; None: it is no valid step."""
    return value if type(value) is int and 0 <= value <= MOST_STEPS else None


def number_of(value: object) -> float:
    """A number as a program prints it; NaN: it is no number. Numbers too large for a float become infinite."""
    if not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def metric_of(line: Mapping[str, Any], name: str) -> float:
    """The value of a metric in a program's line; NaN: it has none; infinity: one that is not finite."""
    strange = line.get("not_finite")
    if isinstance(strange, list) and name in strange:
        return math.inf
    value = number_of(line.get(name))
    is_number = isinstance(line.get(name), int | float)
    return value if math.isfinite(value) or not is_number else math.inf


def is_duration(seconds: float) -> bool:
    """Return whether a number of seconds can be a duration: finite and not negative."""
    return 0.0 <= seconds < math.inf


def plain_value(value: object) -> Any:
    """A value, as a number if a tool wrote it as text."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def is_count(value: object) -> bool:
    """Tell whether a value can be a count: a number that is finite and not negative."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
