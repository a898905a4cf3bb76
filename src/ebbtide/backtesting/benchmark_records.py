"""The records of `ebbtide benchmark`: prices and capacity of a folder, cut into windows of comparable markets.

A price file gives a window or several, each of one kind of machine (with accelerators or without); a capacity file
one for each set of zones that were probed in the same days, with the prices of those days where a price file has
them. Nothing is known of the files but their columns, so that files of other months and markets serve as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from ebbtide.base.utc import DAY_S, from_epoch_s
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.records import kind_of
from ebbtide.jobs.throughput import ThroughputModel
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.billing import Billing, billing_preset
from ebbtide.market.catalogue import Catalogue, InstanceType, default_catalogue
from ebbtide.market.markets import LINUX, Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.market.sources.cells import parsed_times
from ebbtide.market.sources.parquet import load_parquet, load_prices, parquet_columns
from ebbtide.market.sources.validation import checked

# The kind of a table of list prices, beside those of `kind_of`.
_LIST_PRICES = "list prices"

# Reasons that are told where no file is of use, at most.
_MOST_REASONS = 5

# Days of a window, and of the past before it in which a policy may look.
_WINDOW_D, _PAST_D = 20.0, 5.0
# A longer record gives a window for each of these, spread over it, this many at most.
_ONE_WINDOW_D, _MOST_WINDOWS = 90.0, 3
# The least that a record has to hold, days.
_LEAST_D = 5.0

# Markets and instance types of a window.
_MOST_MARKETS, _MOST_TYPES = 40, 6

# Where the prices of a capacity record's days are not known, spot costs this share of the list price: that of
# p3.2xlarge in 2023, 0.9731 of 3.06 USD.
_SPOT_SHARE = 0.318

# Systems that cost more than Linux by their licence.
_OTHER_SYSTEMS = ("Windows", "Red Hat", "SUSE")

# Memory that a training on cores needs, GiB.
_LEAST_MEMORY_GIB = 3.5

# Until this day prices above the max price took EC2's machines; since this day GCP's no longer end after a day.
_EC2_AUCTIONS_END_S = datetime(2017, 11, 28, tzinfo=UTC).timestamp()
_GCP_SPOT_BEGINS_S = datetime(2021, 10, 1, tzinfo=UTC).timestamp()

# How fast a training is on one accelerator, as a multiple of the slowest: orders of magnitude, as measured on
# image and language models (those of 2020 in gpu-throughputs-2020, the later ones from their makers).
_SPEEDS = {
    "M2050": 0.3,
    "K520": 0.4,
    "K80": 1.0,
    "M60": 1.3,
    "P100": 2.9,
    "T4": 2.0,
    "L4": 4.0,
    "V100": 5.5,
    "A10G": 5.0,
    "A100": 12.0,
    "6000": 14.0,
    "H100": 25.0,
}
# Share of a step that several accelerators of one machine speed up.
_PARALLEL = 0.95
# The same of cores: SpotTune's completion times differ 3.31-fold between its fastest and its slowest machine.
_PARALLEL_CORES = 0.83


@dataclass(frozen=True)
class BenchmarkRecord:
    """Prices, and capacity where it is recorded, of comparable markets over some days.

    Attributes:
        name: The file, the machines, the first day and the billing rule.
        prices: Prices of the window, the days before it included.
        availability: Recorded capacity; None: machines are always there.
        billing: How spot leases are charged.
        catalogue: List prices of these days.
        steps_per_hour: How fast a training is on each instance type; the units are arbitrary.
        begins_s: From when on runs may begin, seconds since 1970.
    """

    name: str
    prices: PriceHistory
    availability: Availability | None
    billing: Billing
    catalogue: Catalogue
    steps_per_hour: Mapping[str, float]
    begins_s: float

    @property
    def is_auction(self) -> bool:
        """True if a price above a machine's max price revokes the machine."""
        return self.availability is None and self.billing.price_revokes and self.begins_s < _EC2_AUCTIONS_END_S

    @property
    def most_machines(self) -> int:
        """Highest number of machines that a market had at once; 1000 if capacity is not recorded."""
        if self.availability is None:
            return 1_000
        return max(int(series.nodes.max()) for series in self.availability.values())


@dataclass(frozen=True)
class UnusedFile:
    """A file, or a part of one, that gives no record, and why."""

    what: str
    why: str


