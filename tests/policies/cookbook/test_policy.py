"""A cookbook on the engine: the vectorised evaluation to the cent, trace by trace."""

from __future__ import annotations

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.execution.start_delay import StartDelay
from ebbtide.experiments.cookbook_replays import play_dynamically, play_strictly
from ebbtide.experiments.scenario import Scenario
from ebbtide.market.price_chain import PriceChain
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.cookbook.policy import FollowCookbook, elastic_job
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
from ebbtide.policies.cookbook.solving import solve
from ebbtide.utc import HOUR_S, to_epoch_s
from ebbtide.workloads.job import Amdahl
from ebbtide.workloads.workflow import Workflow, WorkflowJob

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


def on_the_engine(book: Cookbook, trace: np.ndarray, dynamic: bool) -> eb.Outcome:
    times_s = MONDAY_S + np.arange(len(trace)) * TICK_S
    changed = np.append(True, np.diff(trace.astype(int)) != 0)
    series = PriceSeries(times_s[changed], chain().prices[trace][changed])
    prices = eb.PriceHistory({MARKET: series}, start_s=MONDAY_S, end_s=MONDAY_S + (HOURS + 2) * HOUR_S)
    scenario = Scenario((elastic_job(WORK, "c3.xlarge"),), prices, eb.billing_preset("per-second"), delay=StartDelay(0.0, 0.0))
    return scenario.run(FollowCookbook(book, MARKET, dynamic=dynamic), MONDAY_S)


def test_two_hundred_traces_cost_what_the_fast_path_says(book: Cookbook) -> None:
    traces = chain().simulate(MONDAY_S, 0.15, HOURS * 6, 200, seed=8)
    found = play_strictly(book, traces, TICK_S)
    for run, trace in enumerate(traces):
        outcome = on_the_engine(book, trace, dynamic=False)
        assert outcome.finished
        assert outcome.cost_usd == pytest.approx(found.cost_usd[run], abs=0.005)
        assert outcome.makespan_s / HOUR_S == pytest.approx(found.hours[run], abs=0.01)


def test_asked_at_any_time_it_meets_the_deadline_for_about_as_much(book: Cookbook) -> None:
    """The fast path asks at every tick at which machines are held, the engine when something has changed."""
    traces = chain().simulate(MONDAY_S, 0.15, HOURS * 6, 60, seed=9)
    found = play_dynamically(book, traces, TICK_S)
    outcomes = [on_the_engine(book, trace, dynamic=True) for trace in traces]
    assert all(outcome.makespan_s <= HOURS * HOUR_S + 2.0 for outcome in outcomes)
    assert np.mean([outcome.cost_usd for outcome in outcomes]) == pytest.approx(found.cost_usd.mean(), rel=0.05)


def test_what_the_engine_cannot_run_is_refused(book: Cookbook) -> None:
    two = Workflow(name="w", jobs=(*WORK.jobs, *WORK.jobs))
    with pytest.raises(InputError, match="w has 2 jobs"):
        elastic_job(two, "c3.xlarge")
    problem = CookbookProblem(two, book.problem.market, most=15)
    with pytest.raises(InputError, match="workflows of one job"):
        FollowCookbook(solve(problem), MARKET)
