"""Explanations: what became of each machine, and what is said where something is not known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.markets import C3, R3, START_S, history, job

from ebbtide.engine.explanation import Told, explain
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.policies.api.actions import GiveUp, Release, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.testing.scripted import Scripted, replay


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    """A request that fails, one that succeeds, a machine that is given back after a thousand seconds, the end."""
    policy = Scripted(
        {
            Wake.START: lambda _view, _event: [Request(C3, 0.1, job=0)],
            Wake.LAUNCH_FAILED: lambda view, _event: [Request(R3, job=0), WakeAt(view.now_s + 1000)],
            Wake.TIMER: lambda _view, _event: [Release(1, save=False), GiveUp("seen enough")],
        }
    )
    return replay(policy, [job(7200)], history({C3: [(0, 0.36)], R3: [(0, 0.18)]}))


def test_a_machine_that_was_never_given_cost_nothing_and_the_other_what_is_in_the_ledger(outcome: Outcome) -> None:
    failed, given, back, _given_up = explain(outcome)
    assert [each.job for each in (failed, given)] == ["test", "test"]
    (never,), (held,), (same,) = failed.machines, given.machines, back.machines
    assert (never.state, never.held_s, never.paid_usd, never.refund_usd, never.steps) == ("failed", 0, 0, 0, 0)
    assert math.isnan(never.started_s)
    # Asked for at 20 s, given at 40 s, given back at 1020 s.
    assert (held.state, held.held_s, held.started_s) == ("released", 980, START_S + 40)
    assert held.paid_usd == pytest.approx(0.18 * 980 / 3600) == given.later_usd == failed.later_usd
    assert (given.later_machines, failed.later_machines) == (1, 2)
    assert same == held
    assert math.isnan(back.later_usd)


def test_what_is_not_known_of_a_machine_that_is_charged_is_not_said_to_be_nothing(outcome: Outcome) -> None:
    told = replace(Told.of(outcome), paid_usd={}, refund_usd={}, steps_on={})
    (never,), (held,) = (told.of_lease(lease_id)[0].machines for lease_id in (0, 1))
    assert never.paid_usd == 0.0
    assert math.isnan(held.paid_usd)
    assert (held.refund_usd, held.steps) == (0.0, 0.0)


def test_an_open_machine_is_held_until_now(outcome: Outcome) -> None:
    still = replace(outcome.leases[1], ended_s=math.nan)
    told = replace(Told.of(outcome), leases=[outcome.leases[0], still], now_s=START_S + 640)
    assert told.of_lease(1)[0].machines[0].held_s == 600.0


def test_the_name_of_a_job_that_is_none_is_empty(outcome: Outcome) -> None:
    told = replace(Told.of(outcome), names=[])
    assert {each.job for each in told.all()} == {""}


def test_a_lease_that_is_none_is_refused_with_those_there_are(outcome: Outcome) -> None:
    for lease in (-1, 2):
        with pytest.raises(InputError, match=f"the run has leases 0 to 1, not {lease}"):
            explain(outcome, lease)


def test_a_run_that_was_given_up_says_so_once_and_why(outcome: Outcome) -> None:
    (moment,) = (one for one in outcome.timeline if one.what == "gave up")
    assert (moment.detail, moment.lease_id, moment.job_id) == ("seen enough", -1, -1)
    assert outcome.gave_up == "seen enough"
