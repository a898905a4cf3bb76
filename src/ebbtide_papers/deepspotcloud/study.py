"""DeepSpotCloud's evaluation (V-B, Fig. 6) on other prices: when to move a job between markets of one GPU type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.jobs.job import Checkpointing, Job
from ebbtide.market.billing import billing_preset
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.generator import MarketProfile, generate_auction_prices, profile_of
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.deepspotcloud.policy import DeepSpotCloud, MoveWhen
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import MeasuredStartDelay
from ebbtide.replay.starts import draw_starts
from ebbtide_papers.deepspotcloud.migration_replays import MigrationReplays, MigrationResults

# Fig. 6: total running times, by their names in rows.
LENGTHS_H = {"4h": 4.0, "1d": 24.0, "3d": 72.0, "1w": 168.0}

# Fig. 5: writing a checkpoint takes about five seconds per GB, and so does reading; Table I: uploading it within
# its region takes fifteen at most.
_WRITE_S_PER_GB = 5.0
_UPLOAD_S_PER_GB = 15.0


def measured_checkpoint(size_gb: float) -> Checkpointing:
    """Save and restore times of a checkpoint by the paper's measurements; download times by region (Table I)."""
    return Checkpointing(
        save_s=(_WRITE_S_PER_GB + _UPLOAD_S_PER_GB) * size_gb,
        restore_s=_WRITE_S_PER_GB * size_gb,
        size_bytes=round(size_gb * 1e9),
        by_region=True,
    )


# The largest that the paper's machines could handle.
CHECKPOINT = measured_checkpoint(1.0)

# Zones of the generated regions, modelled on a real zone.
_GENERATED = ("us-west-2a", "us-west-2b", "eu-west-1a", "eu-west-1b", "ap-northeast-1a")

_STEPS_PER_HOUR = 3_600.0

OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class Replayed:
    """Means of one rule on jobs of one length, over the runs that ended under every rule.

    Attributes:
        cost_usd: Mean cost, USD; NaN: no run ended.
        egress_usd: Mean egress cost, USD, part of the cost.
        makespan_h: Mean time to finish, hours.
        moves: Mean number of machines after the first.
        revocations: Mean number of revocations.
        unfinished: Number of unfinished runs.
    """

    cost_usd: float
    egress_usd: float
    makespan_h: float
    moves: float
    revocations: float
    unfinished: int


@dataclass(frozen=True)
class MigrationStudy:
    """The results of the study.

    Attributes:
        markets: Number of markets to choose from.
        replays: Results by length and rule, without lengths that do not fit into the record.
    """

    markets: int
    replays: Mapping[str, Mapping[str, Replayed]]


