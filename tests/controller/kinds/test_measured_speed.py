"""Speed as measured: the first step left out, believed after a minute, correcting what was declared elsewhere."""

from __future__ import annotations

import json

import pytest

from ebbtide.controller.kinds.measured_speed import MeasuredSpeeds, speed_text


def trained(
    speeds: MeasuredSpeeds, job: int, name: str, step_s: float, *, attempt: int = 1, steps: int = 5
) -> list[str]:
    """One training on one machine, which needs a minute to start."""
    speeds.begin(job, attempt, name, 10)
    times = [(10 + n, 60.0 + n * step_s) for n in range(1, steps + 1)]
    return [speeds.reported(job, attempt, step, time_s) for step, time_s in times]


def test_the_first_step_is_left_out_and_a_minute_is_believed() -> None:
    speeds = MeasuredSpeeds()
    told = trained(speeds, 0, "c3.xlarge", 20.0)
    # Steps 11 to 14 take a minute.
    assert told == ["", "", "", "measured 3 steps/min on c3.xlarge", ""]
    assert speeds.measured(0, "c3.xlarge") == pytest.approx(1 / 20)
    assert speeds.measured(0, "c3.large") is None
    assert speeds.measured(1, "c3.xlarge") is None


def test_many_steps_are_believed_at_once() -> None:
    speeds = MeasuredSpeeds()
    speeds.begin(0, 1, "c3.xlarge", 0)
    assert speeds.reported(0, 1, 5, 1.0) == ""
    assert speeds.reported(0, 1, 105, 3.0) == "measured 50 steps/s on c3.xlarge"


def test_time_between_two_machines_does_not_count() -> None:
    speeds = MeasuredSpeeds()
    trained(speeds, 0, "c3.xlarge", 20.0)
    # Of an attempt that is over, or of none, nothing counts.
    assert speeds.reported(0, 9, 1000, 1.0) == ""
    speeds.begin(0, 2, "c3.xlarge", 15)
    assert speeds.reported(0, 2, 16, 1e6) == ""
    assert speeds.reported(0, 2, 17, 1e6 + 20.0) == ""
    assert speeds.measured(0, "c3.xlarge") == pytest.approx(1 / 20)


def test_what_was_measured_corrects_what_was_declared() -> None:
    speeds = MeasuredSpeeds()
    declared = {"slow": 1.0, "fast": 4.0}
    assert [speeds.steps_per_s(0, name, rate) for name, rate in declared.items()] == [1.0, 4.0]
    trained(speeds, 0, "slow", 100.0)
    # A hundred times slower there than declared, and so it will be elsewhere.
    assert speeds.steps_per_s(0, "slow", 1.0) == pytest.approx(0.01)
    assert speeds.steps_per_s(0, "fast", 4.0) == pytest.approx(0.04)
    # Of another trial nothing was seen yet.
    assert speeds.steps_per_s(1, "fast", 4.0) == pytest.approx(0.04)
    assert speeds.steps_per_s(0, "none", 0.0) == 0.0
    trained(speeds, 0, "fast", 50.0, attempt=2)
    assert speeds.steps_per_s(0, "fast", 4.0) == pytest.approx(0.02)


def test_a_controller_that_is_started_again_knows_it() -> None:
    speeds = MeasuredSpeeds()
    trained(speeds, 0, "a", 20.0)
    trained(speeds, 3, "a", 10.0, steps=9)
    kept = json.loads(json.dumps(speeds.snapshot()))
    again = MeasuredSpeeds()
    again.restore(kept)
    assert again.measured(0, "a") == speeds.measured(0, "a") == pytest.approx(1 / 20)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(12.34, "12.3 steps/s"), (0.5, "30 steps/min"), (0.001, "3.6 steps/h"), (1e-5, "0.036 steps/h")],
)
def test_a_speed_is_a_number_one_can_read(rate: float, text: str) -> None:
    assert speed_text(rate) == text


def test_by_hand_a_type_that_one_trial_was_measured_on_tells_of_others() -> None:
    """Trial 0 is twice as fast as declared on a, and half as fast on b; trial 1 is slower by a third on a."""
    speeds = MeasuredSpeeds()
    for job_id in range(3):
        for kind in "abc":
            speeds.steps_per_s(job_id, kind, 1.0)
    speeds.add(0, "a", 200, 100.0)
    speeds.add(0, "b", 200, 400.0)
    assert speeds.steps_per_s(2, "a", 1.0) == pytest.approx(2.0)
    assert speeds.steps_per_s(2, "b", 1.0) == pytest.approx(0.5)
    # Of c nothing is known but that trials are as fast as declared in the mean.
    assert speeds.steps_per_s(2, "c", 1.0) == pytest.approx(1.0)
    speeds.add(1, "a", 128, 100.0)
    # In the mean the two are 1.6 times as fast on a, and it is 0.8 times that; so it is on b.
    assert speeds.steps_per_s(1, "b", 1.0) == pytest.approx(0.5 * 0.8)
    assert speeds.steps_per_s(1, "c", 1.0) == pytest.approx(1.28)
