"""The pipeline's `execute`: a job of each kind under several policies, with a model bundle and without it.

Every policy that asks models runs twice from the same starts. All starts are on days after those that any part of
the bundle was trained on; others are an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ebbtide.backtesting.backtest import backtest
from ebbtide.backtesting.record import BacktestRecord
from ebbtide.backtesting.result import BacktestResult
from ebbtide.base.json_values import finite
from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError, unknown_name
from ebbtide.forecasts.bundle import ModelBundle
from ebbtide.forecasts.capacity.drawing import drawn_availability
from ebbtide.forecasts.capacity.models import default_spell_models
from ebbtide.jobs.common_fields import Decides, Direction
from ebbtide.jobs.job import Job
from ebbtide.jobs.job_files import FileKind, kind_of, read_work
from ebbtide.jobs.job_list import Runnable
from ebbtide.jobs.parsing import read_mapping
from ebbtide.jobs.workflow import Workflow
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.billing import billing_preset
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.actions import Action, Request
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.goals import Goals, for_goals
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.api.view import View
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.cookbook.policy import FollowCookbook, elastic_job
from ebbtide.policies.cookbook.storage import load_cookbook
from ebbtide.policies.for_job import policy_for
from ebbtide.policies.registry import ASK_MODELS, policy
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.stand_in_curves import stand_in_curves

# Added to the name of a policy that runs without the models that it could ask.
WITHOUT = "-without-models"

# The policy of a workflow that follows the bundle's cookbook.
COOKBOOK = "cookbook"

_FILE, _FIELD = "params.yaml", "execute.runs"


@dataclass(frozen=True)
class JobRun:
    """A job that `execute` replays.

    Attributes:
        name: Name of the run in reports.
        job: File of the job, sweep or workflow.
        policies: Names of the policies; `cookbook` follows the one of the bundle.
        starts: Number of starts that each policy has.
        seed: Seed of the starts and of the policies' random numbers.
        billing: Name of the billing preset.
        market: The only market that is rented in; None: all that the job allows.
        every_h: Hours from one start to the next, from the first day on; None: starts are drawn at random.
    """

    name: str
    job: Path
    policies: tuple[str, ...]
    starts: int
    seed: int
    billing: str
    market: str | None = None
    every_h: float | None = None

    def names(self, models: ModelBundle) -> tuple[str, ...]:
        """The policies, those that ask a part of these models also without them."""
        parts = set(models.parts)
        if billing_preset(self.billing).price_revokes:
            # There it counts only once a run has seen capacity take a machine, which these replays have not.
            parts -= {"hazard"}
        asks = {name for name in self.policies if parts.intersection(ASK_MODELS.get(name, ()))}
        return tuple(
            each for name in self.policies for each in ((name, name + WITHOUT) if name in asks else (name,))
        )


@dataclass(frozen=True)
class ExecutedRun:
    """A run's job as the engine replays it.

    Attributes:
        jobs: The job, or one job for each trial.
        prices: Prices of the markets that may be rented in.
        deadline_h: Hours from the start to the deadline; None: there is none.
        sweep: The sweep that the jobs come from, where they do.
        book: The cookbook for the job, where it is a workflow.
    """

    jobs: tuple[Job, ...]
    prices: PriceHistory
    deadline_h: float | None = None
    sweep: Runnable | None = None
    book: Cookbook | None = None

    @property
    def goals(self) -> Goals:
        """Goals of the jobs: those that their file gives, or the deadline of a workflow."""
        if self.sweep is not None:
            return Goals.of(self.sweep)
        return Goals() if self.deadline_h is None else Goals(deadline_s=self.deadline_h * HOUR_S)

    def policy(self, name: str, models: ModelBundle) -> Policy:
        """The policy of a name, with the models, or without them if the name says so.

        Raises:
            InputError: No policy has this name.
        """
        own, asked = name.removesuffix(WITHOUT), None if name.endswith(WITHOUT) else models
        if own == COOKBOOK and self.book is not None:
            (market,) = self.prices.markets
            return Renamed(FollowCookbook(self.book, market), name)
        if self.sweep is None:
            found = for_goals(policy(own, asked), self.goals)
        else:
            found = policy_for(self.sweep, own, None, asked)
        return found if asked is not None else Renamed(found, name)


def played(run: JobRun, models: ModelBundle, prices: PriceHistory) -> ExecutedRun:
    """Read the job of a run.

    Args:
        run: The run to prepare.
        models: The bundle, with the cookbook for a workflow.
        prices: Prices that it is replayed on.

    Raises:
        InputError: The file is not what it should be, the market is unknown, or a workflow has no cookbook.
    """
    if run.market is not None:
        named = {str(market): market for market in prices}
        if run.market not in named:
            raise unknown_name("market", run.market, named)
        prices = prices.select([named[run.market]])
    if kind_of(read_mapping(run.job, "job, sweep or workflow")) is FileKind.WORKFLOW:
        return _workflow(run, models, prices)
    work = read_work(run.job, speeds=models.speeds)
    deadline_h = None if work.sweep is None else work.sweep.deadline_h
    return ExecutedRun(work.jobs, work.allowed(prices, default_catalogue()), deadline_h, work.sweep)


def _workflow(run: JobRun, models: ModelBundle, prices: PriceHistory) -> ExecutedRun:
    """A workflow with the bundle's cookbook; other policies hold the fewest machines that keep its deadline."""
    field = f"{_FIELD}.{run.name}"
    if len(prices) != 1:
        raise InputError("is a workflow; give the market that its cookbook is for", file=_FILE, field=field)
    (market,) = prices.markets
    book, workflow = load_cookbook(models.solved(COOKBOOK)), Workflow.read(run.job)
    if book.problem.workflow != workflow:
        solved_for = book.problem.workflow.name
        raise InputError(f"the cookbook of {models.folder} is for another workflow, {solved_for}", file=run.job)
    chain = models.price_chains.get(market)
    if chain is None or chain.prices.tolist() != book.problem.market.prices.tolist():
        raise InputError(
            f"the cookbook of {models.folder} is not for {market}", file=_FILE, field=f"{field}.market"
        )
    deadline_h = book.problem.market.steps * book.problem.step_h
    sizes = range(1, book.problem.most + 1)
    fixed = next((size for size in sizes if workflow.finish_h(workflow.work_h, 0, size) < deadline_h), sizes[-1])
    job = elastic_job(workflow, market.instance_type).model_copy(update={"machines": fixed})
    return ExecutedRun((job,), prices, deadline_h, book=book)


