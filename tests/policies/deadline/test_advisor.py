"""Advice for a scheduler: against a recursion by hand, never late whatever a zone does, and on real zones."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ebbtide as eb
from ebbtide.base.compiled_records import UNIFORM_PROGRESS
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, SpellModel, fit_spells, spells_of
from ebbtide.forecasts.capacity.records import read_records
from ebbtide.forecasts.capacity.zone_types import ZoneTypes, zone_types
from ebbtide_papers.deadlines.advised_runs import run_advised
from ebbtide_papers.deadlines.deadline_runs import run_zone

SPOT_USD, ON_DEMAND_USD = 0.9731, 3.06
BINS = len(AGE_BINS_S)


def flat(down: float, up: float) -> SpellModel:
    """Spells that end at one rate at any age, per hour."""
    return SpellModel(np.array([[down] * BINS, [up] * BINS]))


def advisor(**changes: object) -> eb.DeadlineAdvisor:
    problem: dict[str, object] = {
        "work_h": 2.0,
        "deadline_h": 4.0,
        "restart_h": 1 / 6,
        "spot_usd_per_hour": SPOT_USD,
        "on_demand_usd_per_hour": ON_DEMAND_USD,
        "tick_h": 1 / 6,
        "models": flat(0.7, 0.4),
    }
    return eb.DeadlineAdvisor(**(problem | changes))  # type: ignore[arg-type]


def least_usd(down: float, up: float, work: int) -> Callable[[int, bool, str | None], float]:
    """Least expected cost by recursion over ticks, a start taking one of them; arguments: ticks left, and so on."""
    ends = {False: 1 - math.exp(-down / 6), True: 1 - math.exp(-up / 6)}
    usd = {"spot": SPOT_USD / 6, "on-demand": ON_DEMAND_USD / 6}

    @cache
    def cost(left: int, to_do: int, there: bool, held: str | None) -> float:
        if to_do <= 0:
            return 0.0
        if to_do > left:
            return math.inf
        choices = [then(left, to_do, there, None)]
        choices.append(usd["on-demand"] + then(left, to_do, there, "on-demand", held != "on-demand"))
        if there:
            choices.append(usd["spot"] + then(left, to_do, there, "spot", held != "spot"))
        return min(choices)

    def then(left: int, to_do: int, there: bool, held: str | None, starts: bool = False) -> float:
        rest = to_do - (held is not None and not starts)
        if rest <= 0:
            return 0.0
        # The worst has to be kept, too: on demand from the next tick on, a start before it.
        if rest + (held != "on-demand") > left - 1:
            return math.inf
        fallen = None if held == "spot" and there else held
        chance = ends[there]
        return (1 - chance) * cost(left - 1, rest, there, held) + chance * cost(left - 1, rest, not there, fallen)

    return lambda left, there, held: cost(left, work, there, held)


@pytest.mark.parametrize(("down", "up"), [(0.7, 0.4), (2.0, 2.0), (0.1, 3.0)])
@pytest.mark.parametrize("there", [False, True])
def test_its_costs_are_those_of_a_recursion(down: float, up: float, there: bool) -> None:
    asked = advisor(models=flat(down, up))
    asked.choose(0.0, 0.0, None, there)
    expected = least_usd(down, up, 12)(24, there, None)
    assert min(asked.expected_usd(0.0, 0.0, None, there).values()) == pytest.approx(expected, rel=1e-5)


def run(
    asked: eb.DeadlineAdvisor,
    up: list[bool],
    *,
    work_h: float,
    restart_h: float,
    tick_h: float,
) -> tuple[float, float]:
    """A run by whole ticks: cost in USD, and hours until the work was done."""
    held, done_h, starting_h, usd, tick = None, 0.0, 0.0, 0.0, 0
    while done_h < work_h - 1e-9:
        there = up[tick % len(up)]
        if held == "spot" and not there:
            held, starting_h = None, 0.0
        advice = asked.choose(tick * tick_h, done_h, held, there, starting_h)
        if advice == "wait":
            held, starting_h = None, 0.0
        else:
            assert advice != "spot" or there
            if advice != held:
                starting_h = restart_h
            held = advice
            usd += tick_h * (SPOT_USD if advice == "spot" else ON_DEMAND_USD)
            done_h += max(tick_h - starting_h, 0.0)
            starting_h = max(starting_h - tick_h, 0.0)
        tick += 1
    return usd, tick * tick_h


@settings(deadline=None, max_examples=60)
@given(
    up=st.lists(st.booleans(), min_size=1, max_size=80),
    restart_h=st.sampled_from([0.0, 0.02, 0.05, 0.1, 0.2, 0.4]),
    deadline_h=st.sampled_from([5.5, 6.0, 8.3]),
    tick_h=st.sampled_from([195 / 3600, 600 / 3600, 0.25]),
)
def test_the_deadline_is_kept_whatever_a_zone_does(
    up: list[bool], restart_h: float, deadline_h: float, tick_h: float
) -> None:
    asked = advisor(work_h=5.0, deadline_h=deadline_h, restart_h=restart_h, tick_h=tick_h, models=None)
    _, took_h = run(asked, up, work_h=5.0, restart_h=restart_h, tick_h=tick_h)
    assert took_h <= deadline_h + 1e-6


@pytest.mark.parametrize("restart_h", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("asked_every_s", [60.0, 299.0])
def test_without_a_tick_it_is_kept_though_machines_go_between_two_questions(
    restart_h: float, asked_every_s: float
) -> None:
    """The worst moment: what is worked since a question is lost, and a spot machine is gone at the next."""
    for deadline_h in (1.0 + restart_h, 1.1 + restart_h, 1.5):
        asked = advisor(work_h=1.0, deadline_h=deadline_h, restart_h=restart_h, tick_h=None, models=flat(0.5, 0.1))
        done_h, now_h, held, starting_h = 0.0, 0.0, None, 0.0
        while done_h < 1.0 - 1e-9:
            there = round(now_h * 3600.0 / asked_every_s) % 2 == 0
            if held == "spot" and not there:
                held = None
            advice = asked.choose(now_h, done_h, held, there, starting_h if held else 0.0)
            every_h = asked_every_s / 3600.0
            now_h += every_h
            if advice == "wait":
                held = None
                continue
            starting_h = starting_h if advice == held else restart_h
            held = advice
            if advice == "on-demand":
                done_h += max(every_h - starting_h, 0.0)
            starting_h = max(starting_h - every_h, 0.0)
        assert now_h - (done_h - 1.0) <= deadline_h + 1e-6


@pytest.mark.parametrize("tick_h", [1.0, 1 / 6])
def test_a_machine_is_kept_to_the_end_of_the_work(tick_h: float) -> None:
    asked = advisor(work_h=10.0, deadline_h=14.0, restart_h=0.1, tick_h=tick_h, models=None)
    assert asked.choose(10.0, 9.9, "spot", True) == "spot"
    usd = asked.expected_usd(10.0, 9.9, "spot", True)
    assert usd["spot"] == pytest.approx(tick_h * SPOT_USD)
    # No path costs less than the tick that is needed.
    assert usd["wait"] >= usd["spot"] - 1e-6


def test_saved_work_counts_though_it_is_ahead_of_the_time() -> None:
    asked = advisor(work_h=10.0, deadline_h=12.0, restart_h=0.1, models=None)
    asked.choose(0.0, 0.0, None, True)
    usd = [min(asked.expected_usd(0.0, done_h, None, True).values()) for done_h in (0.0, 2.0, 5.0, 9.0, 9.9)]
    assert usd == sorted(usd, reverse=True)
    # Two ticks on spot; with so much slack costs are resolved to a tick.
    assert usd[-1] == pytest.approx(2 * SPOT_USD / 6, abs=SPOT_USD / 6)
    assert asked.expected_usd(0.0, 10.0, None, True)["wait"] == 0.0


@pytest.mark.parametrize(("work_h", "deadline_h", "restart_h"), [(48, 52, 1e-6), (48, 720, 0.1), (10, 200, 100)])
def test_tables_are_no_larger_than_memory_however_long_a_job_is(
    work_h: float, deadline_h: float, restart_h: float
) -> None:
    asked = advisor(work_h=work_h, deadline_h=deadline_h, restart_h=restart_h, models=flat(0.7, 0.4))
    assert asked.tables.usd.size <= 60_000_000
    assert asked.choose(0.0, 0.0, None, True) in ("spot", "wait", "on-demand")


@pytest.mark.parametrize(("restart_h", "tick_h"), [(0.1, 1 / 6), (0.2, 195 / 3600)])
def test_compiled_runs_are_those_of_a_scheduler_that_asks_it(restart_h: float, tick_h: float) -> None:
    asked = advisor(work_h=5.0, deadline_h=9.0, restart_h=restart_h, tick_h=tick_h, models=None)
    random = np.random.default_rng(3)
    for share in (0.2, 0.5, 0.8):
        up = np.repeat(random.random(60) < share, random.integers(1, 9, 60))
        usd, took_h = run(asked, up.tolist(), work_h=5.0, restart_h=restart_h, tick_h=tick_h)
        asked.begin()
        compiled = run_advised(asked, up, 0)
        assert (compiled.usd, compiled.hours) == (pytest.approx(usd), pytest.approx(took_h))
        assert compiled.late_h == 0.0


def test_a_run_that_a_record_does_not_hold_is_refused() -> None:
    with pytest.raises(InputError, match="the record of 3 ticks ends before"):
        run_advised(advisor(), np.zeros(3, dtype=bool), 0)
    with pytest.raises(InputError, match="no tick_h"):
        run_advised(advisor(tick_h=None), np.zeros(300, dtype=bool), 0)
    with pytest.raises(InputError, match="ticks of 600 s are longer than the 300 s"):
        run_advised(advisor(tick_h=None), np.zeros(300, dtype=bool), 0, tick_h=1 / 6)


def test_an_advisor_that_is_not_told_of_ticks_is_asked_in_them_and_is_never_late() -> None:
    random = np.random.default_rng(5)
    asked = advisor(work_h=5.0, deadline_h=8.0, restart_h=0.1, tick_h=None)
    told = advisor(work_h=5.0, deadline_h=8.0, restart_h=0.1, tick_h=195 / 3600)
    usd = []
    for share in (0.2, 0.5, 0.8) * 10:
        up = np.repeat(random.random(60) < share, random.integers(1, 30, 60))
        run = run_advised(asked, up, 0, tick_h=195 / 3600)
        assert run.late_h == 0.0
        usd.append((run.usd, run_advised(told, up, 0).usd))
    # Who knows of the ticks keeps less in reserve.
    assert np.mean(usd, axis=0)[1] <= np.mean(usd, axis=0)[0]


def test_it_learns_which_type_of_zone_it_is_in() -> None:
    kinds = ZoneTypes((flat(0.2, 0.1), flat(4.0, 4.0)), (0.5, 0.5))
    asked = advisor(work_h=20.0, deadline_h=40.0, models=kinds)
    assert asked.chances == (0.5, 0.5)
    for tick in range(60):
        asked.choose(tick / 6, 0.0, None, tick % 3 > 0)
    assert asked.chances[1] > 0.99
    asked.begin()
    for tick in range(60):
        asked.choose(tick / 6, 0.0, None, True)
    assert asked.chances[0] > 0.99


def test_what_no_type_thinks_possible_is_survived() -> None:
    asked = advisor(models=flat(1e-12, 1e-12))
    for tick in range(12):
        assert asked.choose(tick / 6, 0.0, None, tick % 2 == 0) in ("spot", "on-demand", "wait")
    assert sum(asked.chances) == pytest.approx(1.0)


def test_without_a_tick_it_is_charged_by_the_second() -> None:
    asked = advisor(work_h=1.0, deadline_h=1.4, restart_h=0.1, tick_h=None, models=flat(0.01, 9.0))
    assert asked.choose(0.0, 0.0, None, False) == "wait"
    assert asked.choose(0.25, 0.0, None, False) == "on-demand"
    assert asked.expected_usd(0.35, 0.95, "on-demand", False)["on-demand"] == pytest.approx(0.05 * ON_DEMAND_USD)


def test_hazards_may_be_whole_numbers() -> None:
    whole = SpellModel(np.ones((2, BINS), dtype=np.int64))
    for kind in (np.int64, np.float32):
        asked = advisor(models=SpellModel(whole.per_hour.astype(kind)))
        asked.choose(0.0, 0.0, None, True)
        plain = advisor(models=flat(1.0, 1.0))
        plain.choose(0.0, 0.0, None, True)
        assert asked.expected_usd(0, 0, None, True) == plain.expected_usd(0, 0, None, True)


def test_once_the_work_is_done_nothing_is_held() -> None:
    assert advisor().choose(3.0, 2.0, "spot", True) == "wait"


def test_a_deadline_that_is_missed_already_is_followed_on_demand() -> None:
    assert advisor().choose(3.9, 1.0, None, True) == "on-demand"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((-1.0, 0.0, None, True), "elapsed_h is -1.0"),
        ((1.0, math.nan, None, True), "done_h is nan"),
        ((1.0, 0.0, "preemptible", True), "holding is 'preemptible'; it must be 'spot', 'on-demand' or None"),
        ((1.0, 0.0, "spot", True, -0.1), "starting_h is -0.1"),
        ((0.5, 0.0, None, True), "elapsed_h is 0.5, after a question at 1"),
        (("1", 0.0, None, True), "elapsed_h is '1'"),
        ((1.0, 0.0, ["spot"], True), "holding is"),
        ((1.0, 0.0, None, "no"), "spot_available is 'no'"),
    ],
)
def test_wrong_questions_are_refused(arguments: tuple[object, ...], told: str) -> None:
    asked = advisor()
    asked.choose(1.0, 0.0, None, True)
    with pytest.raises(InputError, match=told):
        asked.choose(*arguments)  # type: ignore[arg-type]


def test_costs_need_a_first_question() -> None:
    with pytest.raises(InputError, match="choose"):
        advisor().expected_usd(0.0, 0.0, None, True)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"deadline_h": 1.0}, "cannot be kept"),
        ({"deadline_h": math.nan}, "deadline_h is nan"),
        ({"deadline_h": 2.3, "restart_h": 0.25}, "cannot be kept in ticks"),
        ({"on_demand_usd_per_hour": math.inf}, "on_demand_usd_per_hour is inf"),
        ({"models": 5}, "models are 5"),
        ({"models": ["x"]}, "models are"),
        ({"models": flat(math.nan, 1.0)}, "not positive"),
        ({"models": SpellModel(np.ones((2, 3)))}, "hazards of shape"),
        ({"tick_h": 0.0}, "tick_h is 0.0; it must be positive"),
        ({"work_h": -1.0}, "work_h is -1.0"),
        ({"models": []}, "there is no model of any zone"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        advisor(**changes)


def test_a_few_types_stand_for_many_zones() -> None:
    calm, wild = [flat(0.2, 0.1 + n / 100) for n in range(6)], [flat(4.0, 4.0 + n / 10) for n in range(2)]
    found = zone_types([*calm, *wild], most=2)
    assert sorted(found.weights) == [0.25, 0.75]
    assert all(any(model is one for one in [*calm, *wild]) for model in found.models)


@pytest.mark.real_traces
def test_on_zones_left_out_it_costs_less_than_uniform_progress(traces: Path) -> None:
    records = read_records(traces / "spot-availability-2022-2023.parquet", 0.0)
    spells = [spells_of(record.available, record.gap_s) for record in records]
    ours, theirs = [], []
    for place, record in enumerate(records):
        if record.gap_s != 600.0:
            continue
        others = [one for n, one in enumerate(spells) if n != place]
        models = zone_types([fit_spells(one, others) for one in others])
        asked = advisor(work_h=24.0, deadline_h=30.0, restart_h=0.1, models=models)
        for first in np.linspace(0, len(record.available) - 200, 8).astype(int).tolist():
            asked.begin()
            up = record.available[first:].tolist()
            usd, took_h = run(asked, up, work_h=24.0, restart_h=0.1, tick_h=1 / 6)
            assert took_h <= 30.0 + 1e-9
            ours.append(usd)
            theirs.append(run_zone(UNIFORM_PROGRESS, asked.problem, record.available, 600.0, first)[0])
    assert np.mean(ours) < 0.97 * np.mean(theirs)