def read_benchmark_records(folder: str | Path) -> tuple[list[BenchmarkRecord], list[UnusedFile]]:
    """The records of all Parquet files of a folder, those of its folders included; what gives none, and why.

    Raises:
        InputError: The folder has no record at all.
    """
    left_out: list[UnusedFile] = []
    files: dict[Path, str] = {}
    for path in sorted(Path(folder).rglob("*.parquet")):
        with _told(path, left_out):
            files[path] = _kind(path)
    catalogue = _with_list_prices(files, left_out)
    histories: dict[Path, PriceHistory] = {}
    capacity: dict[Path, Availability] = {}
    for path, kind in files.items():
        with _told(path, left_out):
            if kind == "prices":
                histories[path] = _history(path, catalogue, left_out)
            elif kind in ("ticks", "probes", "rounds"):
                capacity[path] = Availability.read(path)
            elif kind not in (_LIST_PRICES, "catalogue"):
                left_out.append(UnusedFile(path.name, "tells neither prices nor capacity of zones"))
    found = [record for path, whole in histories.items() for record in _priced(path, whole, catalogue, left_out)]
    found += _with_capacity(capacity, histories, catalogue, left_out)
    if not found:
        reasons = "".join(f"; {one.what}: {one.why}" for one in left_out[:_MOST_REASONS])
        raise InputError(f"{folder}: no file there holds prices or capacity of {_LEAST_D:g} days or more{reasons}")
    return sorted(found, key=lambda record: record.name), left_out


@contextmanager
def _told(path: Path, left_out: list[UnusedFile]) -> Iterator[None]:
    """Leave a file out that cannot be read, with the reason: the others are still of use."""
    try:
        yield
    except InputError as error:
        # Without the folder.
        left_out.append(UnusedFile(path.name, str(InputError(error.problem, row=error.row, field=error.field))))
    except OSError as error:
        left_out.append(UnusedFile(path.name, error.strerror or str(error)))


def _kind(path: Path) -> str:
    columns = parquet_columns(path)
    if {"on_demand_usd_per_hour", "cloud", "region", "instance_type"} <= columns:
        return _LIST_PRICES
    return kind_of(path)


def _with_list_prices(files: Mapping[Path, str], left_out: list[UnusedFile]) -> Catalogue:
    prices: dict[tuple[str, str, str, str], list[tuple[datetime, float]]] = {}
    for path, kind in files.items():
        if kind == _LIST_PRICES:
            with _told(path, left_out):
                for key, points in _list_prices(path).items():
                    prices.setdefault(key, []).extend(points)
    return default_catalogue().with_list_prices(prices)


def _list_prices(path: Path) -> dict[tuple[str, str, str, str], list[tuple[datetime, float]]]:
    """The list prices of a file by cloud, region, instance type and system.

    Raises:
        InputError: The file cannot be read, has no times, or a price is no number.
    """
    frame = load_parquet(path)
    seen = next((name for name in ("as_of", "timestamp") if name in frame.columns), None)
    if seen is None:
        raise InputError("has list prices without their time: neither as_of nor timestamp", file=path)
    usd = "on_demand_usd_per_hour"
    numbers = pd.to_numeric(frame[usd], errors="coerce")
    wrong = numbers.isna() & frame[usd].notna()
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InputError(f"is {frame[usd].iloc[row]!r:.80}; a price is needed", file=path, row=row + 1, field=usd)
    frame = frame.assign(**{seen: parsed_times(frame[seen], path, seen), usd: numbers})
    found: dict[tuple[str, str, str, str], list[tuple[datetime, float]]] = {}
    for one in frame[numbers.notna()].to_dict("records"):
        key = str(one["cloud"]), str(one["region"]), str(one["instance_type"]), str(one.get("product", LINUX))
        found.setdefault(key, []).append((one[seen].to_pydatetime(), float(one[usd])))
    return found


def _history(path: Path, catalogue: Catalogue, left_out: list[UnusedFile]) -> PriceHistory:
    """The Linux markets of a price file whose machines are known."""
    frame = load_prices(path)
    if "product" in frame.columns:
        frame = frame[~frame["product"].astype(str).str.startswith(_OTHER_SYSTEMS)]
    pairs = set(zip(frame["cloud"].astype(str), frame["instance_type"].astype(str), strict=True))
    known = {(entry.cloud, entry.name) for entry in catalogue.instance_types}
    if pairs - known:
        names = ", ".join(sorted(name for _, name in pairs - known))
        left_out.append(UnusedFile(path.name, f"the machines of these types are not known: {names}"))
        rows = zip(frame["cloud"].astype(str), frame["instance_type"].astype(str), strict=True)
        frame = frame[[pair in known for pair in rows]]
    return PriceHistory.from_frame(checked(frame, path, catalogue))


