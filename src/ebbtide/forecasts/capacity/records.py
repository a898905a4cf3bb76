"""Recorded availability: of single zones tick by tick, and of several zones at once with their prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.markets import Place
from ebbtide.market.price_series import Floats
from ebbtide.market.sources.parquet import load_parquet, parquet_columns


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


PROBES = {"timestamp", "cloud", "region", "zone", "instance_type", "interval_seconds", "gpu_type"}
LISTED = {"as_of", "cloud", "region", "accelerator", "accelerator_count", "spot_usd_per_hour"}
PRICES = {"timestamp", "zone", "instance_type", "price_usd_per_hour"}


@dataclass(frozen=True)
class ZoneRecords:
    """Availability and price in several zones over the same ticks.

    Attributes:
        name: Name of the set of zones.
        accelerator: Accelerator of the machines, in lower case: `v100`.
        zones: Names of the zones, shape (zones,).
        places: Cloud and region of each zone, shape (zones,).
        machines: Machines that one job needs at a time.
        available: Whether that many machines were available, shape (zones, ticks).
        spot_usd: Spot price of all machines together, USD per hour, shape (zones, ticks).
        on_demand_usd: On-demand price of all machines together, USD per hour.
        tick_s: Time between two ticks, seconds.
        begins_s: Time of the first tick, seconds since 1970.
        unpriced: Names of zones that were probed but have no price.
        reading: How its prices were read, where a set is read in two ways: empty, or `real_prices`.
        counts: Number of machines that were available, shape (zones, ticks); None: not known.
        speed: Speed of each zone's machines against that of all that a job needs; empty: they are all.
    """

    name: str
    accelerator: str
    zones: tuple[str, ...]
    places: tuple[Place, ...]
    machines: int
    available: np.ndarray
    spot_usd: Floats
    on_demand_usd: float
    tick_s: float
    begins_s: float
    unpriced: tuple[str, ...] = ()
    reading: str = ""
    counts: np.ndarray | None = None
    speed: tuple[float, ...] = ()

    @property
    def ticks(self) -> int:
        """Number of ticks in the record."""
        return int(self.available.shape[1])

    def alone(self, zone: int) -> ZoneRecords:
        """The record of one zone, by index."""
        return replace(
            self,
            name=self.zones[zone],
            zones=self.zones[zone : zone + 1],
            places=self.places[zone : zone + 1],
            available=self.available[zone : zone + 1],
            spot_usd=self.spot_usd[zone : zone + 1],
            counts=None if self.counts is None else self.counts[zone : zone + 1],
            speed=self.speed[zone : zone + 1],
        )

    def in_parts(self, sizes: Sequence[int]) -> ZoneRecords:
        """The records of some of each zone's machines, as zones of their own: for a job that works on any number.

        Args:
            sizes: Numbers of machines. On some of them the job is as much slower as they are fewer.

        Raises:
            InputError: It is not known how many machines there were.
        """
        if self.counts is None:
            raise InputError(f"{self.name}: it is not known how many machines there were")
        zones = [(zone, size) for zone in range(len(self.zones)) for size in sizes]
        of_all = [zone for zone, _ in zones]
        numbers = np.array([size for _, size in zones])
        shares = numbers / self.machines
        return replace(
            self,
            zones=tuple(f"{size} x {self.zones[zone]}" for zone, size in zones),
            places=tuple(self.places[zone] for zone in of_all),
            available=self.counts[of_all] >= numbers[:, None],
            spot_usd=self.spot_usd[of_all] * shares[:, None],
            counts=self.counts[of_all],
            speed=tuple(shares.tolist()),
        )

    def times_s(self) -> Floats:
        """Times of the ticks, seconds since 1970, shape (ticks,)."""
        found: Floats = self.begins_s + np.arange(self.ticks, dtype=np.float64) * self.tick_s
        return found


@dataclass(frozen=True)
class UnusableData:
    """Data of a file that cannot be studied, with the reason.

    Attributes:
        accelerator: Accelerator of the machines of several zones; None for single zones.
        why: The reason, in words for the user.
        gang: Whether several machines at once are needed in each zone.
    """

    accelerator: str | None
    why: str
    gang: bool = False


def kind_of(path: Path) -> str:
    """The kind of a table, by its columns: `ticks`, `probes`, `rounds`, `catalogue`, `prices` or `other`."""
    columns = parquet_columns(path)
    if {"data", "gap_seconds", "start", "zone", "device"} <= columns:
        return "ticks"
    if {"available"} | PROBES <= columns:
        return "probes"
    if {"launched", "requested"} | PROBES <= columns:
        return "rounds"
    if columns >= LISTED:
        return "catalogue"
    return "prices" if columns >= PRICES else "other"
