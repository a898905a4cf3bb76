"""Tapes on which policies are compared, and the work that each policy is designed for.

Three things would differ between a replay and a live run for physical reasons, and the tapes avoid them. A live
agent learns of a notice only once it has booted: here machines boot at once. A live run measures progress and
speed in whole steps: here a step takes 10 microseconds on four cores. Times are floating-point: tapes lie in 1970,
where float seconds resolve nanoseconds. Each job has one machine: policies for clusters (ExoSphere and its rivals)
are compared here on jobs of one machine, and in `kinds` on others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.forecasts.bundle import ModelBundle, part_of, write_manifest
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.forecasts.revocation.minutes import minutes_of
from ebbtide.forecasts.revocation.models import revpred
from ebbtide.forecasts.revocation.splits import split_at
from ebbtide.forecasts.revocation.storage import save_model
from ebbtide.forecasts.revocation.training import TrainingSettings
from ebbtide.jobs.job import Checkpointing, Job
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.billing import Billing, billing_preset
from ebbtide.market.generator import MarketProfile, generate_auction_prices
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.registry import POLICIES
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import StartDelay

BILLINGS = ("ec2-hourly", "ec2-second")

_BEGINS, _DAYS, _TRAINED_DAYS = "1970-01-02T00:00:00Z", 11.0, 7.0
# Incommensurable lengths of trials, so that no two report at the same moment.
_TRIAL_H = (1.0, 1.17, 1.31, 1.43)
# Runs begin off whole hours and minutes, so that price changes do not coincide with a run's events.
_START_S = 9.0 * DAY_S + 1234.567
# An instance type with a single market.
_ALONE = "c3.2xlarge"
_MARKETS = (
    *(
        Market("aws", zone[:-1], zone, name)
        for name in ("c3.xlarge", "m3.medium", "r3.large")
        for zone in ("us-east-1a", "us-east-1b", "us-west-2a")
    ),
    Market("aws", "us-east-1", "us-east-1b", _ALONE),
)
_OF_ONE_REGION = tuple(
    Market("aws", "us-east-1", zone, name)
    for name in ("c3.xlarge", "m3.xlarge", "r3.xlarge")
    for zone in ("us-east-1a", "us-east-1b")
)
_VOLATILE = MarketProfile(spikes_per_day=20.0, spike_length_min=2.0, change_interval_min=5.0)
PER_HOUR_PER_VCPU = 9e7
_DELAY = StartDelay(20.0, 0.0)
_CHECKPOINT = Checkpointing(save_s=20.0, restore_s=40.0, size_bytes=2_000_000_000, by_region=True)
# Mean seconds for which a market has machines (True), and for which it has none, in turn.
_CAPACITY_S = {True: 1.5 * HOUR_S, False: 0.1 * HOUR_S}
_MOST_MACHINES = 3


@dataclass(frozen=True)
class Tape:
    """Prices and capacity of markets over some days.

    Attributes:
        name: Name of the tape in the report.
        prices: Price histories of all markets.
        availability: Recorded capacity; None: machines are always available.
    """

    name: str
    prices: PriceHistory
    availability: Availability | None = None

    @property
    def start_s(self) -> float:
        """Time at which runs begin, seconds since 1970."""
        return self.prices.start_s + _START_S

    @property
    def known(self) -> PriceHistory:
        """Prices of the days before the runs, to train models on."""
        return self.prices.window(self.prices.start_s, self.prices.start_s + _TRAINED_DAYS * DAY_S)


def tapes() -> tuple[Tape, ...]:
    """Make tapes: calm prices, spikes often shorter than a notice, and capacity that comes and goes."""
    calm = _prices(_MARKETS, 11, MarketProfile(spikes_per_day=0.3))
    volatile = _prices(_MARKETS, 12, _VOLATILE)
    capacity = _prices(_MARKETS, 13, MarketProfile(spikes_per_day=2.0))
    return (
        Tape("calm", calm),
        Tape("volatile", volatile),
        Tape("capacity", capacity, _capacity(capacity, 14, _MOST_MACHINES)),
    )


def tapes_of_one_region() -> tuple[Tape, ...]:
    """Make tapes of machines of one size in one region, where they reach each other: volatile prices, and capacity
    that comes and goes, for twice as many machines."""
    volatile = _prices(_OF_ONE_REGION, 15, _VOLATILE)
    capacity = _prices(_OF_ONE_REGION, 18, MarketProfile(spikes_per_day=2.0))
    return (
        Tape("volatile, one region", volatile),
        Tape("capacity, one region", capacity, _capacity(capacity, 19, 2 * _MOST_MACHINES)),
    )


def scenario_of(name: str, tape: Tape, billing: str) -> Scenario:
    """Make the scenario for a registered policy: a tape, a billing preset, and work that suits the policy.

    Args:
        name: Name of the policy in the registry.
        tape: Prices and capacity of the markets.
        billing: Name of the billing preset of spot machines.
    """
    jobs, curves = _work(name)
    return scenario_with(jobs, tape, billing, tuple(curves))


def scenario_with(
    jobs: Sequence[Job], tape: Tape, billing: str, curves: tuple[Curve | None, ...] = ()
) -> Scenario:
    """Make a scenario of jobs on a tape, with a billing preset of spot machines and the jobs' curves."""
    rule: Billing = billing_preset(billing)
    availability = tape.availability
    return Scenario(tuple(jobs), tape.prices, rule, availability=availability, delay=_DELAY, seed=3, curves=curves)


