"""Sets of zones that were probed together, with the prices of these days: their records over the same ticks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.records import LISTED, PRICES, PROBES, UnusableData, ZoneRecords
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.markets import Market, Place
from ebbtide.market.price_series import Floats
from ebbtide.market.sources.cells import parsed_prices, parsed_times
from ebbtide.market.sources.parquet import load_parquet

if TYPE_CHECKING:
    import pandas as pd

# On-demand prices, USD per accelerator-hour, that no table here has: GCP a3-highgpu-8g, 82.53 USD for eight, from
# the metadata of the published traces (SkyNomad's artifact, data/README.md).
_ON_DEMAND_USD = {"h100": 82.53 / 8.0}

# The reading of rounds by the recorded prices of their days.
REAL_PRICES = "real_prices"


def read_probed_zones(
    path: Path, prices: Sequence[Path], longest_gap_s: float = 3600.0, left_out: list[UnusableData] | None = None
) -> list[ZoneRecords]:
    """Zones with prices that were probed together for one instance type.

    Args:
        path: The table of probes, a Parquet file.
        prices: Tables of spot prices, Parquet files.
        longest_gap_s: Longest time between two probes, seconds; sets of zones with a longer one are left out.
        left_out: List to which data that cannot be studied are added.

    Raises:
        InputError: A file is not such a table, or has a time, a price or an interval that is none.
    """
    import pandas as pd

    reasons = [] if left_out is None else left_out
    frame = _read(path, {"available"} | PROBES)
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
            reasons.append(UnusableData(accelerator, f"{path.name}: {why}"))
            continue
        # A price before its first recorded change or after the last one is unknown.
        firsts = priced[priced["zone"].isin(wide.columns)].groupby("zone", observed=True)["timestamp"].min()
        wide = wide[(wide.index >= firsts.max()) & (wide.index <= priced["timestamp"].max())]
        if len(wide) < 2 or _has_gap(wide.index, longest_gap_s):
            gap = f"a gap of more than {longest_gap_s / 3600.0:g} h" if len(wide) > 1 else "no probe of all zones"
            reasons.append(UnusableData(accelerator, f"{path.name}: {kind} has {gap} while its prices are known"))
            continue
        table = priced.pivot_table(index="timestamp", columns="zone", values="price_usd_per_hour", aggfunc="last")
        table = table.reindex(table.index.union(wide.index)).ffill().reindex(wide.index)[wide.columns]
        places = _places(rows, wide.columns)
        market = Market(places[0].cloud, places[0].region, str(wide.columns[0]), str(kind))
        listed = default_catalogue().on_demand_usd_per_hour(market, _first_s(wide))
        if listed is None:
            reasons.append(UnusableData(accelerator, f"{path.name}: no on-demand price is known for {market}"))
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
    path: Path,
    catalogues: Sequence[Path],
    prices: Sequence[Path] = (),
    left_out: list[UnusableData] | None = None,
) -> list[tuple[ZoneRecords, ZoneRecords]]:
    """Zones whose capacity was requested in rounds: two records, available with any machine granted and with all.

    They are read with the list prices, where the newest table has one for the accelerator in the region, and once
    more with the recorded prices of these days, where a price table has them; both records cost all machines.

    Args:
        path: The table of rounds, a Parquet file.
        catalogues: Tables of list prices, Parquet files.
        prices: Tables of spot prices, Parquet files; of a zone, or of its region as the zone.
        left_out: List to which data that cannot be studied are added; if None, they are an error.

    Raises:
        InputError: A file is not such a table, or has a time, a price or an interval that is none; or, without
            `left_out`, there is no round of all zones, or fewer than two have a list price.
    """
    frame = _read(path, {"launched", "requested"} | PROBES)
    listed, moved = _listed(catalogues), _prices(prices)
    found = []
    for kind, rows in frame.groupby("instance_type", observed=True):
        wide = rows.pivot_table(index="timestamp", columns="zone", values="launched", aggfunc="last").dropna()
        accelerator = _accelerator(rows)
        machines = int(rows["requested"].max())
        each = int(rows["gpus_per_instance"].iloc[0]) if "gpus_per_instance" in rows else 1
        where = dict(zip(map(str, wide.columns), _places(rows, wide.columns), strict=True))
        usd = {
            zone: np.full(len(wide), listed[place.cloud, place.region, accelerator] * machines * each)
            for zone, place in where.items()
            if (place.cloud, place.region, accelerator) in listed
        }
        problem = None
        if wide.empty:
            problem = "no round has counts of all zones"
        elif len(usd) < 2:
            problem = f"spot prices of {accelerator} are listed for {len(usd)} of its zones"
        elif accelerator not in _ON_DEMAND_USD:
            problem = f"no on-demand price is known for {accelerator}"
        if problem is None:
            on_demand_usd = _ON_DEMAND_USD[accelerator] * machines * each
            found.append(_rounds(rows, wide, where, usd, on_demand_usd, ""))
        elif left_out is None:
            raise InputError(problem, file=path)
        else:
            left_out += [UnusableData(accelerator, f"{path.name}: {problem}", gang) for gang in (False, True)]
        if wide.empty:
            continue
        recorded = _recorded_usd(moved[moved["instance_type"] == kind], wide.index, where)
        on_demand = _least_on_demand_usd(str(kind), {zone: where[zone] for zone in recorded}, _first_s(wide))
        if len(recorded) >= 2 and on_demand is not None:
            usd = {zone: of_one * machines for zone, of_one in recorded.items()}
            found.append(_rounds(rows, wide, where, usd, on_demand * machines, REAL_PRICES))
        elif left_out is not None:
            why = f"{len(recorded)} of its zones have recorded prices and an on-demand price; 2 are needed"
            kind_of_set = f"{accelerator}_{REAL_PRICES}"
            left_out += [UnusableData(kind_of_set, f"{path.name}: {why}", gang) for gang in (False, True)]
    return found


def _rounds(
    rows: pd.DataFrame,
    wide: pd.DataFrame,
    where: dict[str, Place],
    usd: dict[str, Floats],
    on_demand_usd: float,
    reading: str,
) -> tuple[ZoneRecords, ZoneRecords]:
    """The two records of zones with a price; prices are of all machines, USD per hour, shape (ticks,)."""
    machines = int(rows["requested"].max())
    launched = wide[list(usd)].to_numpy().T
    name = f"{machines} x {rows['instance_type'].iloc[0]} {wide.index[0]:%Y-%m-%d}, "
    one = ZoneRecords(
        name + "any",
        _accelerator(rows),
        tuple(usd),
        tuple(where[zone] for zone in usd),
        machines,
        launched >= 1,
        np.stack(list(usd.values())),
        on_demand_usd,
        _tick_s(rows),
        _first_s(wide),
        tuple(zone for zone in where if zone not in usd),
        reading,
        launched,
    )
    return one, replace(one, name=name + "all", available=launched >= machines)


def _recorded_usd(moved: pd.DataFrame, times: pd.Index, where: dict[str, Place]) -> dict[str, Floats]:
    """The recorded price of one machine in each zone that has one at all of these times, or whose region has."""
    found = {}
    for zone, place in where.items():
        for name in (zone, place.region):
            own = moved[moved["zone"].astype(str) == name].sort_values("timestamp", kind="stable")
            before = own["timestamp"].searchsorted(times, side="right") - 1
            if len(own) and before.min() >= 0:
                found[zone] = own["price_usd_per_hour"].to_numpy(dtype=np.float64)[before]
                break
    return found


def _least_on_demand_usd(kind: str, where: dict[str, Place], at_s: float) -> float | None:
    """The list price of one machine where it is the least, USD per hour; None: none is known."""
    catalogue = default_catalogue()
    markets = [Market(place.cloud, place.region, zone, kind) for zone, place in where.items()]
    known = [catalogue.on_demand_usd_per_hour(market, at_s) for market in markets if market in catalogue]
    return min((usd for usd in known if usd is not None), default=None)


def _read(path: Path, columns: set[str]) -> pd.DataFrame:
    frame = load_parquet(path)
    missing = sorted(columns - set(frame.columns))
    if missing:
        raise InputError(f"has no column {missing[0]!r}; needs {', '.join(sorted(columns))}", file=path)
    if "timestamp" in columns:
        frame = frame.assign(timestamp=parsed_times(frame["timestamp"], path, "timestamp"))
    if "price_usd_per_hour" in columns:
        prices = parsed_prices(frame["price_usd_per_hour"], path, "price_usd_per_hour")
        frame = frame.assign(price_usd_per_hour=prices)
    if "interval_seconds" in columns and not (frame["interval_seconds"] > 0).all():
        row = int(np.argmin((frame["interval_seconds"] > 0).to_numpy())) + 1
        raise InputError("is not a positive number of seconds", file=path, row=row, field="interval_seconds")
    return frame


def _prices(paths: Sequence[Path]) -> pd.DataFrame:
    import pandas as pd

    frames = [_read(path, PRICES)[sorted(PRICES)] for path in paths]
    return pd.concat(frames) if frames else pd.DataFrame(columns=sorted(PRICES))


def _listed(paths: Sequence[Path]) -> dict[tuple[str, str, str], float]:
    """Spot price per accelerator-hour, by cloud, region and accelerator in lower case, from the newest row."""
    found = {}
    for path in paths:
        frame = _read(path, LISTED).sort_values("as_of", kind="stable")
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
    import pandas as pd

    return float(pd.Timestamp(wide.index.min()).timestamp())


def _accelerator(rows: pd.DataFrame) -> str:
    return str(rows["gpu_type"].iloc[0]).lower()


def _has_gap(times: pd.Index, longest_s: float) -> bool:
    return bool(np.diff(times.to_numpy()).max() > np.timedelta64(int(longest_s), "s"))


def _places(rows: pd.DataFrame, zones: pd.Index) -> tuple[Place, ...]:
    where = rows.drop_duplicates("zone").set_index("zone")
    return tuple(Place(str(where.at[zone, "cloud"]), str(where.at[zone, "region"])) for zone in zones)
