"""Backtests: every policy from every start, on one price history and one billing rule."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ebbtide.backtesting.replays import replay_all
from ebbtide.backtesting.result import BacktestResult
from ebbtide.base.utc import Time
from ebbtide.errors import InputError
from ebbtide.forecasts.bundle import ModelBundle
from ebbtide.forecasts.champions import read_models
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.job import Job, jobs_of
from ebbtide.jobs.job_files import measured
from ebbtide.market.availability import Availability
from ebbtide.market.billing import Billing, billing_preset
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.egress import EgressPrices
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.api.protocol import Policy, checked_policy
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import MeasuredStartDelay, StartDelay
from ebbtide.replay.starts import check_can_finish, draw_starts, given_starts


def backtest(
    job: Job | Sequence[Job],
    policies: Sequence[Policy],
    prices: PriceHistory,
    *,
    billing: str | Billing = "ec2-second",
    starts: int | Sequence[Time] = 100,
    seed: int = 0,
    availability: Availability | None = None,
    delay: StartDelay | MeasuredStartDelay | None = None,
    catalogue: Catalogue | None = None,
    curves: Sequence[Curve | None] = (),
    egress: EgressPrices | None = None,
    speed_noise: float = 0.0,
    goals: Goals | None = None,
    models: ModelBundle | str | Path | None = None,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> BacktestResult:
    """Replay every policy from the same starts.

    Args:
        job: One job, or several that run together.
        policies: Policies to compare; names must differ.
        prices: Price history of the markets.
        billing: Name of a billing preset, or a rule.
        starts: Number of starts to draw, or the start times themselves.
        seed: Seed of the starts and of the policies' random numbers.
        availability: Recorded capacity of the markets; None: always available.
        delay: Model of the time that machines take to start.
        catalogue: Instance types and their list prices; None: the built-in ones.
        curves: Learning curve of each job, for policies that read its metric.
        egress: Prices of data that leave a region.
        speed_noise: Standard deviation of the logarithm of a machine's speed against that of its type; if it is
            above 0, policies see the speeds that are measured as jobs train.
        goals: Goals of the jobs, which policies see as `view.goals`; None: none is given.
        models: The bundle of learnt models that the policies ask (`eb.policy(name, models)`), the path of its
            folder, or `champion` for those of the MLflow registry; its versions are kept with the result, and
            starts within the data that it was trained on are refused. Speeds that it has measured stand for
            those that a job does not give.
        workers: Number of processes for the replays, this one included; outcomes do not depend on it.
        on_progress: Called with the number of replays done so far.

    Returns:
        The outcomes; print it for the table, call `plot()` for the figure.

    Raises:
        InputError: No policy or two of one name, an unknown preset, a start outside the history or within the data
            that a model was trained on, a job that can never finish, or less than one worker.
        PolicyError: A policy lacks a required member, raised an exception, or made an impossible request.
    """
    job, policies = job_first(job, policies)
    check_policies(policies)
    bundle = read_models(models)
    jobs = jobs_of(job)
    scenario = Scenario(
        jobs if bundle is None else tuple(measured(each, bundle.speeds) for each in jobs),
        prices,
        billing_preset(billing) if isinstance(billing, str) else billing,
        availability,
        delay or StartDelay(),
        catalogue or default_catalogue(),
        seed,
        tuple(curves),
        egress or EgressPrices(),
        speed_noise,
        goals or Goals(),
    )
    starts_s = start_times(scenario, starts)
    if bundle is not None:
        bundle.check_unseen(starts_s)
    found = replay_all(scenario, policies, starts_s, workers=workers, on_progress=on_progress)
    versions = {} if bundle is None else bundle.versions
    return BacktestResult(tuple(policies), scenario, starts_s, found.outcomes, versions)


def start_times(scenario: Scenario, starts: int | Sequence[Time]) -> tuple[float, ...]:
    """The times at which replays of a scenario begin, seconds since 1970; checks first that its jobs can finish.

    Args:
        scenario: The jobs, prices and rules; its seed is that of the drawn times.
        starts: Number of times to draw, or the times themselves.

    Raises:
        InputError: There is no job, a job can never finish, or a start is outside the history.
    """
    jobs, prices = scenario.jobs, scenario.prices
    if not jobs:
        raise InputError("no job to run; give one or more")
    for job in jobs:
        check_can_finish(job, prices, scenario.billing.max_lifetime_s, scenario.catalogue)
    if not isinstance(starts, int):
        return given_starts(prices, starts)
    longest = max(jobs, key=lambda job: job.steps)
    return draw_starts(longest, prices, starts, scenario.seed, scenario.catalogue)


def job_first(
    job: Job | Sequence[Job], policies: Sequence[Policy]
) -> tuple[Job | Sequence[Job], Sequence[Policy]]:
    """The work and the policies, whatever order they are given in: policies stood first before."""
    given: Any = policies
    if isinstance(given, Job) or (isinstance(given, Sequence) and given and isinstance(given[0], Job)):
        warnings.warn("the job stands first now, then the policies", FutureWarning, stacklevel=3)
        former: Any = job
        return given, former
    return job, policies


def check_policies(policies: Sequence[Policy]) -> None:
    """Raise `InputError` for no policy at all, or two of one name."""
    names = [checked_policy(policy).name for policy in policies]
    if not policies:
        raise InputError("no policy to backtest; give one or more")
    if len(set(names)) < len(names):
        raise InputError(f"two policies are named {next(name for name in names if names.count(name) > 1)!r}")
