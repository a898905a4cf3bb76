"""Deadlines: runs by hand, the optimum against every schedule, the table against chance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.base.compiled_records import (
    ALWAYS_ON_DEMAND,
    GREEDY,
    NOTHING,
    ON_DEMAND,
    SPOT,
    TABLE,
    UNIFORM_PROGRESS,
    ZonesTape,
)
from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, SpellModel
from ebbtide.policies.deadline.costs import DeadlineProblem
from ebbtide.policies.deadline.table import DeadlineTable, solve_deadline
from ebbtide_papers.deadlines.deadline_hindsight import in_one_zone, least_cost
from ebbtide_papers.deadlines.deadline_runs import run_zone

TICK_S = 600.0


def run(
    problem: DeadlineProblem, available: list[bool] | np.ndarray, rule: int, table: DeadlineTable | None = None
) -> tuple[float, float, int]:
    return run_zone(rule, problem, np.asarray(available, dtype=bool), TICK_S, 0, 0.0, table)


def least(problem: DeadlineProblem, available: list[bool], step_s: float) -> float:
    up = np.asarray(available, dtype=bool)[None]
    tape = ZonesTape(up, np.full(up.shape, problem.spot_usd_per_hour), TICK_S)
    return least_cost(in_one_zone(problem), tape, 0, step_s)


def test_runs_by_hand() -> None:
    """Half an hour of work within an hour; a start takes six minutes; 1 and 3 USD an hour."""
    problem = DeadlineProblem(0.5, 1.0, 0.1, 1.0, 3.0)
    on_demand = (0.6 * 3.0, 0.0, 1)
    assert run(problem, [True] * 6, ALWAYS_ON_DEMAND) == pytest.approx(on_demand)
    assert run(problem, [True] * 6, GREEDY) == pytest.approx((0.6, 0.0, 1))
    # Nothing is available: it waits two ticks, and a third would leave no room for the start.
    assert run(problem, [False] * 6, GREEDY) == pytest.approx(on_demand)
    # Ten minutes of spot (four of them work), then none: a start on demand, and the other twenty-six minutes.
    assert run(problem, [True] + [False] * 5, GREEDY) == pytest.approx((1 / 6 + (26 / 60 + 0.1) * 3.0, 0.0, 2))
    # Behind the line at once, it takes on-demand where greedy waits.
    slack = DeadlineProblem(0.5, 2.0, 0.1, 1.0, 3.0)
    later = [False, False] + [True] * 10
    assert run(slack, later, GREEDY) == pytest.approx((0.6, 0.0, 1))
    usd, late_h, starts = run(slack, later, UNIFORM_PROGRESS)
    # A tick on demand, four minutes of it work, then another until it is ahead, then spot for the rest.
    assert (late_h, starts) == (0.0, 2)
    assert usd == pytest.approx(2 / 6 * 3.0 + (16 / 60 + 0.1) * 1.0)


def test_a_deadline_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(InputError, match="a deadline of 2 h cannot be kept"):
        DeadlineProblem(2.0, 2.0, 0.1, 1.0, 3.0)
    with pytest.raises(InputError, match="restart_h is -1"):
        DeadlineProblem(2.0, 3.0, -1.0, 1.0, 3.0)


def every_schedule(problem: DeadlineProblem, available: list[bool]) -> float:
    """The least cost of all 3^ticks of them."""
    best = np.inf
    for choices in itertools.product((NOTHING, SPOT, ON_DEMAND), repeat=len(available)):
        if any(choice == SPOT and not up for choice, up in zip(choices, available, strict=True)):
            continue
        work_s, held, usd = problem.work_h * HOUR_S, NOTHING, 0.0
        for choice, up in zip(choices, available, strict=True):
            held = NOTHING if held == SPOT and not up else held
            if choice != NOTHING:
                overhead_s = 0.0 if choice == held else problem.restart_h * HOUR_S
                used_s = min(TICK_S, work_s + overhead_s)
                usd += (
                    used_s
                    / HOUR_S
                    * (problem.spot_usd_per_hour if choice == SPOT else problem.on_demand_usd_per_hour)
                )
                work_s -= used_s - overhead_s
            held = choice
            if work_s <= 1e-9:
                best = min(best, usd)
                break
    return best


@settings(max_examples=40)
@given(
    st.lists(st.booleans(), min_size=7, max_size=7),
    st.sampled_from([0.0, 1 / 30, 0.1]),
    st.sampled_from([2, 3, 4]),
)
def test_the_optimum_is_that_of_every_schedule(available: list[bool], restart_h: float, work_ticks: int) -> None:
    """All times are multiples of two minutes, as is the grid: no line between its steps is asked."""
    problem = DeadlineProblem(work_ticks / 6, 7 / 6, restart_h, 1.0, 3.0)
    assert least(problem, available, 120.0) == pytest.approx(every_schedule(problem, available))


@settings(max_examples=60)
@given(
    st.lists(st.booleans(), min_size=30, max_size=30),
    st.sampled_from([0.02, 0.05, 0.1, 0.2]),
    st.floats(0.25, 1.5),
    st.sampled_from([ALWAYS_ON_DEMAND, GREEDY, UNIFORM_PROGRESS]),
)
def test_no_deadline_is_missed_and_nobody_beats_the_optimum(
    available: list[bool], restart_h: float, slack_h: float, rule: int
) -> None:
    problem = DeadlineProblem(2.5, 2.5 + slack_h, restart_h, 1.0, 3.0)
    usd, late_h, _ = run(problem, available, rule)
    assert late_h == 0.0
    assert usd >= least(problem, available, 12.0) - 0.01


@pytest.fixture(scope="module")
def solved() -> tuple[DeadlineTable, SpellModel]:
    flat = SpellModel(np.array([[0.8] * len(AGE_BINS_S), [0.5] * len(AGE_BINS_S)]))
    return solve_deadline(DeadlineProblem(12.0, 18.0, 0.1, 1.0, 3.0), flat), flat


def test_the_table_costs_what_it_says_and_less_than_its_rivals(solved: tuple[DeadlineTable, SpellModel]) -> None:
    """Over records that the model draws: the program's expectation against the mean of runs."""
    table, model = solved
    random = np.random.default_rng(1)
    costs: dict[int, list[float]] = {TABLE: [], GREEDY: [], UNIFORM_PROGRESS: []}
    begun_up = []
    for _ in range(1_500):
        record = model.drawn(110, TICK_S, random)
        begun_up.append(record[0])
        for rule, into in costs.items():
            usd, late_h, _ = run(table.problem, record, rule, table if rule == TABLE else None)
            assert late_h == 0.0
            into.append(usd)
    ours = np.array(costs[TABLE])
    up = np.array(begun_up)
    for kind, mask in ((0, ~up), (1, up)):
        assert ours[mask].mean() == pytest.approx(table.expected_usd[kind], rel=0.03)
    assert ours.mean() < 0.98 * np.mean(costs[UNIFORM_PROGRESS])
    assert ours.mean() < np.mean(costs[GREEDY])


@settings(max_examples=60)
@given(st.lists(st.booleans(), min_size=110, max_size=110))
def test_the_table_keeps_the_deadline_on_any_record(available: list[bool]) -> None:
    flat = SpellModel(np.array([[0.8] * len(AGE_BINS_S), [0.5] * len(AGE_BINS_S)]))
    problem = DeadlineProblem(12.0, 13.0, 0.2, 1.0, 3.0)
    table = solve_deadline(problem, flat)
    _, late_h, _ = run(problem, available, TABLE, table)
    assert late_h == 0.0
