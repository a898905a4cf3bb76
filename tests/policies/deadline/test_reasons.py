"""What `ebbtide why` shows of a decision of `deadline`: the cost of each choice, and of no other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.markets import START_S

from ebbtide.base.compiled_records import NOTHING, ON_DEMAND, SPOT, ZonesNow
from ebbtide.base.utc import HOUR_S
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, SpellModel
from ebbtide.market.markets import Market
from ebbtide.policies.deadline.costs import zones_problem
from ebbtide.policies.deadline.gangs import Gang
from ebbtide.policies.deadline.reasons import by_costs
from ebbtide.policies.deadline.rules import by_table
from ebbtide.policies.deadline.table import ZoneTable, solve_zones

EAST = Market("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
WEST = Market("aws", "us-west-2", "us-west-2b", "p3.2xlarge")
# Most spells end within ten minutes; one of twenty minutes lasts for hours. So it pays to watch a young one.
BINS = len(AGE_BINS_S)
BRIEF = SpellModel(np.array([[1.0] * BINS, [6.0 if age_s < 1200.0 else 0.05 for age_s in AGE_BINS_S]]))


@pytest.fixture(scope="module")
def table() -> ZoneTable:
    problem = zones_problem(
        [(str(EAST), EAST.place), (str(WEST), WEST.place)],
        (1.0, 1.0),
        3.06,
        work_h=4.0,
        deadline_h=8.0,
        restart_h=0.5,
        checkpoint_bytes=0,
        look_s=60.0,
    )
    return solve_zones(problem, [BRIEF, BRIEF], begins_s=START_S)


def moment(held: int) -> ZonesNow:
    """Three hours of work in seven. Both zones refused five minutes ago: what they give is young."""
    since_s = np.array([300.0, 300.0])
    prices = np.array([1.0, 1.0])
    return ZonesNow(
        7 * HOUR_S, 4 * HOUR_S, 600.0, prices, 0, held, 7200.0, since_s, True, False, -1, False, -1, 0.0
    )


def shown(table: ZoneTable, now: ZonesNow) -> dict[tuple[str, Market | None], float]:
    """The cost of each choice, USD, by what it is called and where."""
    answer = by_table(table.costs, table.problem.task, now)
    told = by_costs(table, [Gang(EAST), Gang(WEST)], now, answer)
    return {(each.choice, each.market): each.expected_usd for each in told.alternatives}


@pytest.mark.parametrize(("held", "zones"), [(ON_DEMAND, (EAST, WEST)), (SPOT, (WEST,))])
def test_while_a_machine_is_held_no_zone_is_shown_at_the_cost_of_only_watching_it(
    held: int, zones: tuple[Market, ...], table: ZoneTable
) -> None:
    keeps = replace(table, problem=replace(table.problem, look_s=math.inf))
    assert shown(table, moment(held)) == shown(keeps, moment(held))
    # With nothing held, watching these zones would cost less than keeping what they give.
    watched, kept = shown(table, moment(NOTHING)), shown(keeps, moment(NOTHING))
    assert all(watched["spot, 1 machine", zone] < 0.99 * kept["spot, 1 machine", zone] for zone in zones)
