"""Decisions of a run: what is kept of them, that they do not change what is done, and what they came to."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.markets import C3, R3, START_S, history, job

from ebbtide.base.utc import HOUR_S
from ebbtide.engine.accounts import Accounts
from ebbtide.engine.decisions import (
    ALTERNATIVES_KEPT,
    HELD,
    NO_REASON,
    OFFERS_KEPT,
    RELEASED,
    REQUESTED,
    TEXT_KEPT,
    Decision,
    Offered,
    _words,
    decision_of,
    decision_values,
)
from ebbtide.engine.explanation import Told
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import CloudError, InputError
from ebbtide.jobs.job import UNKNOWN_STEPS
from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import Action, Hold, Release, Request, WakeAt
from ebbtide.policies.api.events import Event, Wake
from ebbtide.policies.api.reasons import Alternative, Reason
from ebbtide.policies.api.view import View
from ebbtide.policies.deadline.policy import Deadline, DeadlineRule
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.testing.scripted import Scripted, replay

CALM = {C3: [(0, 0.36)], R3: [(0, 0.18)]}


def request_because(because: object) -> Callable[..., list[Request]]:
    return lambda _view, _event: [Request(C3, job=0, because=because)]  # type: ignore[arg-type]


def test_a_request_is_kept_with_what_was_offered_and_what_it_came_to() -> None:
    reason = Reason("I like it", [Alternative("spot", 0.5, "by guess", C3, True), Alternative("wait", 0.7)])
    policy = Scripted({Wake.START: request_because(lambda: reason)})
    outcome = replay(policy, [job(3600, save_s=10, restore_s=20)], history(CALM))
    (made,) = outcome.made
    assert (made.action, made.why, made.lease_ids, made.job_id) == (REQUESTED, "I like it", (0,), 0)
    assert (made.time_s, made.number, made.steps_left, made.spent_usd) == (START_S, 1, 3600, 0.0)
    assert made.woken_by == ("start",)
    assert made.chosen == reason.alternatives[0]
    # One step a second on C3, half as many on R3: one hour and two, at the prices of the moment.
    assert made.offered == (
        Offered(R3, 0.18, 0.175, 2.0, 0.36, 0.35),
        Offered(C3, 0.36, 0.21, 1.0, 0.36, 0.21),
    ) or made.offered == (
        Offered(C3, 0.36, 0.21, 1.0, 0.36, 0.21),
        Offered(R3, 0.18, 0.175, 2.0, 0.36, 0.35),
    )
    assert made.markets == 2
    (told,) = Told.of(outcome).of_lease(0)
    (machine,) = told.machines
    assert machine.paid_usd == outcome.cost_usd == told.later_usd
    assert (machine.state, machine.steps, told.later_machines) == ("released", 3600, 1)
    assert machine.held_s == pytest.approx(100 + 20 + 3600 + 10)


def test_what_is_kept_can_be_written_as_json_and_read_back() -> None:
    chosen = Alternative("wait", math.inf, "too late", None, True)
    made = Decision(
        3, 5.0, HELD, 0, (1, 2), R3, False, math.inf, ("start",), 7.0, 0.5, "why",
        (chosen, Alternative("spot", 1.0, "x", C3)), (Offered(C3, 0.1, None, 1.0, 0.1, None),), 4,
    )  # fmt: skip
    assert decision_of(json.loads(json.dumps(decision_values(made)))) == made


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def _raises_what_cannot_be_said() -> Reason:
    raise _Unspeakable


@pytest.mark.parametrize(
    "because",
    [
        lambda: 1 / 0,
        _raises_what_cannot_be_said,
        lambda: "because",
        "because",
        lambda: [Alternative("wait")],
        Reason(3),  # type: ignore[arg-type]
        Reason("why", None),  # type: ignore[arg-type]
        Reason("why", [1]),  # type: ignore[list-item]
        Reason("why", [Alternative("wait", None)]),  # type: ignore[arg-type]
        Reason("why", [Alternative("wait", 1.0, "how", "eu-1a")]),  # type: ignore[arg-type]
    ],
    ids=[
        "raises",
        "raises what cannot be said",
        "gives text",
        "is text",
        "gives a list",
        "number",
        "none",
        "no alternative",
        "no cost",
        "no market",
    ],
)
def test_a_reason_that_cannot_be_made_ends_no_run(because: object) -> None:
    outcome = replay(Scripted({Wake.START: request_because(because)}), [job(100)], history(CALM))
    assert outcome.finished
    assert outcome.made[0].why.startswith(NO_REASON)


def test_of_a_reason_no_more_is_kept_than_anybody_reads() -> None:
    because = Reason("w" * 10_000, [Alternative("c" * 10_000, 1, "\ud800")])  # type: ignore[arg-type]
    (made,) = replay(Scripted({Wake.START: request_because(because)}), [job(100)], history(CALM)).made
    (one,) = made.alternatives
    assert (len(made.why), len(one.choice), one.how) == (TEXT_KEPT, TEXT_KEPT, "?")
    assert decision_of(json.loads(json.dumps(decision_values(made)))) == made


def test_a_job_that_is_held_is_told_of_once_as_long_as_the_reason_is_the_same() -> None:
    words = iter(["cheap later", "cheap later", "now"])

    def hold(view: View, _event: object) -> list[Action]:
        word = next(words, None)
        return [Hold(0, Reason(word)), WakeAt(view.now_s + 10)] if word else []

    policy = Scripted({Wake.START: hold, Wake.TIMER: hold})
    outcome = replay(policy, [job(100)], history(CALM))
    assert [(made.action, made.why) for made in outcome.made] == [(HELD, "cheap later"), (HELD, "now")]


def test_a_release_says_of_which_job_and_market() -> None:
    policy = Scripted({
        Wake.START: request_because(None),
        Wake.RUNNING: lambda _view, _event: [Release(0, because=Reason("enough"))],
    })  # fmt: skip
    outcome = replay(policy, [job(3600)], history(CALM))
    last = outcome.made[-1]
    assert (last.action, last.job_id, last.lease_ids, last.market, last.why) == (RELEASED, 0, (0,), C3, "enough")
    assert len(Told.of(outcome).of_lease(0)) == 2


def test_of_many_alternatives_the_chosen_and_the_cheapest_are_kept() -> None:
    many = [Alternative(f"{number}", float(number)) for number in range(100)]
    many.append(Alternative("mine", 1e9, is_chosen=True))
    outcome = replay(Scripted({Wake.START: request_because(Reason("x", many))}), [job(100)], history(CALM))
    kept = outcome.made[0].alternatives
    assert [one.choice for one in kept] == ["mine", *map(str, range(ALTERNATIVES_KEPT - 1))]


def test_a_lease_that_is_none_is_an_error() -> None:
    outcome = replay(Scripted({Wake.START: request_because(None)}), [job(100)], history(CALM))
    with pytest.raises(InputError, match="the run has leases 0 to 0, not 7"):
        Told.of(outcome).of_lease(7)


@pytest.mark.parametrize("billing", ["gcp-spot", "ec2-hourly"])
def test_the_sums_of_the_default_policy_are_those_that_a_person_comes_to(billing: str) -> None:
    prices = history({C3: [(0, 0.04), (5000, 0.12)], R3: [(0, 0.03)]}, hours=200)
    outcome = replay(Ebbtide(), [job(50_000, save_s=10, restore_s=20)], prices, billing=billing)
    requests = [made for made in outcome.made if made.action == REQUESTED]
    assert requests
    checked = 0
    for made in requests:
        assert made.chosen is not None
        for one in made.alternatives:
            if (found := _SUM.match(one.how)) is not None:
                price, hours, share = (float(found[name] or 1) for name in ("price", "hours", "share"))
                assert price * hours * share + float(found["egress"] or 0) == pytest.approx(
                    one.expected_usd, rel=1e-5
                )
                start, restore, work = (float(found[name]) for name in ("start", "restore", "work"))
                period_h = 1.0 if billing == "ec2-hourly" else 1.0 / HOUR_S
                whole = math.ceil((start + restore + work) / HOUR_S / period_h - 1e-6) * period_h
                assert hours == pytest.approx(whole, abs=2.0 / HOUR_S)
                checked += 1
        assert made.chosen.expected_usd == min(one.expected_usd for one in made.alternatives)
    assert checked >= 2


_SUM = re.compile(
    r"(?P<price>[\d.]+) USD/h x (?P<hours>[\d.]+) h(?: x (?P<share>[\d.]+) paid[^+(]*)?"
    r"(?: \+ egress (?P<egress>[\d.]+) USD)? "
    r"\(start (?P<start>\d+) s, restore (?P<restore>\d+) s, work (?P<work>\d+) s\)"
)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 200), st.floats(0.01, 0.3)), min_size=1, max_size=8, unique_by=lambda p: p[0]
    ),
    st.sampled_from(["ebbtide", "table", "progress"]),
)
def test_what_is_weighed_has_one_choice_and_it_is_what_was_requested(
    points: list[tuple[int, float]], which: str
) -> None:
    prices = history(
        {C3: [(0, 0.1), *((600 * at, usd) for at, usd in sorted(points))], R3: [(0, 0.09)]}, hours=300
    )
    policy = {
        "ebbtide": Ebbtide(deadline_s=20 * HOUR_S),
        "table": Deadline(deadline_s=20 * HOUR_S),
        "progress": Deadline(DeadlineRule.PROGRESS, deadline_s=20 * HOUR_S),
    }[which]
    outcome = replay(policy, [job(20_000, save_s=10, restore_s=20)], prices, billing="gcp-spot")
    _check_choices(outcome)


def _check_choices(outcome: Outcome) -> None:
    assert all(not made.why.startswith(NO_REASON) for made in outcome.made)
    for made in outcome.made:
        chosen = [one for one in made.alternatives if one.is_chosen]
        if made.action == REQUESTED and made.alternatives:
            assert len(chosen) == 1
            if not made.on_demand:
                assert chosen[0].market == made.market


def test_only_a_job_whose_length_is_known_has_steps() -> None:
    made = Decision(1, 0.0, HELD, 0, (), None, False, math.inf, (), 0.0, 0.0, "", (), (), 0)
    known = {0.0: True, 1e6: True, math.nan: True, UNKNOWN_STEPS / 2: True, UNKNOWN_STEPS / 2 + 1: False}
    assert {left: replace(made, steps_left=left).has_steps for left in known} == known


def test_what_is_offered_are_the_markets_that_can_run_the_job_each_once() -> None:
    """None of another type, wherever it stands among the others; and what it would cost on both machines."""
    other, dear = (
        Market("aws", "us-east-1", zone, kind) for zone, kind in (("a", "m5.large"), ("z", "c3.xlarge"))
    )
    cheap = {Market("aws", "us-east-1", f"c{number}", "r3.large"): [(0, 0.01)] for number in range(OFFERS_KEPT)}
    policy = Scripted({Wake.START: lambda _view, _event: [Request(dear, job=0, count=2)]})
    gang = job(3600, machines=2)
    (made,) = replay(policy, [gang], history({other: [(0, 0.001)], dear: [(0, 0.36)], **cheap})).made
    # Those of least cost, and the one that was asked for in any case.
    assert [one.market for one in made.offered] == [*cheap, dear]
    assert made.markets == OFFERS_KEPT + 1
    # Two machines do two steps a second there, and one here.
    assert made.offered[-1] == Offered(dear, 0.36, 0.21, 0.5, 0.36, 0.21)
    assert made.offered[0] == Offered(next(iter(cheap)), 0.01, 0.175, 1.0, 0.02, 0.35)
    asked = Scripted({Wake.START: lambda _view, _event: [Request(C3, job=0)]})
    (made,) = replay(asked, [job(60)], history(CALM)).made
    assert sorted(one.market for one in made.offered) == [C3, R3]


def test_a_request_for_no_job_in_particular_is_offered_nothing_and_one_on_demand_has_no_max_price() -> None:
    policy = Scripted(
        {Wake.START: lambda _view, _event: [Request(R3), Request(C3, 0.5, job=0), Request(C3, on_demand=True)]}
    )
    made = replay(policy, [job(60)], history(CALM)).made
    assert [(one.job_id, one.markets, len(one.offered)) for one in made] == [(-1, 0, 0), (0, 2, 2), (-1, 0, 0)]
    assert [(one.on_demand, one.max_price_usd_per_hour) for one in made] == [
        (False, math.inf),
        (False, 0.5),
        (True, math.inf),
    ]


def test_what_woke_a_policy_is_told_in_words_and_prices_are_counted() -> None:
    hold = Hold(0, Reason("so"))
    policy = Scripted(
        {
            Wake.START: lambda _view, _event: [Request(C3, 0.1, job=0, because=Reason("first"))],
            Wake.LAUNCH_FAILED: lambda _view, _event: [Request(R3, job=0, because=Reason("second"))],
            Wake.RUNNING: lambda _view, _event: [hold],
            Wake.PRICE: lambda view, _event: [Hold(0, Reason(f"at {view.now_s - START_S:g}"))],
        },
        wakes_on=frozenset({Wake.PRICE}),
    )
    prices = {C3: [(0, 0.36), (300, 0.37)], R3: [(0, 0.18)]}
    told = {one.why: one.woken_by for one in replay(policy, [job(3600)], history(prices)).made}
    assert told["first"] == ("start",)
    assert told["second"] == ("launch failed of lease 0: price 0.3600 above max price 0.1000",)
    assert told["so"] == ("running of lease 1",)
    assert told["at 300"] == ("price",)
    at_once = [Event(Wake.PRICE, START_S), Event(Wake.TIMER, START_S), Event(Wake.PRICE, START_S)]
    assert list(_words(at_once)) == ["timer", "2 prices"]


def test_words_that_just_fit_are_kept_whole_and_longer_ones_end_in_dots() -> None:
    fits, longer = "w" * TEXT_KEPT, "w" * (TEXT_KEPT + 1)
    policy = Scripted({Wake.START: request_because(Reason(fits, [Alternative(longer)]))})
    (made,) = replay(policy, [job(60)], history(CALM)).made
    assert made.why == fits
    assert made.alternatives[0].choice == fits[:-3] + "..."


@pytest.mark.parametrize("error", [InputError("no price is known"), CloudError("it does not answer")])
def test_a_decision_is_kept_although_it_is_not_known_what_was_spent(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_given: object) -> float:
        raise error

    monkeypatch.setattr(Accounts, "spent_usd", fails)
    (made,) = replay(Scripted({Wake.START: request_because(Reason("so"))}), [job(60)], history(CALM)).made
    assert made.why == "so"
    assert math.isnan(made.spent_usd)
