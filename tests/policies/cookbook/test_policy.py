"""A cookbook on the engine: the vectorised evaluation to the cent, trace by trace."""

from __future__ import annotations

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.base.utc import HOUR_S, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.forecasts.price_chain import PriceChain
from ebbtide.jobs.job import Amdahl
from ebbtide.jobs.workflow import Workflow, WorkflowJob
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.cookbook.policy import FollowCookbook, elastic_job
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
from ebbtide.policies.cookbook.solving import solve
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import StartDelay
from ebbtide_papers.cumulon.cookbook_replays import play_dynamically, play_strictly

MONDAY_S = to_epoch_s("2014-01-06T00:00:00Z")
TICK_S, HOURS = 600.0, 8
MARKET = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")
WORK = Workflow(name="w", jobs=(WorkflowJob(name="a", work_h=10, speedup=Amdahl(parallel=0.97)),))


def chain() -> PriceChain:
    rows = np.array([[0.9, 0.08, 0.02], [0.15, 0.75, 0.1], [0.05, 0.15, 0.8]])
    return PriceChain(np.array([0.02, 0.15, 1.0]), np.tile(rows, (168, 1, 1)), TICK_S)


@pytest.fixture(scope="module")
def book() -> Cookbook:
    steps = chain().steps(MONDAY_S, HOURS, HOUR_S)
    return solve(CookbookProblem(WORK, ChargeModel(chain().prices, *steps), most=15, work_unit_h=0.5))


def on_the_engine(book: Cookbook, trace: np.ndarray, dynamic: bool) -> eb.types.Outcome:
    times_s = MONDAY_S + np.arange(len(trace)) * TICK_S
    changed = np.append(True, np.diff(trace.astype(int)) != 0)
    series = PriceSeries(times_s[changed], chain().prices[trace][changed])
    prices = eb.PriceHistory({MARKET: series}, start_s=MONDAY_S, end_s=MONDAY_S + (HOURS + 2) * HOUR_S)
    scenario = Scenario(
        (elastic_job(book.problem.workflow, "c3.xlarge"),),
        prices,
        eb.billing_preset("per-second"),
        delay=StartDelay(0.0, 0.0),
    )
    return scenario.run(FollowCookbook(book, MARKET, dynamic=dynamic, asked_every_s=TICK_S), MONDAY_S)


@pytest.mark.parametrize("dynamic", [False, True])
def test_two_hundred_traces_cost_what_the_fast_path_says(book: Cookbook, dynamic: bool) -> None:
    traces = chain().simulate(MONDAY_S, 0.15, HOURS * 6, 200, seed=8)
    found = (play_dynamically if dynamic else play_strictly)(book, traces, TICK_S)
    for run, trace in enumerate(traces):
        outcome = on_the_engine(book, trace, dynamic=dynamic)
        assert outcome.finished
        assert outcome.cost_usd == pytest.approx(found.cost_usd[run], abs=0.005)
        assert outcome.makespan_s / HOUR_S == pytest.approx(found.hours[run], abs=0.01)


def test_jobs_come_one_after_the_other_each_at_its_own_speedup(book: Cookbook) -> None:
    slow = WorkflowJob(name="b", work_h=2, speedup=Amdahl(parallel=0.5))
    work = Workflow(
        name="w", jobs=(*WORK.jobs, slow, WorkflowJob(name="c", work_h=3, speedup=Amdahl(parallel=1.0)))
    )
    two = solve(CookbookProblem(work, book.problem.market, most=15, work_unit_h=0.5))
    traces = chain().simulate(MONDAY_S, 0.15, HOURS * 6, 100, seed=10)
    found = play_strictly(two, traces, TICK_S)
    for run, trace in enumerate(traces):
        outcome = on_the_engine(two, trace, dynamic=False)
        assert outcome.cost_usd == pytest.approx(found.cost_usd[run], abs=0.005)


def test_what_cannot_be_followed_is_refused(book: Cookbook) -> None:
    problem = CookbookProblem(WORK, book.problem.market, most=8, charge_steps=2)
    with pytest.raises(InputError, match="charges last no longer than a step"):
        FollowCookbook(solve(problem), MARKET)