def executed(
    run: JobRun,
    name: str,
    models: ModelBundle,
    prices: PriceHistory,
    availability: Availability | None = None,
) -> BacktestResult:
    """Backtest one policy of a run from every start.

    Args:
        run: The job, and how it is replayed.
        name: Name of the policy, as `JobRun.names` gives it.
        models: The bundle that it asks, unless its name says that it does not.
        prices: Prices from the end of the days that the bundle was trained on.
        availability: Recorded capacity, where that decides; None: drawn from the models of the package.

    Raises:
        InputError: A start is within the days that a part of the bundle was trained on, or something of the run
            is unknown.
    """
    work = played(run, models, prices)
    capacity, curves = _conditions(run, work, availability)
    return backtest(
        [work.policy(name, models)],
        work.jobs,
        work.prices,
        billing=run.billing,
        starts=_starts(run, work),
        seed=run.seed,
        availability=capacity,
        curves=curves,
        goals=work.goals,
        models=models,
    )


def _conditions(
    run: JobRun, work: ExecutedRun, availability: Availability | None
) -> tuple[Availability | None, Sequence[Any]]:
    """Capacity of the markets where it decides, and metrics of the trials where they are compared.

    Capacity takes machines where prices do not, and wherever a job says so. Probes ask for one machine: where they
    had one, the whole job finds its machines. Where capacity is not recorded, it is drawn from the models of the
    package, not from those of the bundle, which policies ask.
    """
    says_so = work.sweep is not None and work.sweep.decides is Decides.CAPACITY
    capacity = None
    if says_so or not billing_preset(run.billing).price_revokes:
        machines = sum(job.most_machines for job in work.jobs)
        if availability is None:
            capacity = drawn_availability(work.prices, default_spell_models(), machines, run.seed)
        else:
            capacity = Availability(
                {
                    market: CapacitySeries(series.times_s, series.nodes * machines, series.end_s)
                    for market, series in availability.items()
                    if market in work.prices
                }
            )
    curves: list[Any] = []
    for part in work.sweep.parts if work.sweep is not None and len(work.jobs) > 1 else ():
        own = work.jobs[len(curves) : len(curves) + len(part.trials())]
        curves += stand_in_curves(own, maximise=part.direction is Direction.MAXIMIZE)
    return capacity, curves


def _starts(run: JobRun, work: ExecutedRun) -> int | list[float]:
    if run.every_h is None:
        return run.starts
    # The last start leaves room for the deadline, or for a day.
    room_s = DAY_S if work.deadline_h is None else work.deadline_h * HOUR_S
    starts = [work.prices.start_s + number * run.every_h * HOUR_S for number in range(run.starts)]
    kept = [start_s for start_s in starts if start_s + room_s <= work.prices.end_s]
    if not kept:
        raise InputError(f"no start of {run.name} leaves {room_s / HOUR_S:g} h of prices; hold back more days")
    return kept


def record_of(
    run: JobRun, results: Sequence[BacktestResult], models: ModelBundle, prices: PriceHistory
) -> BacktestRecord:
    """The record of a run: the results of its policies, its deadline, and what to rent at the newest prices."""
    record = BacktestResult.joined(results).record()
    work = played(run, models, prices)
    about = {**record.about, "policy": run.policies[0], "rent": first_requests(run, work, models)}
    if work.deadline_h is not None:
        about["deadline_h"] = work.deadline_h
    return replace(record, about=about)


def first_requests(run: JobRun, work: ExecutedRun, models: ModelBundle) -> list[dict[str, Any]]:
    """Requests that the first policy of a run would make at the end of the prices, as plain values."""
    rule = work.policy(run.policies[0], models)
    view = Scenario(work.jobs, work.prices, billing_preset(run.billing), goals=work.goals).at_end(rule)
    return [
        {
            "market": str(action.market),
            "on_demand": action.on_demand,
            "machines": action.count,
            "max_price_usd_per_hour": finite(action.max_price_usd_per_hour),
        }
        for action in rule.decide(view)
        if isinstance(action, Request)
    ]


@dataclass(frozen=True)
class Renamed:
    """A policy under another name.

    Attributes:
        policy: The policy that decides.
        name: The name in tables.
    """

    policy: Policy
    name: str

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return self.policy.wakes_on

    @property
    def period_lead_s(self) -> float:
        return getattr(self.policy, "period_lead_s", 0.0)

    def decide(self, view: View) -> Iterable[Action]:
        return self.policy.decide(view)
