"""Several zones: the optimum against every schedule, one zone against the single-zone run, deadlines on any record."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.base.compiled_records import FAILOVER, TABLE, UNIFORM_PROGRESS, ZonesTape
from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, SpellModel
from ebbtide.market.markets import Place
from ebbtide.policies.deadline.costs import DeadlineProblem, ZonesProblem, zones_problem
from ebbtide.policies.deadline.table import ZoneTable, cost_at_start, solve_zones
from ebbtide_papers.deadlines.deadline_hindsight import least_cost
from ebbtide_papers.deadlines.deadline_runs import run_zone, run_zones

TICK_S = 600.0
EAST, WEST = Place("aws", "us-east-1"), Place("aws", "us-west-2")


def problem_of(
    work_h: float, deadline_h: float, restart_h: float, prices: tuple[float, ...] = (1.0, 1.2), gib: float = 5.0
) -> ZonesProblem:
    zones = [("east", EAST), ("west", WEST)][: len(prices)]
    return zones_problem(
        zones,
        prices,
        3.0,
        work_h=work_h,
        deadline_h=deadline_h,
        restart_h=restart_h,
        checkpoint_bytes=int(gib * 2**30),
    )


def run(
    problem: ZonesProblem,
    available: np.ndarray,
    rule: int,
    table: ZoneTable | None = None,
    ask_every_s: float = 0.0,
    prices: np.ndarray | None = None,
) -> tuple[float, float, float, int, int]:
    tape = ZonesTape(available, expected_prices(problem, available) if prices is None else prices, TICK_S)
    return run_zones(rule, problem, tape, 0, ask_every_s, table)


def expected_prices(problem: ZonesProblem, available: np.ndarray) -> np.ndarray:
    return np.repeat(np.array(problem.spot_usd_per_hour)[:, None], available.shape[1], axis=1)


def least(problem: ZonesProblem, available: np.ndarray, step_s: float) -> float:
    return least_cost(problem, ZonesTape(available, expected_prices(problem, available), TICK_S), 0, step_s)


def flat(problem: ZonesProblem, gamma: float = 0.0) -> ZoneTable:
    bins = len(AGE_BINS_S)
    models = [
        SpellModel(np.array([[1.0] * bins, [0.4] * bins])),
        SpellModel(np.array([[0.5] * bins, [0.6] * bins])),
    ]
    return solve_zones(problem, models[: len(problem.zones)], gamma=gamma)


@pytest.mark.parametrize(
    ("prices", "speed", "look_s"),
    [
        ((1.0,), (), np.inf),
        ((1.0, 1.2), (), np.inf),
        ((1.0, 1.2), (), 60.0),
        ((0.6,), (0.6,), np.inf),
        ((1.0, 0.5), (1.0, 0.5), 60.0),
        ((1.0, 1.8), (1.0, 2.0), np.inf),
    ],
)
def test_a_table_knows_the_cost_of_many_runs_and_its_deviation(
    prices: tuple[float, ...], speed: tuple[float, ...], look_s: float
) -> None:
    problem = replace(problem_of(6.0, 9.0, 0.1, prices), speed=speed, look_s=look_s)
    table, risky = flat(problem), flat(problem, gamma=0.01)
    random = np.random.default_rng(1)
    usd = []
    for _ in range(2000):
        available = np.stack([model.drawn(60, TICK_S, random) for model in table.models])
        usd.append(run(problem, available, TABLE, table)[0])
    mean, deviation = cost_at_start(table, risky, 0.01)
    assert mean == pytest.approx(np.mean(usd), rel=0.05)
    assert deviation == pytest.approx(np.std(usd), rel=0.2)


def test_what_a_move_costs_and_takes() -> None:
    problem = problem_of(10.0, 15.0, 0.1, gib=100.0)
    assert problem.egress_usd == pytest.approx(np.array([[0.0, 2.0], [2.0, 0.0]]))
    # 107.4 GB at 8.20 Gbit/s instead of 9.72.
    assert problem.start_s[0, 1] - problem.start_s[0, 0] == pytest.approx(
        100 * 2**30 * 8e-9 * (1 / 8.20 - 1 / 9.72)
    )
    assert problem.start_s[0, 0] == pytest.approx(360.0)
    assert problem.alone(1).spot_usd_per_hour == (1.2,)
    with pytest.raises(InputError, match="a deadline of 10 h cannot be kept"):
        problem_of(10.0, 10.0, 0.1)
    with pytest.raises(InputError, match="there is no zone to run in"):
        problem_of(1.0, 2.0, 0.1, prices=())
    with pytest.raises(InputError, match="2 zones need as many models, not 1"):
        solve_zones(problem, [SpellModel(np.ones((2, len(AGE_BINS_S))))])
    with pytest.raises(InputError, match="gamma is -1"):
        flat(problem, gamma=-1.0)
    with pytest.raises(InputError, match="each of 2 zones needs one above 0"):
        replace(problem, speed=(1.0, 0.0))
    with pytest.raises(InputError, match="for machines no faster than one on demand"):
        least(replace(problem, speed=(1.0, 2.0)), np.ones((2, 90), dtype=bool), 120.0)


def every_schedule(problem: ZonesProblem, available: np.ndarray) -> float:
    """The least cost of all schedules; a choice a tick: nothing, on demand where the checkpoint is, east, west."""
    best = np.inf
    for choices in itertools.product((-1, -2, 0, 1), repeat=available.shape[1]):
        work_s, held, place, usd = problem.work_h * HOUR_S, -1, -1, 0.0
        for tick, choice in enumerate(choices):
            if choice >= 0 and not available[choice, tick]:
                break
            held = -1 if held >= 0 and not available[held, tick] else held
            if choice != -1:
                target = problem.place_of[choice] if choice >= 0 else max(place, 0)
                overhead_s, moved = 0.0, 0.0
                if choice != held:
                    overhead_s = problem.restart_h * HOUR_S if place < 0 else float(problem.start_s[place, target])
                    moved = 0.0 if place < 0 else float(problem.egress_usd[place, target])
                price = problem.spot_usd_per_hour[choice] if choice >= 0 else problem.on_demand_usd_per_hour
                speed = problem.speed[choice] if choice >= 0 and problem.speed else 1.0
                used_s = min(TICK_S, work_s / speed + overhead_s)
                usd += moved + used_s / HOUR_S * price
                work_s -= speed * (used_s - overhead_s)
                place = target
            held = choice
            if work_s <= 1e-9:
                best = min(best, usd)
                break
    return best


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.sampled_from([0.0, 1 / 30]),
    st.sampled_from([2, 3]),
    st.sampled_from([0.0, 1 / 30]),
    st.sampled_from([(), (1.0, 0.5), (0.8, 0.6)]),
)
def test_the_optimum_is_that_of_every_schedule(
    bits: list[bool], restart_h: float, work_ticks: int, fetch_h: float, speed: tuple[float, ...]
) -> None:
    """All times are multiples of 24 seconds, as is the grid: no line between its steps is asked."""
    available = np.array(bits).reshape(2, 6)
    free = problem_of(work_ticks / 6, 1.0, restart_h, (1.0, 1.5))
    problem = replace(free, fetch_h=fetch_h * (1.0 - np.eye(2)), speed=speed)
    assert least(problem, available, 24.0) == pytest.approx(every_schedule(problem, available))


@settings(max_examples=60)
@given(st.lists(st.booleans(), min_size=40, max_size=40), st.sampled_from([0.02, 0.1, 0.2]), st.floats(0.5, 2.0))
def test_failing_over_among_one_zone_is_uniform_progress(
    bits: list[bool], restart_h: float, slack_h: float
) -> None:
    available = np.array(bits)
    problem = problem_of(2.5, 2.5 + slack_h, restart_h, prices=(1.0,))
    usd, egress, late_h, *_ = run(problem, available[None], FAILOVER)
    alone = DeadlineProblem(2.5, 2.5 + slack_h, restart_h, 1.0, 3.0)
    other, late, _ = run_zone(UNIFORM_PROGRESS, alone, available, TICK_S, 0)
    assert (egress, late_h, late) == (0.0, 0.0, 0.0)
    # They part where the safety net may still take a spot machine in the last safe tick.
    assert usd == pytest.approx(other, rel=0.2)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.booleans(), min_size=240, max_size=240),
    st.sampled_from([0.05, 0.2]),
    st.floats(0.7, 6.0),
    st.sampled_from([FAILOVER, TABLE]),
    st.sampled_from([0.0, 7200.0]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([(), (1.0, 0.5), (0.7, 0.9)]),
    st.sampled_from([60.0, np.inf]),
)
def test_no_deadline_is_missed_and_nobody_beats_the_optimum(
    bits: list[bool],
    restart_h: float,
    slack_h: float,
    rule: int,
    ask_every_s: float,
    gamma: float,
    speed: tuple[float, ...],
    look_s: float,
) -> None:
    available = np.array(bits).reshape(2, 120)
    problem = replace(problem_of(10.0, 10.0 + slack_h, restart_h), speed=speed, look_s=look_s)
    table = flat(problem, gamma) if rule == TABLE else None
    usd, egress, late_h, starts, asked = run(problem, available, rule, table, ask_every_s)
    assert late_h == 0.0
    assert usd >= least(problem, available, 20.0) - 0.02
    moves = egress / problem.egress_usd[0, 1]
    assert moves == pytest.approx(round(moves))
    assert round(moves) <= starts
    assert asked >= 0


def test_runs_by_hand() -> None:
    """East for two ticks, then west; each start takes six minutes; a move 0.1 USD and some 0.1 s."""
    problem = problem_of(0.5, 2.0, 0.1)
    available = np.array([[1, 1] + [0] * 10, [0, 0] + [1] * 10], dtype=bool)
    usd, egress, late_h, starts, asked = run(problem, available, FAILOVER)
    fetch_h = problem.fetch_h[0, 1]
    # Two ticks at 1 USD with fourteen minutes of work; then sixteen at 1.2.
    assert usd == pytest.approx(2 / 6 + egress + (16 / 60 + 0.1 + fetch_h) * 1.2)
    assert (egress, late_h, starts, asked) == (pytest.approx(0.1), 0.0, 2, 2)


def test_prices_that_move_are_followed() -> None:
    """East is expected to be cheaper; when it has become more expensive, west is asked first."""
    problem = problem_of(10.0, 16.0, 0.1)
    table = flat(problem)
    available = np.ones((2, 120), dtype=bool)
    usual = np.repeat(np.array([[1.0], [1.2]]), 120, axis=1)
    turned = np.repeat(np.array([[2.0], [1.2]]), 120, axis=1)
    assert run(problem, available, TABLE, table, prices=usual)[0] == pytest.approx(10.1)
    # In west, with at most one more start; 20.2 USD in east.
    assert run(problem, available, TABLE, table, prices=turned)[0] == pytest.approx(10.1 * 1.2, abs=0.13)


def test_gamma_buys_certainty() -> None:
    """Over records drawn from the models: less spread with gamma, at a cost; and less than failing over without."""
    problem = problem_of(12.0, 16.0, 0.1)
    tables = {gamma: flat(problem, gamma) for gamma in (0.0, 1.0)}
    random = np.random.default_rng(4)
    costs: dict[float, list[float]] = {0.0: [], 1.0: []}
    rival = []
    for _ in range(400):
        available = np.stack([model.drawn(110, TICK_S, random) for model in tables[0.0].models])
        for gamma, into in costs.items():
            into.append(run(problem, available, TABLE, tables[gamma])[0])
        rival.append(run(problem, available, FAILOVER)[0])
    plain, careful = np.array(costs[0.0]), np.array(costs[1.0])
    assert plain.mean() < 0.98 * np.mean(rival)
    assert careful.std() < plain.std()
    assert careful.mean() < 1.1 * plain.mean()
    # What the program expects is what runs cost, but for what it does not track of the zone that is not held.
    begin = tables[0.0].usd[-1, 0, :, 0, int(problem.slack_s / tables[0.0].step_s)].min()
    assert plain.mean() == pytest.approx(float(begin), rel=0.15)


def test_through_a_bucket_a_move_costs_both_ways() -> None:
    """5 GiB at 2 cents: from the west to a bucket in the east and back, and from anywhere to one in Europe."""
    zones = [("east", EAST), ("west", WEST)]
    usd = {}
    for name, bucket in {"none": None, "east": EAST, "europe": Place("aws", "eu-west-1")}.items():
        problem = zones_problem(
            zones,
            (1.0, 1.2),
            3.0,
            work_h=1.0,
            deadline_h=3.0,
            restart_h=0.1,
            checkpoint_bytes=5 * 2**30,
            bucket=bucket,
        )
        usd[name] = problem.egress_usd
    assert usd["none"] == pytest.approx(np.array([[0.0, 0.1], [0.1, 0.0]]))
    assert usd["east"] == pytest.approx(np.array([[0.0, 0.1], [0.1, 0.2]]))
    assert usd["europe"] == pytest.approx(np.full((2, 2), 0.2))
