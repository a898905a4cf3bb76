"""Recorded availability of single zones, tick by tick."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ebbtide._utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.price_series import Floats
from ebbtide.market.sources.parquet import load_parquet


class TooShort(InputError):
    """A table of availability in which no record is long enough."""


@dataclass(frozen=True)
class ZoneRecord:
    """Recorded availability of one machine in one zone.

    Attributes:
        name: Zone, device and day of its begin.
        available: Whether a machine was available at each tick, shape (ticks,).
        gap_s: Time between two ticks, seconds.
    """

    name: str
    available: np.ndarray
    gap_s: float

    @property
    def hours(self) -> float:
        """Length of the record in hours."""
        return len(self.available) * self.gap_s / HOUR_S

    def ages_s(self) -> Floats:
        """Age of the spell at each tick, seconds, shape (ticks,); that of the first is since the record began."""
        ticks = np.arange(len(self.available))
        changed = np.concatenate([[0], np.flatnonzero(np.diff(self.available)) + 1])
        since: Floats = (ticks - changed[np.searchsorted(changed, ticks, side="right") - 1]) * self.gap_s
        return since


def read_records(path: Path, at_least_h: float) -> list[ZoneRecord]:
    """Single-node availability of every zone whose record is longer than `at_least_h` hours.

    Raises:
        InputError: The file is not such a table.
        TooShort: No record is long enough.
    """
    try:
        table = load_parquet(path)
        table = table[(table["kind"] == "availability") & (table["nodes"] == 1)]
        records = [
            ZoneRecord(
                f"{row.zone} {row.device}x{row.device_count} {row.start:%Y-%m-%d}",
                np.asarray(row.data) >= 1,
                float(gap_s),
            )
            for row, gap_s in zip(table.itertuples(), table["gap_seconds"], strict=True)
        ]
    except InputError:
        raise
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"is no table of availability: {error}", file=path) from None
    found = [record for record in records if record.hours > at_least_h]
    if not found:
        raise TooShort(f"has no single-node record longer than {at_least_h:g} h", file=path)
    return found