def _priced(
    path: Path, whole: PriceHistory, catalogue: Catalogue, left_out: list[UnusedFile]
) -> Iterator[BenchmarkRecord]:
    """The records of a price file."""
    begun = sorted(float(series.times_s[0]) for series in whole.values())
    first_s = max(whole.start_s, begun[len(begun) // 10])
    days = (whole.end_s - first_s) / DAY_S
    if days < _LEAST_D:
        left_out.append(UnusedFile(path.name, f"covers {days:.1f} days; {_LEAST_D:g} are needed"))
        return
    number = min(max(int(days / _ONE_WINDOW_D) + 1, 1), _MOST_WINDOWS)
    window_s = min((_PAST_D + _WINDOW_D) * DAY_S, whole.end_s - first_s)
    found = 0
    for start_s in np.linspace(first_s, whole.end_s - window_s, number).tolist():
        for cloud in sorted({market.cloud for market in whole}):
            for has_accelerator in (False, True):
                window = _window(whole, cloud, has_accelerator, start_s, start_s + window_s, catalogue)
                if window is None:
                    continue
                found += 1
                begins_s = start_s + min(_PAST_D * DAY_S, window_s / 5.0)
                for billing in _billings(cloud, start_s):
                    yield BenchmarkRecord(
                        _name(path, window, start_s, billing.name),
                        window,
                        None,
                        billing,
                        catalogue,
                        _speeds(window, catalogue),
                        begins_s,
                    )
    if not found:
        left_out.append(UnusedFile(path.name, "has fewer than two markets of one cloud that can be compared"))


def _name(path: Path, window: PriceHistory, start_s: float, rule: str) -> str:
    types = sorted({market.instance_type for market in window})
    shown = types[0] if len(types) == 1 else f"{types[0]} and {len(types) - 1} more"
    return f"{path.stem} {from_epoch_s(start_s):%Y-%m-%d} {shown}, {rule}"


def _window(
    whole: PriceHistory, cloud: str, has_accelerator: bool, start_s: float, end_s: float, catalogue: Catalogue
) -> PriceHistory | None:
    """Comparable markets of a window; None: there are too few to choose from.

    Types are those whose work is cheapest in the first day, and their markets spread from the cheapest to the
    dearest of that day.
    """
    usd: dict[Market, float] = {}
    for market, series in whole.items():
        machine = catalogue.machine_of(market)
        begun = float(series.times_s[0]) <= start_s + DAY_S
        listed = catalogue.on_demand_usd_per_hour(market, start_s)
        if market.cloud == cloud and bool(machine.accelerator) is has_accelerator and begun and listed:
            mean = series.mean(max(start_s, float(series.times_s[0])), start_s + DAY_S)
            if _speed(machine) > 0.0:
                usd[market] = mean / _speed(machine)
    of_type: dict[str, float] = {}
    for market, value in usd.items():
        of_type[market.instance_type] = min(value, of_type.get(market.instance_type, math.inf))
    types = sorted(of_type, key=lambda name: (of_type[name], name))[:_MOST_TYPES]
    markets = sorted((m for m in usd if m.instance_type in types), key=lambda m: (usd[m], m))
    if len(markets) < 2:
        return None
    if len(markets) > _MOST_MARKETS:
        places = np.linspace(0, len(markets) - 1, _MOST_MARKETS).round().astype(int)
        markets = [markets[place] for place in places.tolist()]
    return whole.select(markets).window(start_s, end_s)


def _speeds(prices: PriceHistory, catalogue: Catalogue) -> dict[str, float]:
    return {market.instance_type: _speed(catalogue.machine_of(market)) for market in prices}


def _speed(machine: InstanceType) -> float:
    """Training speed of a machine as a multiple of a small one; 0: it cannot run, or its speed is unknown."""
    if machine.accelerator is None:
        if machine.memory_gib < _LEAST_MEMORY_GIB:
            return 0.0
        return 1.0 / ThroughputModel(1.0, _PARALLEL_CORES).seconds_per_step(machine)
    one = _SPEEDS.get(machine.accelerator.split()[-1], 0.0)
    return one / (1.0 - _PARALLEL + _PARALLEL / machine.accelerator_count)


def _billings(cloud: str, start_s: float) -> list[Billing]:
    """The rules by which spot leases were charged, or, as SpotTune has it, might have been."""
    if cloud == "aws":
        names = ["ec2-second", "ec2-hourly"] if start_s < _EC2_AUCTIONS_END_S else ["ec2-second"]
    elif cloud == "gcp":
        names = ["gcp-spot" if start_s >= _GCP_SPOT_BEGINS_S else "gcp-preemptible"]
    else:
        names = ["azure-spot"]
    return [billing_preset(name) for name in names]


def _with_capacity(
    capacity: Mapping[Path, Availability],
    histories: Mapping[Path, PriceHistory],
    catalogue: Catalogue,
    left_out: list[UnusedFile],
) -> Iterator[BenchmarkRecord]:
    """A record for each set of zones that were probed in the same days."""
    seen: set[tuple[str, frozenset[str]]] = set()
    # Probes have true times, tick lists the day alone.
    for path in sorted(capacity, key=lambda path: (_kind(path) == "ticks", path)):
        series = capacity[path]
        days = sorted({_day(one) for one in series.values()})
        for day in days:
            members = {m: one for m, one in series.items() if _day(one) == day}
            key = (day, frozenset(f"{m.zone} {m.instance_type}" for m in members))
            name = f"{path.name} {day}"
            if key in seen:
                left_out.append(UnusedFile(name, "the same zones and days are in another file"))
                continue
            seen.add(key)
            record = _capacity_record(path, members, series, histories, catalogue)
            if isinstance(record, str):
                left_out.append(UnusedFile(name, record))
            else:
                yield record


def _day(series: CapacitySeries) -> str:
    return f"{from_epoch_s(float(series.times_s[0])):%Y-%m-%d}"


def _capacity_record(
    path: Path,
    members: Mapping[Market, CapacitySeries],
    others: Mapping[Market, CapacitySeries],
    histories: Mapping[Path, PriceHistory],
    catalogue: Catalogue,
) -> BenchmarkRecord | str:
    """The record of the zones of a day, and of others probed all that time; or why there is none."""
    start_s = max(float(one.times_s[0]) for one in members.values())
    end_s = min(one.end_s for one in members.values())
    if end_s - start_s < _LEAST_D * DAY_S:
        return f"covers {(end_s - start_s) / DAY_S:.1f} days; {_LEAST_D:g} are needed"
    whole = dict(members)
    names = {m.instance_type for m in members}
    for market, one in others.items():
        covers = float(one.times_s[0]) <= start_s and one.end_s >= end_s
        if (
            covers
            and market.instance_type in names
            and one.nodes.max() == max(m.nodes.max() for m in members.values())
        ):
            whole[market] = one
    prices: dict[Market, PriceSeries] = {}
    kept: dict[Market, CapacitySeries] = {}
    for market, one in whole.items():
        # One name for a zone, however often it was probed.
        plain = Market(market.cloud, market.region, market.zone, market.instance_type, LINUX)
        listed = catalogue.on_demand_usd_per_hour(plain, start_s) if plain in catalogue else None
        if listed is None or _speed(catalogue.machine_of(plain)) <= 0.0:
            continue
        recorded = _recorded(plain, start_s, end_s, histories)
        if recorded is None:
            recorded = PriceSeries(np.array([start_s]), np.array([_SPOT_SHARE * listed]))
        prices[plain], kept[plain] = recorded, one
    if not prices:
        return "no list price of its machines is known, or how fast they are"
    window = PriceHistory(prices, start_s=start_s, end_s=end_s)
    billing = _billings(next(iter(prices)).cloud, start_s)[0]
    return BenchmarkRecord(
        _name(path, window, start_s, billing.name),
        window,
        Availability(kept),
        billing,
        catalogue,
        _speeds(window, catalogue),
        start_s + min(_PAST_D * DAY_S, (end_s - start_s) / 5.0),
    )


def _recorded(
    market: Market, start_s: float, end_s: float, histories: Mapping[Path, PriceHistory]
) -> PriceSeries | None:
    """The prices of a market's days, or of its region's where the cloud has one price for all of its zones."""
    for zone in (market.zone, market.region):
        asked = Market(market.cloud, market.region, zone, market.instance_type, LINUX)
        for history in histories.values():
            if asked in history and history.start_s <= start_s and history.end_s > start_s + DAY_S:
                series = history[asked]
                if float(series.times_s[0]) <= start_s:
                    return PriceSeries(*series.between(start_s, end_s))
    return None
