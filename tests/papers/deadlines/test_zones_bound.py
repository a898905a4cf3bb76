"""The exact program for up to three zones: against recursion by hand, against one zone alone, and against the advisor."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, DOWN, UP, SpellModel
from ebbtide.policies.deadline.costs import ZonesProblem
from ebbtide_papers.deadlines.advised_runs import run_advised_zones
from ebbtide_papers.deadlines.zones_bound import run_bound, solve_bound

ON_DEMAND_USD = 3.0
BINS = len(AGE_BINS_S)


def model(down: float, up: float) -> SpellModel:
    """Spells whose hazard, per hour, does not depend on their age."""
    return SpellModel(np.array([[down] * BINS, [up] * BINS]))


def problem(work_h: float, deadline_h: float, restart_h: float, spot_usd: tuple[float, ...]) -> ZonesProblem:
    nowhere, names, places = np.zeros((1, 1)), tuple("abcd"[: len(spot_usd)]), (0,) * len(spot_usd)
    return ZonesProblem(work_h, deadline_h, restart_h, ON_DEMAND_USD, names, spot_usd, places, nowhere, nowhere)


@pytest.mark.parametrize(
    ("rates", "spot_usd"),
    [
        (((0.5, 0.8),), (0.7,)),
        (((0.5, 0.8), (0.5, 0.8)), (0.7, 0.9)),
        (((0.2, 2.0), (1.5, 0.3)), (0.7, 0.9)),
        (((0.2, 2.0), (1.5, 0.3), (0.4, 0.1)), (0.7, 0.9, 1.4)),
    ],
)
def test_as_by_recursion_over_everything_that_may_happen(
    rates: tuple[tuple[float, float], ...], spot_usd: tuple[float, ...]
) -> None:
    """Ten ticks of an hour, six of work, a start of one; zones are up or down, since ages do not matter."""
    ends = [[1 - math.exp(-rate) for rate in each] for each in rates]
    zones = len(rates)

    @cache
    def least(left: int, work: int, up: tuple[int, ...], held: int) -> float:
        """Held: 0 nothing, from 1 on a zone's spot machine, last on demand."""
        if work <= 0:
            return 0.0
        found = []
        for choice in range(zones + 2):
            start = 0 if choice in (held, 0) else 1
            slack = left - work - (1 if choice == 0 else start)
            is_spot = 1 <= choice <= zones
            if is_spot and not up[choice - 1]:
                continue
            at_last = choice > 0 and work + start <= 1
            if slack < (1 if choice <= zones and not at_last else 0):
                continue
            # The start takes a whole tick; the work goes on from the next on.
            done = 0 if choice == 0 or start else 1
            usd = 0.0 if choice == 0 else spot_usd[choice - 1] if is_spot else ON_DEMAND_USD
            if not at_last:
                for then in itertools.product(range(2), repeat=zones):
                    chance = math.prod(
                        ends[zone][up[zone]] if then[zone] != up[zone] else 1 - ends[zone][up[zone]]
                        for zone in range(zones)
                    )
                    is_gone = is_spot and not then[choice - 1]
                    usd += chance * least(left - 1, work - done, then, 0 if is_gone else choice)
            found.append(usd)
        return min(found)

    models = [model(*each) for each in rates]
    table = solve_bound(problem(6.0, 10.0, 1.0, spot_usd), models, tick_s=HOUR_S)
    usual = 0.0
    for states in itertools.product((DOWN, UP), repeat=zones):
        by_hand = least(10, 6, states, 0)
        assert table.at_start([state * BINS for state in states]) == pytest.approx(by_hand, rel=1e-5)
        usual += by_hand * math.prod(
            one.share_up if state == UP else 1.0 - one.share_up for one, state in zip(models, states, strict=True)
        )
    assert table.usual_usd == pytest.approx(usual, rel=1e-5)
    only = solve_bound(problem(6.0, 10.0, 1.0, spot_usd), models, tick_s=HOUR_S, only_start=True)
    assert only.usual_usd == table.usual_usd
    with pytest.raises(InputError, match="costs of the start only"):
        run_bound(only, np.ones((zones, 10), dtype=bool), HOUR_S, 0)


def test_a_zone_that_never_comes_up_changes_nothing() -> None:
    """The program for one zone, which others keep, comes to the same."""
    heavy = SpellModel(np.array([1.5 / (1 + np.arange(BINS)), 1.0 / (1 + np.arange(BINS))]))
    never = model(1e-9, 50.0)
    alone = eb.DeadlineAdvisor(
        work_h=5.0,
        deadline_h=9.0,
        restart_h=0.5,
        spot_usd_per_hour=0.9,
        on_demand_usd_per_hour=ON_DEMAND_USD,
        tick_h=0.5,
        models=heavy,
    )
    table = solve_bound(problem(5.0, 9.0, 0.5, (0.9, 0.5)), [heavy, never], tick_s=1800.0)
    grid = alone.tables.grid
    for kind in (DOWN, UP):
        for age in range(BINS):
            row = alone.tables.usd[0, -1, kind, age, 0]
            place = int(np.flatnonzero(np.isclose(grid.slack_s, 4 * HOUR_S))[0])
            assert table.at_start((kind * BINS + age, 0)) == pytest.approx(float(row[place]), rel=1e-5)


@pytest.mark.long
def test_on_spells_as_it_knows_them_it_comes_to_what_it_expects_and_no_advice_is_cheaper() -> None:
    zones = [model(0.6, 0.5), model(0.3, 0.2)]
    asked = problem(8.0, 12.0, 0.25, (0.9, 0.9))
    table = solve_bound(asked, zones)
    advisor = eb.ZonesAdvisor(
        asked.zones,
        work_h=8.0,
        deadline_h=12.0,
        restart_h=0.25,
        spot_usd_per_hour=0.9,
        on_demand_usd_per_hour=ON_DEMAND_USD,
        tick_h=1 / 6,
        models=zones,
    )
    ours, advised, expected = [], [], []
    for seed in range(300):
        up = np.array([one.drawn(72, 600.0, np.random.default_rng([seed, n])) for n, one in enumerate(zones)])
        run = run_bound(table, up, 600.0, 0)
        assert run.late_h == 0.0
        ours.append(run.usd)
        advised.append(run_advised_zones(advisor, up, 0).usd)
        expected.append(table.at_start((int(up[0, 0]) * BINS, int(up[1, 0]) * BINS)))
    error = float(np.std(ours) / math.sqrt(len(ours)))
    assert np.mean(ours) == pytest.approx(np.mean(expected), abs=3 * error)
    saved = np.subtract(advised, ours)
    assert saved.mean() > -2.0 * float(saved.std() / math.sqrt(len(saved)))


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(InputError, match="for 3 zones at most, not 4"):
        solve_bound(problem(5.0, 9.0, 0.5, (0.9,) * 4), [model(1, 1)] * 4)
    apart = ZonesProblem(
        5.0, 9.0, 0.5, ON_DEMAND_USD, ("a", "b"), (0.9, 0.9), (0, 1), np.zeros((2, 2)), np.zeros((2, 2))
    )
    with pytest.raises(InputError, match="are in several places"):
        solve_bound(apart, [model(1, 1)] * 2)
    table = solve_bound(problem(5.0, 9.0, 0.5, (0.9, 0.9)), [model(1, 1)] * 2, tick_s=1800.0)
    with pytest.raises(InputError, match="of 3 ticks ends before a run from tick 0"):
        run_bound(table, np.zeros((2, 3), dtype=bool), 1800.0, 0)
