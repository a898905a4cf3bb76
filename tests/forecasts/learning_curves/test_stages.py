"""Eq. 7, by hand and against the formula spelt out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.forecasts.learning_curves.curves import Floats
from ebbtide.forecasts.learning_curves.stages import PUBLISHED, StageThresholds, stage_starts

FLAT = [1.0] * 8


def spelt_out(metric: Floats, xi: float, epsilon: float) -> list[int]:
    """Eq. 7, measurement by measurement."""

    def zeta(i: int) -> float:
        return float(abs(metric[i] - metric[i - 1]) / metric[i - 1])

    later = range(6, len(metric))
    return [0] + [i for i in later if zeta(i) > xi and all(zeta(j) < epsilon for j in range(i - 5, i))]


def test_a_sudden_fall_after_a_steady_time_begins_a_stage() -> None:
    assert stage_starts(np.array([*FLAT, 0.4, 0.4]), PUBLISHED) == [0, 8]


@pytest.mark.parametrize(
    "metric",
    [
        [*FLAT, 0.6, 0.6],  # changes by 0.4, not above 0.5
        [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.2, 0.2],  # not steady before
        [1.0, 1.0, 1.0, 1.0, 1.0, 0.2],  # only four changes before
        [1.0],
    ],
)
def test_anything_else_does_not(metric: list[float]) -> None:
    assert stage_starts(np.array(metric), PUBLISHED) == [0]


@given(
    st.lists(st.sampled_from([1.0, 1.004, 0.999, 0.4, 0.2, 0.45]), min_size=1, max_size=40),
    st.sampled_from([0.1, 0.5]),
    st.sampled_from([0.005, 0.01]),
)
def test_it_is_the_papers_formula(metric: list[float], xi: float, epsilon: float) -> None:
    values = np.array(metric)
    assert stage_starts(values, StageThresholds(xi, epsilon)) == spelt_out(values, xi, epsilon)


@given(st.lists(st.floats(0.1, 2.0), min_size=1, max_size=40), st.integers(1, 40))
def test_stages_depend_on_nothing_later(metric: list[float], until: int) -> None:
    values = np.array(metric)
    known = stage_starts(values[:until], StageThresholds(0.1, 0.05))
    assert known == [place for place in stage_starts(values, StageThresholds(0.1, 0.05)) if place < until]


def test_windows_see_a_fall_through_noise_that_hides_it_from_single_measurements() -> None:
    random = np.random.default_rng(4)
    level = np.repeat([1.0, 0.75], 40)
    metric = level * (1 + random.normal(0, 0.03, 80))
    assert stage_starts(metric, PUBLISHED) == [0]
    found = stage_starts(metric, StageThresholds(0.12, 0.06, window=5))
    assert len(found) == 2
    assert abs(found[1] - 40) <= 1


def test_windows_do_not_see_a_stage_in_a_smooth_descent() -> None:
    metric = 1.0 / np.arange(1.0, 100.0) + 0.5
    assert stage_starts(metric, StageThresholds(0.08, 0.04, window=3)) == [0]
