"""Seconds per step: the model before anything is seen, and what is seen after."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import InputError
from ebbtide.jobs.throughput import StepTimes, ThroughputModel, step_times_of
from ebbtide.market.catalogue import default_catalogue

LARGE, QUADRUPLE = (default_catalogue().instance_type("aws", name) for name in ("r4.large", "m4.4xlarge"))

blocks = st.lists(st.tuples(st.integers(1, 50), st.floats(0.01, 100.0)), min_size=1, max_size=20)


@given(blocks)
def test_observed_times_are_the_weighted_mean_and_deviation(rows: list[tuple[int, float]]) -> None:
    times = StepTimes()
    for steps, seconds in rows:
        times = times.observed(steps, seconds)
    steps, each = np.array([row[0] for row in rows]), np.array([row[1] / row[0] for row in rows])
    mean = np.average(each, weights=steps)
    assert times.mean_s == pytest.approx(mean)
    deviation = math.sqrt(np.average((each - mean) ** 2, weights=steps))
    assert times.deviation_s == pytest.approx(deviation, abs=1e-6 * mean)


def test_times_from_what_training_had_taken() -> None:
    times = step_times_of([10.0, 20.0, 40.0], [1.0, 3.0, 5.0])
    assert times.steps == 30
    assert times.mean_s == pytest.approx(4.0 / 30)
    assert times.coefficient_of_variation == pytest.approx(0.3535534)


def test_amdahl_is_found_again() -> None:
    def seconds(cores: int) -> float:
        return 2.0 * (0.25 + 0.75 / cores)

    model = ThroughputModel.fitted({cores: seconds(cores) for cores in (1, 2, 4)})
    assert model.one_core_s == pytest.approx(2.0)
    assert model.parallel == pytest.approx(0.75)


def test_noise_does_not_give_negative_shares() -> None:
    slower = ThroughputModel.fitted({1: 1.0, 2: 1.2})
    assert slower.parallel == 0.0
    assert slower.one_core_s == pytest.approx(1.1)
    perfect = ThroughputModel.fitted({1: 1.0, 2: 0.3})
    assert perfect.parallel == 1.0


def test_speed_is_not_linear_in_price() -> None:
    """SpotTune Fig. 6: m4.4xlarge costs six times r4.large and is less than four times as fast."""
    model = ThroughputModel.fitted({1: 1.0, 2: 0.6})
    ratio = model.seconds_per_step(LARGE) / model.seconds_per_step(QUADRUPLE)
    assert 1.0 < ratio < 0.8 / 0.133


def test_the_start_by_cores_alone_falls_with_cores() -> None:
    """C0 / CPUs, not times (Algorithm 1, line 12): eight times the cores, an eighth of the seconds."""
    model = ThroughputModel.from_cores_alone()
    assert model.seconds_per_step(LARGE) / model.seconds_per_step(QUADRUPLE) == pytest.approx(8.0)


def test_bad_numbers_are_told() -> None:
    with pytest.raises(InputError, match="must be positive"):
        StepTimes().observed(0, 1.0)
    with pytest.raises(InputError, match="must be positive"):
        ThroughputModel.fitted({1: -1.0})
