"""How much of a notice is kept for saving."""

from __future__ import annotations

import pytest

from ebbtide.agent.work import SavingTimes


def known(**options: float) -> SavingTimes:
    times = SavingTimes(**options)
    times.saved(4.0)
    times.uploaded(6.0)
    return times


def test_before_anything_is_known_the_first_guess_counts_and_a_step_that_has_to_end() -> None:
    times = SavingTimes(first_s=30.0, factor=1.5, margin_s=2.0)
    assert times.needed_s == 32.0
    times.stepped(10.0)
    assert times.needed_s == 30.0 + 15.0 + 2.0


def test_a_program_that_saves_between_steps_alone_needs_the_time_of_a_step_too() -> None:
    times = known(factor=1.5, margin_s=2.0)
    assert times.needed_s == pytest.approx(1.5 * 10.0 + 2.0)
    times.stepped(20.0)
    assert times.needed_s == pytest.approx(1.5 * 30.0 + 2.0)


def test_the_slowest_of_recent_steps_counts_until_it_is_long_ago() -> None:
    times = known(factor=1.0, margin_s=0.0)
    times.stepped(20.0)
    for _ in range(50):
        times.stepped(1.0)
    assert times.needed_s == 30.0
    for _ in range(300):
        times.stepped(1.0)
    assert times.needed_s == 11.0


def test_of_savings_the_slowest_of_three_counts() -> None:
    times = known(factor=1.0, margin_s=0.0)
    for seconds in (1.0, 2.0, 3.0):
        times.saved(seconds)
        times.uploaded(seconds)
    assert times.needed_s == 6.0


def test_steps_do_not_change_how_often_it_is_saved() -> None:
    times = known()
    before = times.interval_s(3600.0)
    times.stepped(100.0)
    assert times.interval_s(3600.0) == before


def test_it_is_saved_as_often_as_revocations_uploads_and_saves_have_it() -> None:
    assert SavingTimes(first_s=30.0).interval_s(3600.0) == 120.0
    times = SavingTimes()
    times.saved(8.0)
    # Young's interval for a machine that is taken every hour; then what is four times as long as a save.
    assert times.interval_s(3600.0) == 240.0
    assert times.interval_s(16.0) == 32.0
    times.uploaded(150.0)
    assert times.interval_s(3600.0) == 300.0


def test_beside_others_their_uploads_count_as_well() -> None:
    times, guessed = known(factor=1.5, margin_s=2.0), SavingTimes(first_s=30.0)
    assert (times.upload_s, guessed.upload_s) == (6.0, 30.0)
    assert times.needed_beside_s([known(), guessed]) == pytest.approx(17.0 + 1.5 * 6.0 + 1.5 * 30.0)
    assert times.needed_beside_s([]) == 17.0
