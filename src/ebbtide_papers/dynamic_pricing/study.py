"""Dynamic Pricing's analysis (3): the value of each source of price variation for one training job.

Prices are per GPU: a machine with eight is shared by eight jobs, or runs one job that uses them all (3.2.2). Each
strategy is followed for a given time from many starts, and the cost of a training step is compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ebbtide.base.input_files import read_json
from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.market.prices import PriceHistory
from ebbtide_papers.reproduction import ratio

# Table 1: throughput relative to a K80, used if no measured file is given.
TABLE_ONE = {
    "Transformer": {"k80": 1.0, "p100": 3.3, "v100": 3.3},
    "A3C": {"k80": 1.0, "p100": 1.2, "v100": 2.2},
    "CycleGAN": {"k80": 1.0, "p100": 4.5, "v100": 9.3},
    "ResNet-18": {"k80": 1.0, "p100": 4.0, "v100": 6.8},
    "ResNet-50": {"k80": 1.0, "p100": 3.7, "v100": 9.6},
}

# Durations: four days in Fig. 5, the others in Fig. 6.
DURATIONS_DAYS = (0.5, 1.0, 2.0, 4.0, 7.0)
DURATION_DAYS = 4.0

STRATEGIES = ("1xV100", "gpu-type", "multi-gpu", "multi-cloud", "dynamic")

# Table 2: size of a checkpoint; egress from AWS to the Internet, and time of a move (DeepSpotCloud V-A).
MODEL_GB = {"resnet50": 0.098, "bert_base": 0.408}
EGRESS_USD_PER_GB = 0.09
_MOVE_S = 150.0

_HOME = ("aws", "us-east-1")

# Names of the US East regions of AWS and Azure, used by Table 3.
_US_EAST = ("us-east-1", "us-east")
_STARTS_EVERY_H = 6

Rates = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class GpuMarkets:
    """Hourly prices of n markets with GPUs of known throughput.

    Attributes:
        markets: The markets, n of them.
        gpus: GPU of each market: `k80`, `p100`, `v100`; shape (n,).
        counts: Number of GPUs of a machine, shape (n,).
        usd_per_gpu_hour: Price per GPU and hour, infinity before the first price; shape (n, hours).
        start_s: Start of the first hour, seconds since 1970.
    """

    markets: tuple[Market, ...]
    gpus: tuple[str, ...]
    counts: np.ndarray
    usd_per_gpu_hour: Floats
    start_s: float


@dataclass(frozen=True, eq=False)
class StrategyCosts:
    """The cost of a step under each strategy, for one model.

    Attributes:
        usd_per_step: Cost of a step for each start, USD, by strategy; shape (starts,).
        switches: Number of moves of `dynamic` for each start, shape (starts,).
    """

    usd_per_step: Mapping[str, Floats]
    switches: np.ndarray

    def reduction(self, strategy: str, over: str) -> float:
        """Mean factor by which a strategy is cheaper than another, over starts from which both had to pay a price.

        NaN: from no start.
        """
        # Without a price, a step costs infinity.
        theirs, ours = self.usd_per_step[over], self.usd_per_step[strategy]
        known = np.isfinite(theirs) & np.isfinite(ours) & (ours > 0.0)
        return float(np.mean(theirs[known] / ours[known])) if known.any() else math.nan


def read_throughputs(path: str | Path) -> dict[str, dict[str, float]]:
    """Steps per second by model and GPU, from `{gpu: {model: {"null": alone, ...}}}`.

    Raises:
        InputError: The file is missing, is not such JSON, or a rate is not positive.
    """
    content = read_json(path)
    found: dict[str, dict[str, float]] = {}
    try:
        for gpu, models in content.items():
            for model, rates in models.items():
                found.setdefault(model, {})[gpu.lower()] = float(rates["null"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError('needs {gpu: {model: {"null": steps a second}}}', file=path) from None
    for model, rates in found.items():
        for gpu, rate in rates.items():
            if not rate > 0:
                raise InputError(f"{rate} steps a second; it must be positive", file=path, field=f"{gpu}.{model}")
    return {model: rates for model, rates in found.items() if "v100" in rates}


def gpu_markets(histories: Sequence[PriceHistory], catalogue: Catalogue) -> GpuMarkets:
    """The markets of K80, P100 and V100 machines over the time that all histories cover.

    Raises:
        InputError: There is no such time, or no such market.
    """
    start_s = max(np.ceil(history.start_s / HOUR_S) * HOUR_S for history in histories)
    end_s = min(history.end_s for history in histories)
    hours = np.arange(start_s, end_s, HOUR_S)
    if len(hours) < 24:
        raise InputError("the prices given have less than a day in common")
    rows: list[tuple[Market, str, int, Floats]] = []
    for history in histories:
        for market, series in history.items():
            machine = catalogue.instance_type(market.cloud, market.instance_type)
            gpu = (machine.accelerator or "").removeprefix("NVIDIA ").lower()
            if gpu in ("k80", "p100", "v100"):
                prices = series.at_each(hours) / machine.accelerator_count
                rows.append((market, gpu, machine.accelerator_count, np.where(np.isnan(prices), np.inf, prices)))
    if not rows:
        raise InputError("no market of these prices has K80, P100 or V100 GPUs")
    return GpuMarkets(
        tuple(row[0] for row in rows),
        tuple(row[1] for row in rows),
        np.array([row[2] for row in rows]),
        np.stack([row[3] for row in rows]),
        float(start_s),
    )


def markets_or_none(histories: Sequence[PriceHistory], catalogue: Catalogue) -> GpuMarkets | None:
    """The same, or None where there is no such time or market."""
    try:
        return gpu_markets(histories, catalogue)
    except InputError:
        return None


def follow(known: GpuMarkets, rates: Mapping[str, float], days: float, dataset_gb: float = 0.0) -> StrategyCosts:
    """Follow every strategy for a model, for a number of days from each start (Fig. 5).

    Args:
        known: Hourly prices of the GPU markets.
        rates: Steps per second by GPU.
        days: Duration of each run, days.
        dataset_gb: Dataset that is copied and charged once for each further cloud, GB; in the paper every cloud
            has the dataset beforehand.

    Raises:
        InputError: The prices are too short, or AWS's us-east-1 has no machine with one V100.
    """
    length = round(days * DAY_S / HOUR_S)
    hours = known.usd_per_gpu_hour.shape[1]
    if hours <= length:
        raise InputError(f"the prices have {hours} h in common; jobs of {length} h need more")
    rate = np.array([rates.get(gpu, 0.0) * HOUR_S for gpu in known.gpus])
    with np.errstate(divide="ignore"):
        cost = known.usd_per_gpu_hour / rate[:, None]
    home = np.array([(market.cloud, market.region) == _HOME for market in known.markets])
    single = known.counts == 1
    v100 = np.array([gpu == "v100" for gpu in known.gpus])
    pools = {
        "1xV100": home & single & v100,
        "gpu-type": home & single,
        "multi-gpu": home,
        "multi-cloud": np.ones(len(home), dtype=bool),
    }
    if not pools["1xV100"].any():
        raise InputError("the baseline is a single V100 in AWS's us-east-1, and there is none in these prices")
    starts = np.arange(0, hours - length, _STARTS_EVERY_H)
    at_home = [market.cloud == _HOME[0] for market in known.markets]
    copy_usd = np.where(at_home, 0.0, dataset_gb * EGRESS_USD_PER_GB)
    usd = {
        name: np.array([_held(cost, rate, pool, copy_usd, s, length) for s in starts])
        for name, pool in pools.items()
    }
    moved = [_dynamic(known, cost, rate, copy_usd, int(start), length) for start in starts]
    usd["dynamic"] = np.array([found for found, _ in moved])
    return StrategyCosts(usd, np.array([switches for _, switches in moved]))


def _held(cost: Floats, rate: Floats, pool: np.ndarray, copy_usd: Floats, start: int, length: int) -> float:
    """USD per step in the cheapest market at the start, held to the end."""
    able = np.flatnonzero(pool & (rate > 0))
    copy = copy_usd[able] / rate[able] / length
    best = np.argmin(cost[able, start] + copy)
    return float(cost[able[best], start : start + length].mean() + copy[best])


def _dynamic(
    known: GpuMarkets, cost: Floats, rate: Floats, copy_usd: Floats, start: int, length: int
) -> tuple[float, int]:
    """USD per step and number of moves, if the job is always in the cheapest market for which the move pays."""
    # Where a model cannot run, a step costs infinity without a copy, too.
    copy = np.divide(copy_usd, rate * length, out=np.full(len(rate), np.inf), where=rate > 0)
    here = int(np.argmin(cost[:, start] + copy))
    there_already = {known.markets[here].cloud}
    spent, steps, switches = float(copy_usd[here]), 0.0, 0
    for hour in range(start, start + length):
        there = int(np.argmin(cost[:, hour]))
        left_h = start + length - hour
        # Without any price, there is nowhere to go.
        if there != here and np.isfinite(cost[there, hour]):
            saving = (cost[here, hour] - cost[there, hour]) * rate[there] * left_h
            egress = MODEL_GB["bert_base"] * EGRESS_USD_PER_GB if _leaves(known, here, there) else 0.0
            egress += 0.0 if known.markets[there].cloud in there_already else float(copy_usd[there])
            lost_h = _MOVE_S / HOUR_S
            if saving > egress + lost_h * known.usd_per_gpu_hour[there, hour]:
                here, switches = there, switches + 1
                there_already.add(known.markets[there].cloud)
                spent += egress
                steps -= lost_h * rate[here]
        spent += known.usd_per_gpu_hour[here, hour]
        steps += rate[here]
    return (spent / steps if steps > 0 else math.inf), switches


def _leaves(known: GpuMarkets, here: int, there: int) -> bool:
    first, second = known.markets[here], known.markets[there]
    return (first.cloud, first.region) != (second.cloud, second.region)


def spot_reductions(histories: Sequence[PriceHistory], catalogue: Catalogue) -> dict[tuple[str, str], float]:
    """Highest ratio of list price to spot price of machines with one GPU, by cloud and GPU, US East (Table 3)."""
    found: dict[tuple[str, str], float] = {}
    for history in histories:
        for market, series in history.items():
            machine = catalogue.instance_type(market.cloud, market.instance_type)
            listed = catalogue.on_demand_usd_per_hour(market, history.start_s)
            if machine.accelerator_count != 1 or listed is None or market.region not in _US_EAST:
                continue
            key = market.cloud, (machine.accelerator or "").removeprefix("NVIDIA ").lower()
            least = float(series.prices.min())
            if least > 0.0:
                found[key] = max(found.get(key, 0.0), listed / least)
    return found


def egress_share(known: GpuMarkets, size_gb: float) -> float:
    """Egress of one checkpoint over the cost of 160 V100-hours on AWS spot machines (Table 2).

    NaN: AWS's us-east-1 has no machine with one V100, or it never has a price.
    """
    own = [
        place
        for place, market in enumerate(known.markets)
        if (market.cloud, market.region) == _HOME and known.gpus[place] == "v100" and known.counts[place] == 1
    ]
    least = known.usd_per_gpu_hour[own].min(axis=0, initial=np.inf)
    seen = least[np.isfinite(least)]
    return ratio(size_gb * EGRESS_USD_PER_GB, 160.0 * float(seen.mean())) if len(seen) else math.nan
