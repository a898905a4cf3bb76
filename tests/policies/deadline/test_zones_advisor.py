"""Advice over several zones: never late whatever they do, zones looked at only where that can pay, and errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, SpellModel
from ebbtide.forecasts.capacity.zone_types import ZoneTypes

SPOT_USD, ON_DEMAND_USD = 0.9731, 3.06
ZONES = ("a", "b", "c")
CALM, WILD = (
    SpellModel(np.array([[down] * len(AGE_BINS_S), [up] * len(AGE_BINS_S)]))
    for down, up in ((0.5, 0.05), (0.5, 3.0))
)


def advisor(zones: Sequence[str] = ZONES, **changes: Any) -> eb.ZonesAdvisor:
    problem: dict[str, Any] = {
        "work_h": 5.0,
        "deadline_h": 8.0,
        "restart_h": 0.1,
        "spot_usd_per_hour": SPOT_USD,
        "on_demand_usd_per_hour": ON_DEMAND_USD,
        "tick_h": 1 / 6,
    }
    return eb.ZonesAdvisor(zones, **(problem | changes))


def run(asked: eb.ZonesAdvisor, up: np.ndarray, *, sees_all: bool) -> tuple[float, float, int]:
    """A run by whole ticks: cost in USD, hours until the work was done, and how often a zone was looked at."""
    assert asked.tick_h is not None
    tick_h, restart_h, work_h = asked.tick_h, asked.problem.restart_h, asked.problem.work_h
    held: Any = None
    done_h, starting_h, usd, tick, looks = 0.0, 0.0, 0.0, 0, 0
    while done_h < work_h - 1e-9:
        there = {zone: bool(up[place, tick % up.shape[1]]) for place, zone in enumerate(asked.zones)}
        if held and held[0] == "spot" and not there[held[1]]:
            held, starting_h = None, 0.0
        seen = dict(there) if sees_all else ({held[1]: there[held[1]]} if held else {})
        advice = asked.choose(tick * tick_h, done_h, held, seen, starting_h)
        while advice != "wait" and advice[0] == "look":
            assert advice[1] not in seen
            seen[advice[1]], looks = there[advice[1]], looks + 1
            advice = asked.choose(tick * tick_h, done_h, held, seen, starting_h)
        if advice == "wait":
            held, starting_h = None, 0.0
        else:
            assert advice[0] == "on-demand" or there[advice[1]]
            if advice != held:
                starting_h = restart_h
            held = advice
            usd += tick_h * (SPOT_USD if advice[0] == "spot" else ON_DEMAND_USD)
            done_h += max(tick_h - starting_h, 0.0)
            starting_h = max(starting_h - tick_h, 0.0)
        tick += 1
    return usd, tick * tick_h, looks


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    share=st.sampled_from([0.0, 0.2, 0.6, 0.95]),
    restart_h=st.sampled_from([0.0, 0.05, 0.2, 0.4]),
    deadline_h=st.sampled_from([5.7, 6.5, 9.0]),
    tick_h=st.sampled_from([195 / 3600, 1 / 6]),
    sees_all=st.booleans(),
)
def test_the_deadline_is_kept_whatever_the_zones_do(
    seed: int, share: float, restart_h: float, deadline_h: float, tick_h: float, sees_all: bool
) -> None:
    up = np.random.default_rng(seed).random((3, 97)) < share
    asked = advisor(deadline_h=deadline_h, restart_h=restart_h, tick_h=tick_h)
    _, took_h, _ = run(asked, up, sees_all=sees_all)
    assert took_h <= deadline_h + 1e-6


def test_zones_that_are_there_are_used_at_their_price() -> None:
    up = np.zeros((3, 60), dtype=bool)
    up[1] = True
    usd, took_h, looks = run(advisor(), up, sees_all=True)
    # One start, then work: whole ticks.
    assert took_h == pytest.approx(math.ceil(5.1 * 6) / 6)
    assert usd == pytest.approx(took_h * SPOT_USD)
    assert looks == 0


def test_it_looks_for_a_zone_and_keeps_to_it_without_looking_again() -> None:
    up = np.zeros((3, 60), dtype=bool)
    up[2] = True
    usd, took_h, looks = run(advisor(), up, sees_all=False)
    assert usd == pytest.approx(took_h * SPOT_USD)
    assert 1 <= looks <= 3


def test_of_two_zones_it_takes_the_one_whose_machines_last() -> None:
    types = ZoneTypes((CALM, WILD), (0.5, 0.5))
    asked = advisor(("steady", "flaky"), work_h=20.0, deadline_h=40.0, models=types)
    for tick in range(40):
        asked.choose(tick / 6, 0.0, None, {"steady": True, "flaky": tick % 3 > 0})
    assert asked.choose(40 / 6, 0.0, None, {"steady": True, "flaky": True}) == ("spot", "steady")
    asked = advisor(("flaky", "steady"), work_h=20.0, deadline_h=40.0, models=types)
    for tick in range(40):
        asked.choose(tick / 6, 0.0, None, {"steady": True, "flaky": tick % 3 > 0})
    assert asked.choose(40 / 6, 0.0, None, {"steady": True, "flaky": True}) == ("spot", "steady")


def test_a_machine_is_kept_to_the_end_of_the_work() -> None:
    asked = advisor(("a",), work_h=10.0, deadline_h=14.0, tick_h=1.0)
    assert asked.choose(10.0, 9.9, ("spot", "a"), {"a": True}) == ("spot", "a")


def test_who_looks_for_a_while_is_not_asked_to_look_again() -> None:
    asked, looked = advisor(), []
    for second in range(8):
        advice = asked.choose(second / 3600.0, 0.0, None, dict.fromkeys(looked[-1:], False))
        if advice == "wait" or advice[0] != "look":
            break
        looked.append(advice[1])
    assert sorted(looked) == sorted(set(looked))


def after_a_loss() -> tuple[eb.ZonesAdvisor, float, float]:
    """Zone b is down for nine hours, zone a was lost after eight: the advisor, hours that passed, and hours done."""
    asked = advisor(("a", "b"), work_h=10.0, deadline_h=20.0, restart_h=0.2, on_demand_usd_per_hour=3.0)
    asked.choose(0.0, 0.0, None, {"a": True, "b": False})
    for tick in range(1, 49):
        asked.choose(tick / 6, tick / 6, ("spot", "a"), {"b": False})
    return asked, 8.0, 8.0


def test_a_look_does_not_change_the_answer() -> None:
    asked, passed_h, done_h = after_a_loss()
    first = asked.choose(passed_h, done_h, None, {"a": False, "b": False})
    other, *_ = after_a_loss()
    # Something is known of a only: b is looked at in vain, and then nothing has changed.
    for tick in range(1, 12):
        at_h = passed_h + tick / 6
        advice = other.choose(at_h, done_h, None, {"a": False})
        if advice != "wait" and advice[0] == "look":
            advice = other.choose(at_h, done_h, None, {"a": False, "b": False})
        assert advice == asked.choose(at_h, done_h, None, {"a": False, "b": False}) == first


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.1, 0.5, 0.9]))
def test_the_same_question_has_the_same_answer(seed: int, share: float) -> None:
    up = np.random.default_rng(seed).random((3, 40)) < share
    asked, held = advisor(), None
    for tick in range(30):
        seen = {zone: bool(up[place, tick]) for place, zone in enumerate(ZONES)}
        if held is not None and held[0] == "spot" and not seen[held[1]]:
            held = None
        answers = {asked.choose(tick / 6, 0.1, held, seen) for _ in range(3)}
        assert len(answers) == 1
        advice = answers.pop()
        held = None if advice == "wait" else advice


def test_no_machine_is_paid_that_does_no_work() -> None:
    asked, passed_h, done_h = after_a_loss()
    for tick in range(12):
        seen = {"a": False}
        advice = asked.choose(passed_h + tick / 6, done_h, None, seen)
        while advice != "wait" and advice[0] == "look":
            seen[advice[1]] = False
            advice = asked.choose(passed_h + tick / 6, done_h, None, seen)
        # There are four hours to spare: a machine on demand would be given back before it has started.
        assert advice == "wait"


def test_what_is_not_known_may_be_said_to_be_so() -> None:
    assert advisor().choose(0.0, 0.0, None, {"a": None, "b": True, "c": False})[0] in ("spot", "look")  # type: ignore[dict-item]


def test_a_price_may_be_of_any_kind_of_number() -> None:
    assert advisor(spot_usd_per_hour=np.float32(0.9)).choose(0.0, 0.0, None, {"a": True})[0] in ("spot", "look")


def test_the_cheaper_of_two_alike_is_taken() -> None:
    asked = advisor(("dear", "cheap"), spot_usd_per_hour=[1.4, 0.9])
    assert asked.choose(0.0, 0.0, None, {"dear": True, "cheap": True}) == ("spot", "cheap")


def test_what_is_not_looked_at_becomes_what_it_is_in_the_long_run() -> None:
    asked = advisor(models=CALM, work_h=20.0, deadline_h=60.0)
    assert asked.chance_up("a") == pytest.approx(CALM.share_up)
    asked.choose(0.0, 0.0, None, {"a": False, "b": True})
    assert (asked.chance_up("a"), asked.chance_up("b")) == (0.0, 1.0)
    for tick in range(1, 200):
        asked.choose(tick / 6, 0.0, None, {"c": False})
    assert asked.chance_up("a") == pytest.approx(CALM.share_up, rel=0.05)
    assert asked.chance_up("c") == 0.0


def test_without_zones_that_are_there_and_time_it_goes_on_demand() -> None:
    asked = advisor()
    none = dict.fromkeys(ZONES, False)
    assert asked.choose(0.0, 0.0, None, none) == "wait"
    assert asked.choose(2.75, 0.0, None, none)[0] == "on-demand"
    assert asked.choose(7.0, 5.0, ("on-demand", "a"), none) == "wait"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((-1.0, 0.0, None, {}), "elapsed_h is -1.0"),
        ((0.0, math.inf, None, {}), "done_h is inf"),
        ((0.0, 0.0, "spot", {}), "holding is 'spot'; it must be"),
        ((0.0, 0.0, ("spot", "d"), {}), "unknown zone 'd'"),
        ((0.0, 0.0, (["spot"], "a"), {}), "it must be"),
        ((0.0, 0.0, None, ["a"]), "seen is"),
        ((0.0, 0.0, None, {1: True}), "unknown zone '1'"),
        ((0.0, 0.0, None, {"a": "yes"}), "seen of a is 'yes'"),
        ((0.0, 0.0, None, {"d": True}), "unknown zone 'd'"),
    ],
)
def test_wrong_questions_are_refused(arguments: tuple[Any, ...], told: str) -> None:
    with pytest.raises(InputError, match=told):
        advisor().choose(*arguments)


@pytest.mark.parametrize(
    ("zones", "changes", "told"),
    [
        ((), {}, "there is no zone"),
        ("abc", {}, "a list of names is needed"),
        (ZONES, {"spot_usd_per_hour": [1.0, -2.0, 1.0]}, "spot_usd_per_hour of b is -2.0"),
        (ZONES, {"spot_usd_per_hour": math.nan}, "spot_usd_per_hour of a is nan"),
        (("a", "a"), {}, "each may be named once"),
        (ZONES, {"spot_usd_per_hour": [1.0]}, "need as many prices"),
        (ZONES, {"deadline_h": 5.0}, "cannot be kept"),
        (ZONES, {"tick_h": -1.0}, "tick_h is -1.0"),
    ],
)
def test_what_cannot_be_is_refused(zones: tuple[str, ...], changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        advisor(zones, **changes)