def gpu_markets(prices: PriceHistory, catalogue: Catalogue) -> PriceHistory:
    """The markets of the most common GPU type, among those with a list price.

    Raises:
        InputError: There are fewer than two, so that moves are impossible.
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
    """The markets, with generated zones of other regions modelled on them."""
    days = (prices.end_s - prices.start_s) / DAY_S
    if not days:
        return prices
    first = max(prices, key=lambda market: len(prices[market]))
    listed = catalogue.on_demand_usd_per_hour(first, prices.start_s)
    assert listed is not None
    measured = asdict(profile_of(prices[first], listed, prices.end_s))
    # Values that a market with few changes does not show are the generator's defaults.
    profile = MarketProfile(**{name: value for name, value in measured.items() if math.isfinite(value)})
    made = [Market(first.cloud, zone[:-1], zone, first.instance_type, first.product) for zone in _GENERATED]
    known = [
        market
        for market in made
        if market not in prices and catalogue.on_demand_usd_per_hour(market, prices.start_s) is not None
    ]
    if not known:
        return prices
    extra = generate_auction_prices(known, start=prices.start_s, days=days, seed=seed, profile=profile)
    return PriceHistory({**prices, **extra}, start_s=prices.start_s, end_s=prices.end_s)


def one_type_job(instance_type: str, hours: float) -> Job:
    """A job of `hours` hours on an instance type."""
    return Job(
        name=instance_type,
        steps=round(hours * _STEPS_PER_HOUR),
        steps_per_hour={instance_type: _STEPS_PER_HOUR},
        checkpoint=CHECKPOINT,
    )


def migration_study(
    prices: PriceHistory,
    job_of: Callable[[float], Job],
    *,
    billing: str = "ec2-hourly",
    starts: int = 1000,
    seed: int = 1,
    workers: int = 2,
    catalogue: Catalogue | None = None,
    on_progress: OnProgress | None = None,
) -> MigrationStudy:
    """Replay every rule for moving on every length of job, from the same starts (Fig. 6).

    Args:
        prices: Price history of the markets that the job can run in.
        job_of: Gives a job for a number of hours on the fastest machine.
        billing: Name of the billing preset.
        starts: Number of start times.
        seed: Seed of the starts and of machines' start delays (Table II).
        workers: Number of parallel threads.
        catalogue: Instance types and their list prices.
        on_progress: Called with the current activity.
    """
    known = catalogue or default_catalogue()
    span_h = (prices.end_s - prices.start_s) / HOUR_S
    delay = MeasuredStartDelay(seed)
    replays = {}
    for name, hours in LENGTHS_H.items():
        if 2.0 * hours >= span_h:
            continue
        if on_progress:
            on_progress(f"jobs of {name}")
        job = job_of(hours)
        drawn = draw_starts(job, prices, starts, seed, known)
        scenario = Scenario((job,), prices, billing_preset(billing), delay=delay, catalogue=known)
        compiled = MigrationReplays(scenario)
        replays[name] = _means(
            {rule: compiled.run(DeepSpotCloud(rule, capacity=False), drawn, workers=workers) for rule in MoveWhen}
        )
    return MigrationStudy(len(prices), replays)


# What `migrate` is chosen from: hours of work that a saving is counted for, and moves expected in a day.
_STAYS_H, _MOVES = (0.5, 1.0, 2.0, 4.0), (0.0, 4.0, 8.0, 16.0)


def migrate_on_the_other_half(
    prices: PriceHistory,
    job_of: Callable[[float], Job],
    hours: float,
    *,
    billing: str = "ec2-hourly",
    starts: int = 1000,
    seed: int = 1,
    workers: int = 2,
    catalogue: Catalogue | None = None,
) -> float:
    """Cost of `migrate` over interrupt's, on each half of a record with the numbers that cost least on the other.

    Args:
        prices: Price history of the markets that the job can run in.
        job_of: Gives a job for a number of hours on the fastest machine.
        hours: Hours of the job.
        billing: Name of the billing preset.
        starts: Number of start times on each half.
        seed: Seed of the starts and of machines' start delays.
        workers: Number of parallel threads.
        catalogue: Instance types and their list prices.

    Returns:
        The mean of both halves; NaN: the halves are shorter than twice the job.
    """
    known = catalogue or default_catalogue()
    middle_s = (prices.start_s + prices.end_s) / 2.0
    halves = [prices.window(prices.start_s, middle_s), prices.window(middle_s, prices.end_s)]
    if 2.0 * hours * HOUR_S >= middle_s - prices.start_s:
        return math.nan
    choices = [
        DeepSpotCloud(MoveWhen.WORTHWHILE, stay_h=stay_h, moves_per_day=moves, capacity=False)
        for stay_h in _STAYS_H
        for moves in _MOVES
    ]
    played = (DeepSpotCloud(MoveWhen.NEVER, capacity=False), *choices)
    costs = []
    for half in halves:
        job = job_of(hours)
        scenario = Scenario((job,), half, billing_preset(billing), delay=MeasuredStartDelay(seed), catalogue=known)
        compiled, drawn = MigrationReplays(scenario), draw_starts(job, half, starts, seed, known)
        found = [compiled.run(policy, drawn, workers=workers) for policy in played]
        ended = np.all([~np.isnan(runs.makespan_s) for runs in found], axis=0)
        costs.append([_mean(runs.cost_usd[ended]) for runs in found])
    over = np.array(costs)[:, 1:] / np.array(costs)[:, :1]
    if not np.isfinite(over).all():
        return math.nan
    return float(np.mean([over[1, np.argmin(over[0])], over[0, np.argmin(over[1])]]))


def _means(found: Mapping[MoveWhen, MigrationResults]) -> dict[str, Replayed]:
    ended = np.all([~np.isnan(runs.makespan_s) for runs in found.values()], axis=0)
    return {
        str(rule): Replayed(
            _mean(runs.cost_usd[ended]),
            _mean(runs.egress_usd[ended]),
            _mean(runs.makespan_s[ended]) / HOUR_S,
            _mean(runs.machines[ended]) - 1.0,
            _mean(runs.revocations[ended]),
            int(np.isnan(runs.makespan_s).sum()),
        )
        for rule, runs in found.items()
    }


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan
