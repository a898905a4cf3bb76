"""Places on the grids of the programs, in compiled code: bins of age, and values between steps of slack."""

from __future__ import annotations

from typing import Any

from ebbtide._compiling import inner


@inner
def age_bin(bins_s: Any, age_s: float) -> int:
    """The bin that an age lies in."""
    place = 0
    while place + 1 < len(bins_s) and bins_s[place + 1] <= age_s:
        place += 1
    return place


@inner
def between(values: Any, place: float) -> Any:
    """Values at a place between whole ones; beyond the ends as at them."""
    if place <= 0.0:
        return values[0]
    low = int(place)
    if low >= len(values) - 1:
        return values[len(values) - 1]
    share = place - low
    return (1.0 - share) * values[low] + share * values[low + 1]