def work_for(name: str) -> str:
    """Describe the work on which a registered policy is compared."""
    if name.startswith("spottune"):
        return "a sweep of four trials with learning curves"
    if name.startswith("dynamic-pricing"):
        return "three trainings, each fastest on another instance type"
    if name.endswith("diversified"):
        return "two trainings that run in one market alone: it spreads each over all markets, and agents do not"
    if name.startswith(("exosphere", "spot-fleet")):
        return "two trainings on one machine each, since agents spread none over several"
    return "one training"


def small_bundle(known: PriceHistory, folder: Path) -> ModelBundle:
    """Make a bundle with a revocation model that is trained in seconds.

    Args:
        known: A history of at least six and a half days.
        folder: Folder for the bundle.
    """
    minutes = minutes_of(known)
    model = revpred()
    model.training = TrainingSettings(epochs=1)
    split = split_at(minutes, 60, 6, 0.5, stride=30)
    model.fit(minutes, split.train, split.validation)
    save_model(model, folder / "revpred")
    part = part_of(folder, "revpred", window_s=(known.start_s, known.end_s), scores={"brier": 0.1})
    return write_manifest(folder, {"revpred": part})


def _work(name: str) -> tuple[tuple[Job, ...], Iterable[Curve | None]]:
    """Make the jobs for a policy, and their curves."""
    if name not in POLICIES:
        raise ValueError(f"{name} is not registered")
    if name.startswith("spottune"):
        return trials_with_curves()
    if name.startswith("dynamic-pricing"):
        fast = ("c3.xlarge", "r3.large", "m3.medium")
        return tuple(_job(f"likes {kind}", 3.0 + 0.1 * number, kind) for number, kind in enumerate(fast)), ()
    if name.endswith("diversified"):
        return (_job("first", 4.0, _ALONE, anywhere=False), _job("second", 3.1, _ALONE, anywhere=False)), ()
    if name.startswith(("exosphere", "spot-fleet")):
        return (_job("first", 4.0), _job("second", 3.1)), ()
    return (_job("training", 5.0),), ()


def trials_with_curves(times: float = 1.0) -> tuple[tuple[Job, ...], tuple[Curve, ...]]:
    """Make the jobs of a sweep, longer by a factor, and their learning curves."""
    jobs = tuple(_job(f"trial {number}", times * hours) for number, hours in enumerate(_TRIAL_H))
    return jobs, tuple(_curve(job, number) for number, job in enumerate(jobs))


def _job(name: str, hours: float, likes: str = "", *, anywhere: bool = True) -> Job:
    """Make a training that takes `hours` on four cores; on the instance type that it likes, a third of that.

    Args:
        name: Name of the job.
        hours: Hours that it takes on four cores.
        likes: Instance type on which it is fastest; empty: none.
        anywhere: Whether it runs on other instance types, too.
    """
    own = {likes: 3.0 * 4.0 * PER_HOUR_PER_VCPU} if likes else {}
    return Job(
        name=name,
        steps=round(hours * 100.0) * round(0.04 * PER_HOUR_PER_VCPU),
        steps_per_hour=own,
        other_steps_per_hour_per_vcpu=PER_HOUR_PER_VCPU if anywhere else None,
        checkpoint=_CHECKPOINT,
    )


def _curve(job: Job, number: int) -> Curve:
    steps = np.array([float(job.steps // 20 * place) for place in range(1, 21)])
    metric = np.array([0.2 * (number + 1) + 0.5 / place for place in range(1, 21)])
    return Curve("net", job.name, steps, metric, float(job.steps))


def _prices(markets: Sequence[Market], seed: int, profile: MarketProfile) -> PriceHistory:
    return generate_auction_prices(markets, start=_BEGINS, days=_DAYS, seed=seed, profile=profile)


def _capacity(prices: PriceHistory, seed: int, most: int) -> Availability:
    """Make capacity that comes and goes independently in each market."""
    random = np.random.default_rng(seed)
    series = {}
    for market in prices:
        times_s, nodes, is_up = [prices.start_s], [most], True
        while times_s[-1] < prices.end_s:
            times_s.append(times_s[-1] + random.exponential(_CAPACITY_S[is_up]))
            is_up = not is_up
            nodes.append(int(random.integers(1, most + 1)) if is_up else 0)
        series[market] = CapacitySeries(np.array(times_s), np.array(nodes), prices.end_s + DAY_S)
    return Availability(series)
