"""Cookbooks played strictly: against walking through it in Python, against the oracle, against what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide.base.utc import HOUR_S, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.forecasts.price_chain import PriceChain
from ebbtide.jobs.job import Amdahl
from ebbtide.jobs.workflow import Workflow, WorkflowJob
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
from ebbtide.policies.cookbook.solving import solve
from ebbtide_papers.cumulon.cookbook_replays import play_dynamically, play_strictly
from ebbtide_papers.cumulon.oracle import least_costs

MONDAY_S = to_epoch_s("2014-01-06T00:00:00Z")
TICK_S = 600.0
HOURS = 10


def chain() -> PriceChain:
    rows = np.array([[0.9, 0.08, 0.02], [0.15, 0.75, 0.1], [0.05, 0.15, 0.8]])
    return PriceChain(np.array([0.02, 0.15, 1.0]), np.tile(rows, (168, 1, 1)), TICK_S)


def cookbook(*, overhead_h: float = 0.0, jobs: int = 1, unit_h: float = 0.25) -> Cookbook:
    steps = chain().steps(MONDAY_S, HOURS, HOUR_S)
    made = tuple(
        WorkflowJob(name=str(n), work_h=12 / jobs, speedup=Amdahl(parallel=0.97 - 0.1 * n)) for n in range(jobs)
    )
    work = Workflow(name="w", jobs=made, start_work_h=overhead_h, stop_work_h=overhead_h)
    return solve(CookbookProblem(work, ChargeModel(chain().prices, *steps), most=20, work_unit_h=unit_h))


def by_hand(book: Cookbook, trace: np.ndarray) -> tuple[float, float]:
    """Step by step with `Workflow`, a tick at a time."""
    work, prices = book.problem.workflow, book.problem.market.prices
    left, held, usd = work.work_h, 0, 0.0
    ticks = int(HOUR_S / TICK_S)
    for step in range(HOURS):
        level = int(np.searchsorted(book.problem.levels_h, left - 1e-9))
        size = int(book.actions[step, level, held, trace[step * ticks]])
        done_h = work.finish_h(left, held, size)
        for tick in range(ticks):
            used_h = min(max(done_h - tick * TICK_S / HOUR_S, 0.0), TICK_S / HOUR_S)
            usd += size * prices[trace[step * ticks + tick]] * used_h
        if done_h <= 1.0 + 1e-9:
            return usd, step + done_h
        left, held = float(work.progress(left, held, size, 1.0)), size
    return usd, np.inf


@pytest.mark.parametrize(("overhead_h", "jobs"), [(0.0, 1), (0.1, 1), (0.05, 3)])
def test_it_is_what_walking_through_it_is(overhead_h: float, jobs: int) -> None:
    book = cookbook(overhead_h=overhead_h, jobs=jobs)
    traces = chain().simulate(MONDAY_S, 0.15, HOURS * 6, 200, seed=3)
    found = play_strictly(book, traces, TICK_S)
    for run, trace in enumerate(traces):
        usd, hours = by_hand(book, trace)
        assert found.cost_usd[run] == pytest.approx(usd, abs=1e-9)
        assert found.hours[run] == pytest.approx(hours, abs=1e-9)


@pytest.mark.parametrize("overhead_h", [0.0, 0.1])
def test_no_deadline_is_missed_and_no_trace_is_cheaper_than_the_oracle(overhead_h: float) -> None:
    book = cookbook(overhead_h=overhead_h)
    traces = chain().simulate(MONDAY_S, 1.0, HOURS * 6, 5_000, seed=4)
    found = play_strictly(book, traces, TICK_S)
    assert found.missed == 0
    least = least_costs(book.problem.workflow, chain().prices, traces, TICK_S, 20)
    assert (least <= found.cost_usd + 1e-9).all()
    assert least.mean() < found.cost_usd.mean()


@pytest.mark.parametrize(("overhead_h", "jobs"), [(0.0, 1), (0.05, 1), (0.02, 3)])
def test_asked_at_every_tick_no_deadline_is_missed_and_less_is_paid(overhead_h: float, jobs: int) -> None:
    """5.4, 6.2: dynamic mode gives up machines as soon as their price leaps, and takes them as soon as it falls."""
    book = cookbook(overhead_h=overhead_h, jobs=jobs)
    traces = chain().simulate(MONDAY_S, 0.15, HOURS * 6, 20_000, seed=6)
    strict, dynamic = play_strictly(book, traces, TICK_S), play_dynamically(book, traces, TICK_S)
    assert dynamic.missed == 0
    assert (dynamic.hours <= HOURS + 1e-9).all()
    assert dynamic.cost_usd.mean() < strict.cost_usd.mean()
    if jobs == 1:
        least = least_costs(book.problem.workflow, chain().prices, traces, TICK_S, 20)
        assert (least <= dynamic.cost_usd + 1e-9).all()


def test_where_the_price_stands_still_both_modes_are_one() -> None:
    """But for what is between two steps, where a constant price gives no reason to change."""
    book = cookbook()
    still = np.zeros((1, HOURS * 6), dtype=np.uint16)
    strict, dynamic = play_strictly(book, still, TICK_S), play_dynamically(book, still, TICK_S)
    assert dynamic.cost_usd[0] == pytest.approx(strict.cost_usd[0], rel=0.1)


def test_it_costs_what_the_cookbook_promises() -> None:
    """But for work between levels, of which the cookbook knows the mean and the player takes the upper."""
    book = cookbook(unit_h=0.05)
    traces = chain().simulate(MONDAY_S, 0.15, HOURS * 6, 40_000, seed=5)
    found = play_strictly(book, traces, TICK_S)
    promised, deviation = float(book.mean_usd[0, -1, 0, 1]), float(book.deviation_usd[0, -1, 0, 1])
    # A step that ends within an hour is charged to its end in the cookbook, and to the tick here.
    assert 0.9 * promised < found.cost_usd.mean() < 1.01 * promised
    assert found.cost_usd.std() == pytest.approx(deviation, rel=0.15)


def test_traces_that_are_too_short_are_refused() -> None:
    with pytest.raises(InputError, match="traces of 6 ticks are too short for 10 steps of 6"):
        play_strictly(cookbook(), chain().simulate(MONDAY_S, 0.02, 6, 3), TICK_S)
