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
