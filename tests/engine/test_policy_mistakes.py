"""Mistakes of a user's own policy: told by its name, the time, the market or lease, and what would be right."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.markets import C3, R3, START_S, history, job

import ebbtide as eb
from ebbtide.engine.policy_answers import MAX_MACHINES, problem_with
from ebbtide.errors import InputError, PolicyError
from ebbtide.policies.api.actions import Action, Assign, GiveUp, Release, Request, Save, Stop, WakeAt, WakeAtStep
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.protocol import checked_policy
from ebbtide.testing.scripted import Scripted, replay

CALM = {C3: [(0, 0.36)]}


class Mine:
    """A policy as a user writes it; each test spoils one thing."""

    name = "mine"
    wakes_on: Any = frozenset()

    def __init__(self, decide: Callable[[Any], Any] | None = None, **fields: Any) -> None:
        self.decide: Any = decide or (lambda _view: [])
        for field, value in fields.items():
            setattr(self, field, value)


def failing(decide: Callable[[Any], Any]) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        replay(Mine(decide), [job(60)], history(CALM))
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        (Request(C3, job=7), "7 is no job; there is only job 0"),
        (Request(C3, job=-1), "-1 is no job"),
        (Request(C3, job=True), "True is no job"),
        (Request(C3, on_demand="no"), "on_demand is 'no'; it is True or False"),
        (Request(C3, keep=1), "keep is 1; it is True or False"),
        (
            Request("us-east-1a c3.xlarge"),
            "market is 'us-east-1a c3.xlarge'; it is a Market, such as one of view.markets",
        ),
        (Request(R3), "the market is none of the 1 that have a price now: us-east-1a c3.xlarge"),
        (Request(C3, math.nan), "max_price_usd_per_hour is nan; it is a number of USD"),
        (Request(C3, -0.1), "max_price_usd_per_hour is -0.1; it cannot be negative"),
        (Request(C3, "0.1"), "max_price_usd_per_hour is '0.1'"),
        (Request(C3, count=0), "count is 0; it is a whole number of machines, at least 1"),
        (Request(C3, count=1.5), "count is 1.5"),
        (
            Request(C3, count=10**6),
            "count is 1,000,000 and 0 machines are open; at most 10,000 may be open at once",
        ),
        (Release(99), "99 is no lease; there is no lease yet"),
        (Release(-1), "-1 is no lease"),
        (Assign(0, [5]), "5 is no lease"),
        (Assign(3, []), "3 is no job"),
        (Assign(0, 5), "leases is 5; it is a list of lease ids"),
        (Assign(0, "5"), "leases is '5'"),
        (Save(1), "1 is no job"),
        (Stop(-1), "-1 is no job"),
        (GiveUp(""), "reason says in words"),
        (WakeAt(math.nan), "time_s is nan; it is seconds since 1970"),
        (WakeAt(3600.0), "time_s is 3600, which is before the run began .*such as view.now_s \\+ 3600"),
        (WakeAt(-math.inf), "before the run began"),
        (WakeAt(None), "time_s is None"),
        (WakeAtStep(0, math.nan), "step is nan; it is a number of steps"),
        (WakeAtStep(2, 5), "2 is no job"),
        ("rent", "it is no action; actions are Request, Release"),
        (None, "it is no action"),
    ],
    ids=repr,
)
def test_an_action_that_cannot_be_is_told_by_policy_time_and_what_would_be_right(
    action: Any, problem: str
) -> None:
    error = failing(lambda _view: [action])
    assert str(error).startswith("policy mine at 2015-04-01T00:00:00Z")
    assert error.__cause__ is None
    with pytest.raises(PolicyError, match=problem):
        raise error


def test_the_market_and_the_lease_are_named() -> None:
    told = str(failing(lambda _view: [Request(C3, job=7)]))
    assert told.endswith(", market us-east-1a c3.xlarge: Request: 7 is no job; there is only job 0")
    assert ", lease 99: Release: 99 is no lease" in str(failing(lambda _view: [Release(99)]))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (5, "decide answered 5, which are no actions; decide answers with actions in a list, or yields them"),
        ("rent", "decide answered 'rent', which are no actions"),
        (Save(0), "decide answered Save itself; decide answers with actions in a list"),
    ],
)
def test_an_answer_that_is_no_list_of_actions_is_told(answer: Any, problem: str) -> None:
    assert problem in str(failing(lambda _view: answer))


def test_no_answer_is_an_answer() -> None:
    assert not replay(Mine(lambda _view: None), [job(60)], history(CALM, hours=1)).finished


def test_an_exception_in_a_policy_is_told_with_its_line_and_is_the_cause() -> None:
    def decide(_view: Any) -> list[Action]:
        raise KeyError("c4.xlarge")

    error = failing(decide)
    assert "it raised KeyError: 'c4.xlarge' (test_policy_mistakes.py, line " in str(error)
    assert isinstance(error.__cause__, KeyError)

    def late(_view: Any) -> Any:
        yield Request(C3)
        raise ZeroDivisionError

    error = failing(late)
    assert "it raised ZeroDivisionError: without a message" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_looking_at_a_lease_or_job_that_is_not_there_is_told() -> None:
    for look in (lambda view: view.lease(-1), lambda view: view.lease(99), lambda view: view.leases_of(-1)):
        assert isinstance(failing(look).__cause__, LookupError)


def test_a_refusal_of_the_input_stays_one() -> None:
    def decide(_view: Any) -> list[Action]:
        raise InputError("needs a deadline")

    with pytest.raises(InputError, match="^needs a deadline$"):
        replay(Mine(decide), [job(60)], history(CALM))


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (Mine, "policy Mine: is a class; give an instance of it: Mine\\(\\)"),
        (SimpleNamespace(), "policy SimpleNamespace: has no name; a policy has a name in text"),
        (SimpleNamespace(name="a"), "has no wakes_on; a policy has a frozenset of Wake"),
        (SimpleNamespace(name="a", wakes_on=frozenset()), "has no decide; a policy has a method decide"),
        (Mine(name=""), "name is ''"),
        (Mine(name=3), "name is 3"),
        (Mine(wakes_on=None), "wakes_on is None"),
        (Mine(wakes_on=frozenset({"start"})), "wakes_on is frozenset.*a policy has a frozenset of Wake"),
        (SimpleNamespace(name="a", wakes_on=frozenset(), decide=3), "decide is no method"),
    ],
)
def test_what_is_no_policy_is_told_before_anything_is_rented(policy: Any, problem: str) -> None:
    with pytest.raises(PolicyError, match=problem):
        checked_policy(policy)
    with pytest.raises(PolicyError, match=problem):
        eb.backtest(job(60), [policy], history(CALM), starts=1)
    with pytest.raises(PolicyError, match=problem):
        replay(policy, [job(60)], history(CALM))


def test_the_bound_on_machines_counts_those_that_are_open() -> None:
    half = MAX_MACHINES // 2
    policy = Scripted(
        {
            Wake.START: lambda _v, _e: [Request(C3, count=half + 1), Request(C3, count=half)],
        }
    )
    with pytest.raises(PolicyError, match="count is 5,000 and 5,001 machines are open"):
        replay(policy, [job(60)], history(CALM))


def test_the_error_survives_pickling_between_processes() -> None:
    error = failing(lambda _view: [Release(3)])
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.policy, again.time, again.about) == (
        str(error),
        "mine",
        "2015-04-01T00:00:00Z",
        "lease 3",
    )


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers())
)


@given(
    action=st.one_of(
        st.builds(Request, st.one_of(st.just(C3), ANYTHING), ANYTHING, st.booleans(), ANYTHING, ANYTHING),
        st.builds(Release, ANYTHING),
        st.builds(Assign, ANYTHING, ANYTHING),
        st.builds(Save, ANYTHING),
        st.builds(Stop, ANYTHING),
        st.builds(GiveUp, ANYTHING),
        st.builds(WakeAt, ANYTHING),
        st.builds(WakeAtStep, ANYTHING, ANYTHING),
        ANYTHING,
    )
)
def test_whatever_a_policy_answers_is_done_or_told(action: Any) -> None:
    """What is found right by itself can be done without another kind of error."""
    problem = problem_with(action, jobs=2, leases=3, open_machines=0, began_s=START_S)
    policy = Scripted(
        {
            Wake.START: lambda _v, _e: [Request(C3), Request(C3), Request(C3), *([action] if not problem else [])],
        }
    )
    if isinstance(action, Request) and not problem and action.count > 50:
        return
    # Two jobs on one machine, and a machine without a list price, are found when they are done.
    found_later = (PolicyError, InputError) if isinstance(action, (Assign, Request)) else ()
    with suppress(*found_later):
        replay(policy, [job(60), job(60)], history(CALM, hours=1))


def test_a_machine_named_twice_does_no_work_twice() -> None:
    def doubled(view: Any) -> Any:
        for event in view.events:
            if event.wake is Wake.START:
                yield Request(C3)
            elif event.wake is Wake.RUNNING:
                yield Assign(0, [event.lease_id, event.lease_id])

    assert "Assign: lease 0 is named twice; a job runs on it once" in str(failing(doubled))


def test_leases_that_change_after_they_were_checked_do_nothing() -> None:
    class Changing(list[int]):
        asked = 0

        def __iter__(self) -> Any:
            type(self).asked += 1
            return iter([0] if type(self).asked < 2 else [0, 0, 0, 0])

    def sly(view: Any) -> Any:
        for event in view.events:
            if event.wake is Wake.START:
                yield Request(C3)
            elif event.wake is Wake.RUNNING:
                yield Assign(0, Changing([0]))

    def plain(view: Any) -> Any:
        for event in view.events:
            if event.wake is Wake.START:
                yield Request(C3)
            elif event.wake is Wake.RUNNING:
                yield Assign(0, [0])

    honest, tried = (replay(Mine(decide), [job(3600)], history(CALM)) for decide in (plain, sly))
    assert tried.makespan_s == honest.makespan_s


def test_a_policy_that_ends_the_interpreter_is_a_mistake() -> None:
    def leaves(_: Any) -> Any:
        raise SystemExit(0)

    assert "it raised SystemExit: 0" in str(failing(leaves))
