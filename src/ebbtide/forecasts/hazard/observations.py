"""Observations of markets by time: requests granted or refused, machines that run or are lost.

Files of several kinds have them: launch probes, capacity rounds, ticks, lists of machines that came and went,
lists of launches, and price histories, in which a machine is lost when the price rises above its max price.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.models import probed_markets
from ebbtide.forecasts.capacity.probes import read_probes
from ebbtide.forecasts.capacity.records import kind_of
from ebbtide.market.markets import PRICE_COLUMNS, Market
from ebbtide.market.price_series import Floats, PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.market.sources.cells import parsed_times
from ebbtide.market.sources.parquet import load_parquet, parquet_columns

if TYPE_CHECKING:
    import pandas as pd

# Time between two observations of a machine that runs, or of a price, seconds.
EVERY_S = 600.0

# Observations of a record at most; of more, every second, third or so of each market is taken.
MOST_OBSERVATIONS = 400_000

# A machine that is listed as running is asked about this often at the least.
_MACHINE_GAP_S = 3 * HOUR_S

_NODES = {"trace", "cloud", "zone", "gpu_type", "offset_seconds", "timestamp", "event", "node", "nodes_running"}
_INSTANCES = {"timestamp", "cloud", "event", "instance", "gpus", "gpu_type", "zone"}
_LAUNCHES = {"timestamp", "cloud", "region", "zone", "gpu_type", "gpus_per_instance"}


@dataclass(frozen=True, eq=False)
class MarketObservations:
    """Observations of one market, or of one machine.

    Attributes:
        market: The market. A machine that was followed by itself is a market of its own, its name the product.
        times_s: Times, seconds since 1970, rising, shape (n,).
        is_up: Whether a machine was granted or ran; else one was refused or lost, shape (n,).
        longest_gap_s: Longest time between two observations of one spell, seconds.
        are_requests: Whether observations are requests, so that they tell how often one is refused.
        series: Price history; None: the price is not known, or its record.
        max_price_usd_per_hour: Price above which a machine is lost; infinity: the price takes none.
        clock: Name of the part of a record whose times belong together; others begin at other times.
        known_until_s: Of a machine that was lost: the end of its record, seconds since 1970.
    """

    market: Market
    times_s: Floats
    is_up: np.ndarray
    longest_gap_s: float
    are_requests: bool = True
    series: PriceSeries | None = None
    max_price_usd_per_hour: float = np.inf
    clock: str = ""
    known_until_s: float = -np.inf

    @property
    def is_machine(self) -> bool:
        """True if one machine was followed, from its beginning on."""
        return not self.are_requests and not self.is_of_prices

    @property
    def is_of_prices(self) -> bool:
        """True if the price alone takes machines here."""
        return bool(np.isfinite(self.max_price_usd_per_hour))

    def between(self, start_s: float, end_s: float) -> MarketObservations:
        """The observations from a time on and before another, seconds since 1970."""
        first, last = np.searchsorted(self.times_s, [start_s, end_s])
        kept = slice(int(first), int(last))
        return replace(self, times_s=self.times_s[kept], is_up=self.is_up[kept])

    def thinned(self, stride: int) -> MarketObservations:
        """Every `stride`-th of the observations."""
        gap_s = self.longest_gap_s * stride
        return replace(self, times_s=self.times_s[::stride], is_up=self.is_up[::stride], longest_gap_s=gap_s)


def has_observations(path: Path) -> bool:
    """Return whether a Parquet file has the columns of a kind that `read_observations` reads."""
    columns = parquet_columns(path)
    is_known = any(columns >= needed for needed in (_NODES, _INSTANCES, _LAUNCHES))
    return is_known or kind_of(path) in ("ticks", "probes", "rounds") or set(PRICE_COLUMNS) <= columns


def read_observations(
    path: Path,
    list_price: Callable[[Market, float], float | None],
) -> list[MarketObservations]:
    """Read the observations of every market of a file.

    Args:
        path: Parquet file of probes, rounds, ticks, machines, launches or prices.
        list_price: Gives the on-demand price of a market at a time, USD per hour, or None. In a price history the
            max price is the on-demand price, and markets without one are left out.

    Raises:
        InputError: The file is of no such kind, or a row is invalid.
    """
    columns = parquet_columns(path)
    kind = kind_of(path)
    if columns >= _NODES:
        found = _of_nodes(load_parquet(path), path)
    elif columns >= _INSTANCES:
        found = _of_instances(load_parquet(path), path)
    elif kind in ("ticks", "probes", "rounds"):
        found = observations_of_probes(read_probes([path]), path)
    elif columns >= _LAUNCHES and "price_usd_per_hour" not in columns:
        found = _of_launches(load_parquet(path), path)
    elif "price_usd_per_hour" in columns:
        found = observations_of_prices(PriceHistory.read(path), list_price)
    else:
        raise InputError(
            "holds no observations of markets: needs probes (timestamp, cloud, region, zone, instance_type, and "
            "available or launched), ticks, machines, launches or prices; it has "
            f"{', '.join(sorted(columns)[:12])}",
            file=path,
        )
    usable = [each for each in found if len(each.times_s) > 1]
    if not usable:
        why = "; in a file of prices the on-demand price of a market must be known (--instance-types)"
        raise InputError(
            f"has no market with two observations{why if 'price_usd_per_hour' in columns else ''}", file=path
        )
    stride = math.ceil(sum(len(each.times_s) for each in usable) / MOST_OBSERVATIONS)
    return usable if stride == 1 else [each.thinned(stride) for each in usable]


def observations_of_probes(probes: pd.DataFrame, file: Path | None = None) -> list[MarketObservations]:
    """Observations of a table of probes; see `fit_market_spells`.

    Args:
        probes: One row per probe.
        file: File that error messages name.
    """
    markets = probed_markets(probes, file)
    return [MarketObservations(market, *found) for market, found in markets.items()]


def observations_of_prices(
    prices: PriceHistory, list_price: Callable[[Market, float], float | None]
) -> list[MarketObservations]:
    """Observations of a price history: machines are there while the price is at most the on-demand price.

    Markets whose on-demand price is not known are left out.

    Args:
        prices: The price history.
        list_price: Gives the on-demand price of a market at a time, USD per hour, or None.
    """
    span_s = sum(prices.end_s - float(series.times_s[0]) for series in prices.values())
    every_s = max(EVERY_S, span_s / MOST_OBSERVATIONS)
    found = []
    for market, series in prices.items():
        listed = list_price(market, float(series.times_s[0]))
        if listed is None:
            continue
        rises = np.flatnonzero((series.prices[:-1] <= listed) & (series.prices[1:] > listed)) + 1
        # Also when the price comes above: it may be below again at the next regular time.
        times_s = np.union1d(np.arange(series.times_s[0], prices.end_s, every_s), series.times_s[rises])
        is_up = series.at_each(times_s) <= listed
        found.append(MarketObservations(market, times_s, is_up, 1.5 * every_s, False, series, float(listed)))
    return found


def _of_nodes(frame: pd.DataFrame, path: Path) -> list[MarketObservations]:
    """Machines of whole clusters, by their events or by how many of them ran at a time."""
    is_event = frame["node"].notna()
    for field, wanted in (("offset_seconds", is_event), ("nodes_running", ~is_event), ("timestamp", ~is_event)):
        if (missing := (frame[field].isna() & wanted).to_numpy()).any():
            raise InputError("is blank", file=path, row=int(missing.argmax()) + 1, field=field)
    found: list[MarketObservations] = []
    for name, rows in frame.groupby("trace", observed=True, sort=True):
        where = rows.iloc[0]
        zone = str(name) if str(where["zone"]) == "nan" else str(where["zone"])
        market = Market(str(where["cloud"]), zone, zone, str(where["gpu_type"]))
        if rows["node"].notna().any():
            spans = _spans_of_events(rows)
        else:
            times = parsed_times(rows["timestamp"], path, "timestamp").astype("int64").to_numpy() / 1e6
            order = np.argsort(times, kind="stable")
            spans = _spans_of_counts(times[order], rows["nodes_running"].to_numpy(dtype=np.int64)[order])
        found += _of_spans(market, spans, str(name))
    return found


def _spans_of_events(rows: pd.DataFrame) -> Iterator[tuple[str, float, float, bool]]:
    """Begin and end of each machine, and whether it was lost."""
    begun: dict[str, float] = {}
    end_s = float(rows["offset_seconds"].max())
    number = 0
    ordered = rows.sort_values("offset_seconds", kind="stable")
    columns = (ordered[name].tolist() for name in ("event", "node", "offset_seconds"))
    for event, node, time_s in zip(*columns, strict=True):
        if event == "add":
            begun.setdefault(node, time_s)
        elif node in begun:
            number += 1
            yield f"{node} {number}", begun.pop(node), time_s, True
    for node, time_s in begun.items():
        yield node, time_s, end_s, False


def _spans_of_counts(times_s: Floats, counts: np.ndarray) -> Iterator[tuple[str, float, float, bool]]:
    """Begin and end of machines from how many ran: those that are lost are drawn at random from all."""
    random = np.random.default_rng(0)
    running: list[tuple[int, float]] = []
    number = 0
    for time_s, count in zip(times_s.tolist(), counts.tolist(), strict=True):
        while len(running) < count:
            number += 1
            running.append((number, time_s))
        while len(running) > count:
            lost, begun_s = running.pop(int(random.integers(len(running))))
            yield str(lost), begun_s, time_s, True
    for machine, begun_s in running:
        yield str(machine), begun_s, float(times_s[-1]), False


def _of_instances(frame: pd.DataFrame, path: Path) -> list[MarketObservations]:
    """Instances that were created and looked after until they were lost, and requests that failed."""
    times = parsed_times(frame["timestamp"], path, "timestamp").astype("int64").to_numpy() / 1e6
    table = frame.assign(time_s=times).sort_values("time_s", kind="stable")
    created = table[table["event"] == "created"].drop_duplicates("instance").set_index("instance")
    kinds = {
        name: Market(str(row.cloud), str(row.zone).rpartition("-")[0] or str(row.zone), str(row.zone), _gpus(row))
        for name, row in zip(created.index, created.itertuples(), strict=True)
    }
    found: list[MarketObservations] = []
    by_market: dict[Market, list[tuple[str, float, float, bool]]] = {}
    for name, rows in table[table["instance"].isin(kinds)].groupby("instance", sort=True):
        running = rows[rows["event"] != "not_running"]["time_s"]
        gone = rows[rows["event"] == "not_running"]["time_s"]
        end_s = float(gone.min()) if len(gone) else float(running.max())
        by_market.setdefault(kinds[str(name)], []).append(
            (str(name), float(running.min()), end_s, bool(len(gone)))
        )
    for market, spans in by_market.items():
        found += _of_spans(market, spans, market.cloud)
    # Failed requests do not name their zone, so they are one market of a cloud and type.
    asked = table[table["event"].isin(["created", "creation_failed"]) & table["gpu_type"].notna()]
    for (cloud, _), rows in asked.groupby(["cloud", asked.apply(_gpus, axis=1)], sort=True):
        market = Market(str(cloud), "any region", "any zone", _gpus(rows.iloc[0]))
        if rows["event"].nunique() > 1:
            rows = rows.drop_duplicates("time_s", keep="last")
            is_up = (rows["event"] == "created").to_numpy()
            times_s = rows["time_s"].to_numpy()
            found.append(MarketObservations(market, times_s, is_up, _MACHINE_GAP_S, clock=str(cloud)))
    return found


def _gpus(row: object) -> str:
    return f"{row.gpu_type}-{row.gpus}"  # type: ignore[attr-defined]


def _of_launches(frame: pd.DataFrame, path: Path) -> list[MarketObservations]:
    """Rounds of launches, of which only those that succeeded are listed: a market without one was refused."""
    times = parsed_times(frame["timestamp"], path, "timestamp").astype("int64").to_numpy() / 1e6
    table = frame.assign(time_s=times)
    rounds_s = np.unique(times)
    found = []
    for key, rows in table.groupby(["cloud", "region", "zone", "gpu_type", "gpus_per_instance"], observed=True):
        cloud, region, zone, gpu_type, gpus = map(str, key)
        market = Market(cloud, region, zone, f"{gpu_type}-{gpus}")
        is_up = np.isin(rounds_s, rows["time_s"].to_numpy())
        found.append(MarketObservations(market, rounds_s, is_up, 2.0 * DAY_S))
    return found


def _of_spans(
    market: Market, spans: Iterable[tuple[str, float, float, bool]], clock: str
) -> Iterator[MarketObservations]:
    every = list(spans)
    until_s = max((end_s for _, _, end_s, _ in every), default=0.0)
    for name, begin_s, end_s, is_lost in every:
        times_s = np.arange(begin_s, end_s, EVERY_S)
        if not len(times_s):
            continue
        is_up = np.ones(len(times_s) + 1, dtype=bool)
        is_up[-1] = not is_lost
        own = Market(market.cloud, market.region, market.zone, market.instance_type, name)
        times_s = np.append(times_s, end_s)
        yield MarketObservations(
            own, times_s, is_up, 2.0 * EVERY_S, are_requests=False, clock=clock, known_until_s=until_s
        )
