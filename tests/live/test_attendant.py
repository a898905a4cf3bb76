"""Beside a policy that thinks for long: heartbeats go on, and a request to stop interrupts it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from ebbtide.live import attendant
from ebbtide.live.attendant import Attendant
from ebbtide.policies.api.actions import Action, Save


def test_machines_are_told_that_their_controller_lives_while_a_policy_thinks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attendant, "_LOOK_S", 0.02)
    beats: list[float] = []

    def answers() -> Iterator[Action]:
        yield Save(1)
        end_s = time.monotonic() + 10.0
        while len(beats) < 3 and time.monotonic() < end_s:
            time.sleep(0.01)
        yield Save(2)

    looks = Attendant(lambda: False, lambda: beats.append(time.monotonic()))
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
    monkeypatch.setattr(attendant, "_LOOK_S", 0.02)
    monkeypatch.setattr(attendant, "_PATIENCE_S", 0.1)
    caught: list[str] = []

    def answers() -> Iterator[Action]:
        yield Save(1)
        end_s = time.monotonic() + 20.0
        while time.monotonic() < end_s:
            try:
                sum(range(100))
            except Exception:  # what hostile or careless policies do
                caught.append("caught")
        yield Save(2)

    looks = Attendant(lambda: True, lambda: None)
    looks.begin()
    try:
        began_s = time.monotonic()
        assert list(looks.interruptible(answers())) == [Save(1)]
    finally:
        looks.end()
    assert time.monotonic() - began_s < 10.0
    assert not caught
    # It thinks no more, and is not interrupted again.
    assert looks._thinks_since_s is None


def test_a_look_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it looks at changes meanwhile, in the thread of the policy."""
    monkeypatch.setattr(attendant, "_LOOK_S", 0.02)
    beats: list[float] = []

    def is_spent() -> bool:
        raise RuntimeError("dictionary changed size during iteration")

    def answers() -> Iterator[Action]:
        end_s = time.monotonic() + 10.0
        while len(beats) < 3 and time.monotonic() < end_s:
            time.sleep(0.01)
        yield Save(1)

    looks = Attendant(lambda: False, lambda: beats.append(time.monotonic()), is_spent=is_spent)
    looks.begin()
    try:
        assert list(looks.interruptible(answers())) == [Save(1)]
    finally:
        looks.end()
    assert len(beats) >= 3
