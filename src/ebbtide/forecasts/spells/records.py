"""Recorded availability: of single zones tick by tick, and of several zones at once with their prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ebbtide._utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.markets import Market, Place
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


_PROBES = {"timestamp", "cloud", "region", "zone", "instance_type", "interval_seconds", "gpu_type"}
_LISTED = {"as_of", "cloud", "region", "accelerator", "accelerator_count", "spot_usd_per_hour"}
_PRICES = {"timestamp", "zone", "instance_type", "price_usd_per_hour"}

# On-demand prices, USD per accelerator-hour, that no table here has: GCP a3-highgpu-8g, 82.53 USD for eight, from
# the metadata of the published traces (SkyNomad's artifact, data/README.md).
_ON_DEMAND_USD = {"h100": 82.53 / 8.0}


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
        )

    def times_s(self) -> Floats:
        """Times of the ticks, seconds since 1970, shape (ticks,)."""
        found: Floats = self.begins_s + np.arange(self.ticks, dtype=np.float64) * self.tick_s
        return found


@dataclass(frozen=True)
class LeftOut:
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
    if {"available"} | _PROBES <= columns:
        return "probes"
    if {"launched", "requested"} | _PROBES <= columns:
        return "rounds"
    if columns >= _LISTED:
        return "catalogue"
    return "prices" if columns >= _PRICES else "other"


def read_probed_zones(
    path: Path, prices: Sequence[Path], longest_gap_s: float = 3600.0, left_out: list[LeftOut] | None = None
) -> list[ZoneRecords]:
    """Zones with prices that were probed together for one instance type.

    Args:
        path: The table of probes, a Parquet file.
        prices: Tables of spot prices, Parquet files.
        longest_gap_s: Longest time between two probes, seconds; sets of zones with a longer one are left out.
        left_out: List to which data that cannot be studied are added.

    Raises:
        InputError: The file is not a table of probes.
    """
    reasons = [] if left_out is None else left_out
    frame = _read(path, {"available"} | _PROBES)
    moved = _prices(prices)
    found = []
    for (kind, _), rows in frame.groupby(["instance_type", "interval_seconds"], observed=True):
        near = moved["timestamp"].between(rows["timestamp"].min() - pd.Timedelta(days=2), rows["timestamp"].max())
        priced = moved[near & (moved["instance_type"] == kind)]
        wide = rows.pivot_table(index="timestamp", columns="zone", values="available", aggfunc="last")
        unpriced = tuple(str(zone) for zone in wide.columns if zone not in set(priced["zone"]))
        wide = wide.drop(columns=list(unpriced)).dropna()
        accelerator = _accelerator(rows)
        if len(wide.columns) < 2:
            why = f"spot prices for its days are there for {len(wide.columns)} zones of {kind}; 2 are needed"
            reasons.append(LeftOut(accelerator, f"{path.name}: {why}"))
            continue
        # A price before its first recorded change or after the last one is unknown.
        firsts = priced[priced["zone"].isin(wide.columns)].groupby("zone", observed=True)["timestamp"].min()
        wide = wide[(wide.index >= firsts.max()) & (wide.index <= priced["timestamp"].max())]
        if len(wide) < 2 or _has_gap(wide.index, longest_gap_s):
            gap = f"a gap of more than {longest_gap_s / 3600.0:g} h" if len(wide) > 1 else "no probe of all zones"
            reasons.append(LeftOut(accelerator, f"{path.name}: {kind} has {gap} while its prices are known"))
            continue
        table = priced.pivot_table(index="timestamp", columns="zone", values="price_usd_per_hour", aggfunc="last")
        table = table.reindex(table.index.union(wide.index)).ffill().reindex(wide.index)[wide.columns]
        places = _places(rows, wide.columns)
        market = Market(places[0].cloud, places[0].region, str(wide.columns[0]), str(kind))
        listed = default_catalogue().on_demand_usd_per_hour(market, _first_s(wide))
        if listed is None:
            reasons.append(LeftOut(accelerator, f"{path.name}: no on-demand price is known for {market}"))
            continue
        found.append(
            ZoneRecords(
                f"{kind} {wide.index[0]:%Y-%m-%d}",
                _accelerator(rows),
                tuple(map(str, wide.columns)),
                places,
                1,
                wide.to_numpy().T >= 1,
                table.to_numpy().T.copy(),
                listed,
                _tick_s(rows),
                _first_s(wide),
                unpriced,
            )
        )
    return found


def read_capacity_rounds(
    path: Path, catalogues: Sequence[Path], left_out: list[LeftOut] | None = None
) -> list[tuple[ZoneRecords, ZoneRecords]]:
    """Zones whose capacity was requested in rounds: two records, available with any machine granted and with all.

    A machine costs what the newest table lists for its accelerator in its region; both records cost all machines.

    Args:
        path: The table of rounds, a Parquet file.
        catalogues: Tables of list prices, Parquet files.
        left_out: List to which data that cannot be studied are added; if None, they are an error.

    Raises:
        InputError: The file is not a table of rounds; or, without `left_out`, fewer than two zones have a price.
    """
    frame = _read(path, {"launched", "requested"} | _PROBES)
    listed = _listed(catalogues)
    found = []
    for kind, rows in frame.groupby("instance_type", observed=True):
        wide = rows.pivot_table(index="timestamp", columns="zone", values="launched", aggfunc="last").dropna()
        accelerator = _accelerator(rows)
        machines = int(rows["requested"].max())
        each = int(rows["gpus_per_instance"].iloc[0]) if "gpus_per_instance" in rows else 1
        where = dict(zip(wide.columns, _places(rows, wide.columns), strict=True))
        priced = {
            zone: listed[place.cloud, place.region, accelerator] * machines * each
            for zone, place in where.items()
            if (place.cloud, place.region, accelerator) in listed
        }
        problem = None
        if len(priced) < 2:
            problem = f"spot prices of {accelerator} are listed for {len(priced)} of its zones"
        elif accelerator not in _ON_DEMAND_USD:
            problem = f"no on-demand price is known for {accelerator}"
        if problem is not None:
            if left_out is None:
                raise InputError(problem, file=path)
            left_out += [LeftOut(accelerator, f"{path.name}: {problem}", gang) for gang in (False, True)]
            continue
        unpriced = tuple(str(zone) for zone in wide.columns if zone not in priced)
        wide, usd = wide[list(priced)], list(priced.values())
        places = tuple(where[zone] for zone in priced)
        one = ZoneRecords(
            f"{machines} x {kind} {wide.index[0]:%Y-%m-%d}, any",
            accelerator,
            tuple(map(str, wide.columns)),
            places,
            machines,
            wide.to_numpy().T >= 1,
            np.repeat(np.array(usd)[:, None], len(wide), axis=1),
            _ON_DEMAND_USD[accelerator] * machines * each,
            _tick_s(rows),
            _first_s(wide),
            unpriced,
        )
        whole = replace(one, name=one.name.replace("any", "all"), available=machines <= wide.to_numpy().T)
        found.append((one, whole))
    return found


def _read(path: Path, columns: set[str]) -> pd.DataFrame:
    frame = load_parquet(path)
    missing = sorted(columns - set(frame.columns))
    if missing:
        raise InputError(f"has no column {missing[0]!r}; needs {', '.join(sorted(columns))}", file=path)
    return frame


def _prices(paths: Sequence[Path]) -> pd.DataFrame:
    frames = [_read(path, _PRICES)[sorted(_PRICES)] for path in paths]
    return pd.concat(frames) if frames else pd.DataFrame(columns=sorted(_PRICES))


def _listed(paths: Sequence[Path]) -> dict[tuple[str, str, str], float]:
    """Spot price per accelerator-hour, by cloud, region and accelerator in lower case, from the newest row."""
    found = {}
    for path in paths:
        frame = _read(path, _LISTED).sort_values("as_of", kind="stable")
        frame = frame[frame["spot_usd_per_hour"].notna() & (frame["accelerator_count"] > 0)]
        for row in frame.to_dict("records"):
            name = str(row["accelerator"]).lower().split()[-1]
            each = float(row["spot_usd_per_hour"]) / int(row["accelerator_count"])
            found[str(row["cloud"]), str(row["region"]), name] = each
    return found


def _tick_s(rows: pd.DataFrame) -> float:
    return float(rows["interval_seconds"].iloc[0])


def _first_s(wide: pd.DataFrame) -> float:
    """Time of the first tick, seconds since 1970."""
    return float(pd.Timestamp(wide.index.min()).timestamp())


def _accelerator(rows: pd.DataFrame) -> str:
    return str(rows["gpu_type"].iloc[0]).lower()


def _has_gap(times: pd.Index, longest_s: float) -> bool:
    return bool(np.diff(times.to_numpy()).max() > np.timedelta64(int(longest_s), "s"))


def _places(rows: pd.DataFrame, zones: pd.Index) -> tuple[Place, ...]:
    where = rows.drop_duplicates("zone").set_index("zone")
    return tuple(Place(str(where.at[zone, "cloud"]), str(where.at[zone, "region"])) for zone in zones)
