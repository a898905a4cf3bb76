"""The pipeline's `execute`: a job of each kind under several policies, with a model bundle and without it.

Every policy that asks models runs twice from the same starts. All starts are on days after those that any part of
the bundle was trained on; others are an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbtide.backtesting.backtest import start_times
from ebbtide.backtesting.record import BacktestRecord, outcome_rows
from ebbtide.backtesting.replays import replay_all
from ebbtide.backtesting.result import about_backtest
from ebbtide.base.json_values import finite
from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError, unknown_name
from ebbtide.forecasts.bundle import ModelBundle
from ebbtide.forecasts.capacity.drawing import drawn_availability
from ebbtide.forecasts.capacity.models import default_spell_models
from ebbtide.forecasts.learning_curves.curves import Curve
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
from ebbtide.policies.registry import ASK_MODELS, check_names, policy
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.stand_in_curves import stand_in_curves

if TYPE_CHECKING:
    import pandas as pd

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
class PreparedRun:
    """A run's job as the engine replays it, from its starts.

    Attributes:
        run: The job's name, policies and settings.
        models: The bundle that policies ask.
        scenario: Jobs, prices, capacity and rules; a job for each trial.
        starts_s: Start times, seconds since 1970.
        deadline_h: Hours from the start to the deadline; None: there is none.
        sweep: The sweep that the jobs come from, where they do.
        book: The cookbook for the job, where it is a workflow.
    """

    run: JobRun
    models: ModelBundle
    scenario: Scenario
    starts_s: tuple[float, ...]
    deadline_h: float | None = None
    sweep: Runnable | None = None
    book: Cookbook | None = None

    def policy(self, name: str) -> Policy:
        """The policy of a name, with the models, or without them if the name says so.

        Raises:
            InputError: No policy has this name.
        """
        own, asked = name.removesuffix(WITHOUT), None if name.endswith(WITHOUT) else self.models
        if own == COOKBOOK and self.book is not None:
            (market,) = self.scenario.prices.markets
            return Renamed(FollowCookbook(self.book, market), name)
        if self.sweep is None:
            found = for_goals(policy(own, asked), self.scenario.goals)
        else:
            found = policy_for(self.sweep, own, None, asked)
        return found if asked is not None else Renamed(found, name)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Outcomes of one policy from every start, as rows of plain values (`outcome_rows`)."""
        return outcome_rows(replay_all(self.scenario, [self.policy(name)], self.starts_s).outcomes)

    def shown(self, name: str, start_s: float) -> Outcome:
        """The outcome of one policy from one start, with its timeline."""
        return self.scenario.run(self.policy(name), start_s, record=True)

    def record(self, outcomes: pd.DataFrame, shown: Mapping[str, Outcome]) -> BacktestRecord:
        """The record of all policies, with the deadline, and what to rent at the newest prices.

        Args:
            outcomes: A row for each policy and start.
            shown: Each policy's outcome from the start that reports show.
        """
        about = about_backtest(self.scenario, self.starts_s, self.models.versions)
        about |= {"policy": self.policy(self.run.policies[0]).name, "rent": self._first_requests()}
        if self.deadline_h is not None:
            about["deadline_h"] = self.deadline_h
        return BacktestRecord.of(about, outcomes, shown, self.scenario.prices)

    def _first_requests(self) -> list[dict[str, Any]]:
        """Requests that the first policy would make at the end of the prices, as plain values."""
        rule = self.policy(self.run.policies[0])
        return [
            {
                "market": str(action.market),
                "on_demand": action.on_demand,
                "machines": action.count,
                "max_price_usd_per_hour": finite(action.max_price_usd_per_hour),
            }
            for action in rule.decide(self.scenario.at_end(rule))
            if isinstance(action, Request)
        ]


