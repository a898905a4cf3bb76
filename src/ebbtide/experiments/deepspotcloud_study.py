"""DeepSpotCloud's evaluation (II-B, V-B) on other prices: how available GPU machines are, and when to move."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from ebbtide.errors import InputError
from ebbtide.experiments.backtest import backtest
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.generator import generate_prices, profile_of
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.deepspotcloud import DeepSpotCloud, MoveWhen
from ebbtide.utc import DAY_S, HOUR_S
from ebbtide.workloads.job import Checkpointing, Job

# Fig. 6: total running times, by the names that the rows have.
LENGTHS_H = {"4h": 4.0, "1d": 24.0, "3d": 72.0, "1w": 168.0}

# Checkpoints of up to 1 GB take some five seconds to write and ten to fifty to upload (V-A, Table I).
_CHECKPOINT = Checkpointing(save_s=25.0, restore_s=15.0, size_bytes=10**9)

# In the table with generated regions, so many zones in each of them are made in the image of a real one.
_GENERATED = ("us-west-2a", "us-west-2b", "eu-west-1a", "eu-west-1b", "ap-northeast-1a")

_STEPS_PER_HOUR = 3_600.0

Told = Callable[[str], None]


@dataclass(frozen=True)
class Replayed:
    """One rule on jobs of one length, over the runs that ended.

    Attributes:
        cost_usd: Mean; NaN: none ended.
        makespan_h: The same.
        moves: Mean number of machines after the first.
        unfinished: How many runs found no end.
    """

    cost_usd: float
    makespan_h: float
    moves: float
    unfinished: int


@dataclass(frozen=True)
class MigrationStudy:
    """What came out.

    Attributes:
        instance_type: Of the markets.
        replays: By length and rule; lengths that do not fit into the record are left out.
        available: Share of time below the list price, by market.
        paid: Mean price, at most the list price, over the list price (Eq. 1), by market.
    """

    instance_type: str
    replays: Mapping[str, Mapping[str, Replayed]]
    available: Mapping[str, float]
    paid: Mapping[str, float]


def gpu_markets(prices: PriceHistory, catalogue: Catalogue) -> PriceHistory:
    """The markets of the GPU type that is in most of them, of those with a list price.

    Raises:
        InputError: There are fewer than two: nowhere to move.
    """
    by_type: dict[str, list[Market]] = {}
    for market in prices:
        machine = catalogue.instance_type(market.cloud, market.instance_type)
        if machine.accelerator and catalogue.on_demand_usd_per_hour(market, prices.start_s) is not None:
            by_type.setdefault(market.instance_type, []).append(market)
    most = max(by_type.values(), key=lambda markets: (len(markets), markets), default=[])
    if len(most) < 2:
        raise InputError("no GPU type has a list price and two markets in these prices; there is nowhere to move")
    return prices.select(most)


def with_generated_regions(prices: PriceHistory, catalogue: Catalogue, seed: int) -> PriceHistory:
    """The markets, and zones of other regions in their image."""
    first = next(iter(prices))
    listed = catalogue.on_demand_usd_per_hour(first, prices.start_s)
    assert listed is not None
    profile = profile_of(prices[first], listed, prices.end_s)
    made = [Market(first.cloud, zone[:-1], zone, first.instance_type, first.product) for zone in _GENERATED]
    known = [market for market in made if catalogue.on_demand_usd_per_hour(market, prices.start_s) is not None]
    if not known:
        return prices
    days = (prices.end_s - prices.start_s) / DAY_S
    extra = generate_prices(known, start=prices.start_s, days=days, seed=seed, profile=profile)
    return PriceHistory({**prices, **extra}, start_s=prices.start_s, end_s=prices.end_s)


def migration_study(
    prices: PriceHistory,
    *,
    starts: int = 1000,
    seed: int = 1,
    workers: int = 2,
    catalogue: Catalogue | None = None,
    on_progress: Told | None = None,
) -> MigrationStudy:
    """Replay every rule for moving on every length of job, from the same starts (Fig. 6).

    Args:
        prices: Markets of one GPU type.
        starts: How many.
        seed: Of the starts.
        workers: Processes.
        catalogue: Instance types and list prices.
        on_progress: Told what is being done.
    """
    known = catalogue or default_catalogue()
    (instance_type,) = {market.instance_type for market in prices}
    span_h = (prices.end_s - prices.start_s) / HOUR_S
    lengths = {name: hours for name, hours in LENGTHS_H.items() if 2.0 * hours < span_h}
    tasks = [(name, hours, when) for name, hours in lengths.items() for when in MoveWhen]
    # Long jobs with many moves first, so that no process waits for another at the end.
    tasks.sort(key=lambda task: -task[1])
    replays: dict[str, dict[str, Replayed]] = {name: {} for name in lengths}
    # Forked children would inherit threads half way through something.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = [
            (name, when, pool.submit(_replayed, _job(instance_type, hours), when, prices, starts, seed, known))
            for name, hours, when in tasks
        ]
        for name, when, future in futures:
            if on_progress:
                on_progress(f"jobs of {name}, {when}")
            replays[name][str(when)] = future.result()
    return MigrationStudy(instance_type, replays, *_availability(prices, known))


def _job(instance_type: str, hours: float) -> Job:
    return Job(
        name=instance_type,
        steps=round(hours * _STEPS_PER_HOUR),
        steps_per_hour={instance_type: _STEPS_PER_HOUR},
        checkpoint=_CHECKPOINT,
    )


def _replayed(
    job: Job, when: MoveWhen, prices: PriceHistory, starts: int, seed: int, catalogue: Catalogue
) -> Replayed:
    policy = DeepSpotCloud(when)
    result = backtest([policy], job, prices, billing="ec2-hourly", starts=starts, seed=seed, catalogue=catalogue)
    outcomes = result.outcomes[policy.name]
    done = [outcome for outcome in outcomes if outcome.finished]
    if not done:
        return Replayed(math.nan, math.nan, math.nan, len(outcomes))
    return Replayed(
        float(np.mean([outcome.cost_usd for outcome in done])),
        float(np.mean([outcome.makespan_s for outcome in done])) / HOUR_S,
        float(np.mean([sum(lease.is_charged for lease in outcome.leases) - 1 for outcome in done])),
        len(outcomes) - len(done),
    )


def _availability(prices: PriceHistory, catalogue: Catalogue) -> tuple[dict[str, float], dict[str, float]]:
    """Of each market, the share of time below the list price, and what is paid of it (Fig. 1 and 2, Eq. 1)."""
    available, paid = {}, {}
    for market, series in prices.items():
        listed = catalogue.on_demand_usd_per_hour(market, prices.start_s)
        assert listed is not None
        first_s = max(prices.start_s, float(series.times_s[0]))
        held_s = np.diff(np.append(series.times_s, prices.end_s))
        available[str(market)] = float(held_s[series.prices < listed].sum() / (prices.end_s - first_s))
        paid[str(market)] = float((np.minimum(series.prices, listed) * held_s).sum() / held_s.sum() / listed)
    return available, paid
