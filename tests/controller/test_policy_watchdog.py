"""Beside a policy that thinks for long: heartbeats go on, and a request to stop interrupts it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.waiting import eventually

from ebbtide.controller import policy_watchdog
from ebbtide.controller.policy_watchdog import Attendant
from ebbtide.policies.api.actions import Action, Save


def test_machines_are_told_that_their_controller_lives_while_a_policy_thinks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy_watchdog, "_LOOK_S", 0.02)
    beats: list[str] = []

    def answers() -> Iterator[Action]:
        yield Save(1)
        eventually(lambda: len(beats) >= 3)
        yield Save(2)

    looks = Attendant(lambda: False, lambda: beats.append("beat"))
    looks.begin()
    try:
        assert list(looks.interruptible(answers())) == [Save(1), Save(2)]
    finally:
        looks.end()
    assert len(beats) >= 3
    # Between its answers the controller does that itself.
    before = len(beats)
    looks.look()
    assert len(beats) == before


def test_a_request_to_stop_interrupts_what_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_watchdog, "_LOOK_S", 0.02)
    monkeypatch.setattr(policy_watchdog, "_PATIENCE_S", 0.1)
    caught: list[str] = []

    def answers() -> Iterator[Action]:
        yield Save(1)
        eventually(never, poll_s=0.0)
        yield Save(2)

    def never() -> bool:
        try:
            sum(range(100))
        except Exception:  # what hostile or careless policies do
            caught.append("caught")
        return False

    looks = Attendant(lambda: True, lambda: None)
    looks.begin()
    try:
        assert list(looks.interruptible(answers())) == [Save(1)]
    finally:
        looks.end()
    assert not caught
    # It thinks no more, and is not interrupted again.
    assert looks._thinks_since_s is None


def test_a_look_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it looks at changes meanwhile, in the thread of the policy."""
    monkeypatch.setattr(policy_watchdog, "_LOOK_S", 0.02)
    beats: list[str] = []

    def is_spent() -> bool:
        raise RuntimeError("dictionary changed size during iteration")

    def answers() -> Iterator[Action]:
        eventually(lambda: len(beats) >= 3)
        yield Save(1)

    looks = Attendant(lambda: False, lambda: beats.append("beat"), is_spent=is_spent)
    looks.begin()
    try:
        assert list(looks.interruptible(answers())) == [Save(1)]
    finally:
        looks.end()
    assert len(beats) >= 3
