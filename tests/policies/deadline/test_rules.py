"""The answers of `deadline` between two ticks of its table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.markets import START_S

from ebbtide.base.compiled_records import NOTHING, ON_DEMAND, SPOT, ZonesNow
from ebbtide.base.utc import HOUR_S
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, SpellModel
from ebbtide.market.markets import Market
from ebbtide.policies.deadline import table as tables
from ebbtide.policies.deadline.costs import zones_problem
from ebbtide.policies.deadline.rules import by_table, costs_by_table
from ebbtide.policies.deadline.table import ZoneTable, solve_zones

EAST = Market("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
USUAL = SpellModel(np.array([[1.0] * len(AGE_BINS_S), [0.2] * len(AGE_BINS_S)]))
RESTART_H = 320 / HOUR_S


def solved() -> ZoneTable:
    """Half an hour of work within two days."""
    problem = zones_problem(
        [(str(EAST), EAST.place)],
        (0.2,),
        0.8,
        work_h=0.6,
        deadline_h=48.0,
        restart_h=RESTART_H,
        checkpoint_bytes=0,
    )
    return solve_zones(problem, [USUAL], begins_s=START_S)


TABLE = solved()


def moment(held: int, left_s: float, work_s: float) -> ZonesNow:
    return ZonesNow(
        left_s,
        left_s - work_s,
        600.0,
        np.array([0.2]),
        0,
        held,
        1200.0,
        np.array([5000.0]),
        True,
        False,
        -1,
        False,
        -1,
        0.0,
    )


@given(st.floats(HOUR_S, 47 * HOUR_S), st.floats(60.0, 2000.0))
def test_a_spot_machine_that_does_the_rest_of_the_work_is_kept(left_s: float, work_s: float) -> None:
    # Rounded to a tick, the time left would make work of less than a tick disappear: waiting would cost nothing.
    now = moment(SPOT, left_s + work_s, work_s)
    assert by_table(TABLE.costs, TABLE.problem.task, now) == 0


@pytest.mark.parametrize("held", [NOTHING, SPOT, ON_DEMAND])
@given(work_s=st.floats(700.0, 2000.0), tick=st.integers(30, 200), share=st.floats(0.0, 1.0))
def test_costs_between_two_ticks_lie_between_theirs(held: int, work_s: float, tick: int, share: float) -> None:
    before, at, after = (
        costs_by_table(TABLE.costs, TABLE.problem.task, moment(held, (tick + one) * TABLE.tick_s, work_s))
        for one in (0.0, share, 1.0)
    )
    least, most = np.minimum(before, after), np.maximum(before, after)
    assert ((least - 1e-6 <= at) & (at <= most + 1e-6)).all()


WEST = Market("aws", "us-west-2", "us-west-2a", "p3.2xlarge")
BRIEF = SpellModel(np.array([[2.0] * len(AGE_BINS_S), [1.5] * len(AGE_BINS_S)]))


@pytest.mark.parametrize(
    ("restart_h", "more"),
    [
        (RESTART_H, {}),
        (RESTART_H, {"speed": (1.0, 0.7)}),
        (RESTART_H, {"speed": (1.6, 0.9), "look_s": 60.0}),
        # A start takes longer than a tick.
        (0.5, {"look_s": 60.0}),
    ],
)
@pytest.mark.parametrize("gamma", [0.0, 0.3])
def test_states_that_a_job_cannot_be_in_need_not_be_solved(
    restart_h: float, more: dict[str, float], gamma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = zones_problem(
        [(str(market), market.place) for market in (EAST, WEST)],
        (0.2, 0.15),
        0.8,
        work_h=0.6,
        deadline_h=20.0,
        restart_h=restart_h,
        checkpoint_bytes=10**9,
        **more,
    )
    found = solve_zones(problem, [USUAL, BRIEF], begins_s=START_S, gamma=gamma)
    monkeypatch.setattr(tables, "_MOST_TIMES_WORK", 1e6)
    whole = solve_zones(problem, [USUAL, BRIEF], begins_s=START_S, gamma=gamma)
    start_s = problem.task.start_s.max() * problem.task.speed.max()
    most_s = 4.0 * 0.6 * HOUR_S + 6.0 * found.tick_s + start_s if restart_h < 0.1 else np.inf
    ticks, steps = found.usd.shape[0], found.usd.shape[-1]
    to_do_s = np.arange(ticks)[:, None] * found.tick_s - np.arange(steps) * found.step_s
    solved = to_do_s <= most_s + 1e-6
    assert solved.all() == (restart_h > 0.1)
    same = np.moveaxis(found.usd == whole.usd, -1, 1)
    assert same[solved].all()
    # More work costs more, and no less than the last that is solved: a machine is worth holding there, too.
    for left in range(1, ticks):
        first = int(np.argmax(solved[left])) if solved[left].any() else steps - 1
        more = -np.diff(found.usd[left, ..., : first + 2].astype(float), axis=-1)
        assert (more >= -1e-3).all()


def test_a_machine_is_kept_where_a_job_takes_far_longer_than_it_said() -> None:
    """Half an hour of work was planned for, and ten hours are left."""
    for held in (NOTHING, SPOT):
        assert by_table(TABLE.costs, TABLE.problem.task, moment(held, 40 * HOUR_S, 10 * HOUR_S)) == 0