def prepared(
    run: JobRun, models: ModelBundle, prices: PriceHistory, availability: Availability | None = None
) -> PreparedRun:
    """Read the job of a run, and find its starts.

    Args:
        run: The job, and how it is replayed.
        models: The bundle, with the cookbook for a workflow.
        prices: Prices from the end of the days that the bundle was trained on.
        availability: Recorded capacity, where that decides; None: drawn from the models of the package.

    Raises:
        InputError: The file is not what it should be, the market is unknown, a workflow has no cookbook, a job
            cannot finish, or a start is within the days that a part of the bundle was trained on.
    """
    if run.market is not None:
        named = {str(market): market for market in prices}
        if run.market not in named:
            raise unknown_name("market", run.market, named)
        prices = prices.select([named[run.market]])
    book, sweep, deadline_h, goals = None, None, None, Goals()
    if kind_of(read_mapping(run.job, "job, sweep or workflow")) is FileKind.WORKFLOW:
        job, book = _workflow(run, models, prices)
        jobs: tuple[Job, ...] = (job,)
        deadline_h = book.problem.market.steps * book.problem.step_h
        goals = Goals(deadline_s=deadline_h * HOUR_S)
    else:
        work = read_work(run.job, speeds=models.speeds)
        jobs, sweep, prices = work.jobs, work.sweep, work.allowed(prices, default_catalogue())
        if sweep is not None:
            deadline_h, goals = sweep.deadline_h, Goals.of(sweep)
    scenario = Scenario(
        jobs=jobs,
        prices=prices,
        billing=billing_preset(run.billing),
        availability=_capacity(run, jobs, sweep, prices, availability),
        seed=run.seed,
        curves=_curves(jobs, sweep),
        goals=goals,
    )
    starts_s = start_times(scenario, _starts(run, prices, deadline_h))
    models.check_unseen(starts_s)
    ready = PreparedRun(
        run=run,
        models=models,
        scenario=scenario,
        starts_s=starts_s,
        deadline_h=deadline_h,
        sweep=sweep,
        book=book,
    )
    check_names([ready.policy(name) for name in run.names(models)])
    return ready


def _workflow(run: JobRun, models: ModelBundle, prices: PriceHistory) -> tuple[Job, Cookbook]:
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
    return elastic_job(workflow, market.instance_type).model_copy(update={"machines": fixed}), book


def _capacity(
    run: JobRun,
    jobs: Sequence[Job],
    sweep: Runnable | None,
    prices: PriceHistory,
    availability: Availability | None,
) -> Availability | None:
    """Capacity of the markets where it decides.

    Capacity takes machines where prices do not, and wherever a job says so. Probes ask for one machine: where they
    had one, the whole job finds its machines. Where capacity is not recorded, it is drawn from the models of the
    package, not from those of the bundle, which policies ask.
    """
    says_so = sweep is not None and sweep.decides is Decides.CAPACITY
    if not says_so and billing_preset(run.billing).price_revokes:
        return None
    machines = sum(job.most_machines for job in jobs)
    if availability is None:
        return drawn_availability(prices, default_spell_models(), machines, run.seed)
    return Availability(
        {
            market: CapacitySeries(series.times_s, series.nodes * machines, series.end_s)
            for market, series in availability.items()
            if market in prices
        }
    )


def _curves(jobs: Sequence[Job], sweep: Runnable | None) -> tuple[Curve, ...]:
    """Metrics of the trials of a sweep, where they are compared."""
    curves: list[Curve] = []
    for part in sweep.parts if sweep is not None and len(jobs) > 1 else ():
        own = jobs[len(curves) : len(curves) + len(part.trials())]
        curves += stand_in_curves(own, maximise=part.direction is Direction.MAXIMIZE)
    return tuple(curves)


def _starts(run: JobRun, prices: PriceHistory, deadline_h: float | None) -> int | list[float]:
    if run.every_h is None:
        return run.starts
    # The last start leaves room for the deadline, or for a day.
    room_s = DAY_S if deadline_h is None else deadline_h * HOUR_S
    starts = [prices.start_s + number * run.every_h * HOUR_S for number in range(run.starts)]
    kept = [start_s for start_s in starts if start_s + room_s <= prices.end_s]
    if not kept:
        raise InputError(f"no start of {run.name} leaves {room_s / HOUR_S:g} h of prices; hold back more days")
    return kept


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
