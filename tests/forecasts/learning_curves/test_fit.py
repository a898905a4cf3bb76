"""What `fit_curve` answers: on curves of known ends, and on everything else that training can produce."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.forecasts.learning_curves.curves import Status, observed
from ebbtide.forecasts.learning_curves.early_curve import EarlyCurve
from ebbtide.forecasts.learning_curves.methods import LastValue, PublishedEarlyCurve, fit_curve, slaq
from ebbtide.forecasts.learning_curves.stages import PUBLISHED

STEPS = np.arange(1.0, 101.0)


def test_the_verb_is_in_the_library() -> None:
    assert eb.fit_curve is fit_curve


@pytest.mark.parametrize("theta", [0.3, 0.5, 0.7, 0.9])
def test_a_single_stage_is_extrapolated(theta: float) -> None:
    metric = 1 / (0.1 * STEPS + 0.3) + 0.5
    found = fit_curve(STEPS, metric, 100, theta)
    assert found.status is Status.FITTED
    assert found.value == pytest.approx(metric[-1], rel=0.02)
    assert found.lower <= found.value <= found.upper
    assert found.stages == (1.0,)
    assert math.isclose(sum(found.shares.values()), 1.0)


def test_after_a_drop_the_new_stage_counts() -> None:
    """Fig. 11(a): one stage over everything is misled by what came before the drop."""
    before = 0.8 * 0.7 ** STEPS[:50] + 0.8
    after = 0.35 * 0.9 ** np.arange(50) + 0.02
    metric = np.concatenate([before, after])
    staged = fit_curve(STEPS, metric, 100, 0.7, predictor=EarlyCurve(PUBLISHED))
    published = fit_curve(STEPS, metric, 100, 0.7, predictor=PublishedEarlyCurve())
    single = fit_curve(STEPS, metric, 100, 0.7, predictor=slaq())
    assert published.stages == (51.0,)
    assert staged.stages == (1.0, 51.0)
    assert staged.value == pytest.approx(metric[-1], rel=0.3)
    assert abs(single.value - metric[-1]) > 3 * abs(staged.value - metric[-1])


def test_a_plateau_is_converged() -> None:
    metric = np.concatenate([np.linspace(2.0, 1.0, 30), np.full(30, 1.0)])
    found = fit_curve(STEPS[:60], metric, 100)
    assert found.status is Status.CONVERGED
    assert found.value == 1.0


@pytest.mark.parametrize(
    ("metric", "status", "value"),
    [
        ([0.7] * 20, Status.CONVERGED, 0.7),
        ([0.9, 0.8], Status.SHORT, 0.8),
        ([0.9], Status.SHORT, 0.9),
        ([1.0, 0.9, 0.8, 0.7, math.nan], Status.DIVERGED, math.inf),
        ([1.0, 2.0, 1e300, math.inf], Status.DIVERGED, math.inf),
        ([math.nan], Status.DIVERGED, math.inf),
    ],
)
def test_what_cannot_be_fitted_has_an_answer(metric: list[float], status: Status, value: float) -> None:
    found = fit_curve(np.arange(1.0, len(metric) + 1), metric, 100)
    assert found.status is status
    assert found.value == value
    assert found.lower <= value <= found.upper


def test_single_measurements_that_are_not_finite_are_left_out() -> None:
    metric = 1 / (0.1 * STEPS + 0.3) + 0.5
    holes = metric.copy()
    holes[[3, 17, 40]] = math.nan
    assert fit_curve(STEPS, holes, 100, 0.7).value == pytest.approx(
        fit_curve(STEPS, metric, 100, 0.7).value, rel=0.02
    )


def test_a_rising_curve_is_not_promised_to_fall() -> None:
    metric = 0.5 + 0.01 * STEPS[:50]
    assert fit_curve(STEPS[:50], metric, 100).upper >= metric[-1]
    assert fit_curve(STEPS[:50], metric, 100).value > metric.mean()


def test_the_end_itself_is_the_answer() -> None:
    found = fit_curve(STEPS, 1 / STEPS, 100)
    assert (found.value, found.status) == (0.01, Status.FINISHED)


curves = st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf)), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(curves, st.floats(0.05, 1.0))
def test_it_never_fails(metric: list[float], theta: float) -> None:
    for predictor in (None, PublishedEarlyCurve(), slaq(), LastValue()):
        found = fit_curve(np.arange(len(metric)), metric, 60, theta, predictor=predictor)
        assert not math.isnan(found.value)
        assert found.lower <= found.value <= found.upper or found.status is Status.FITTED
        assert found.status is Status.DIVERGED or math.isfinite(found.value)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.001, 1000.0), st.floats(0.01, 100.0), st.integers(0, 5))
def test_units_do_not_matter(scale: float, stretch: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    metric = 1 / (0.1 * STEPS + 0.3) + 0.5 + random.normal(0, 0.01, 100)
    plain = fit_curve(STEPS, metric, 100, 0.6)
    scaled = fit_curve(STEPS * stretch, metric * scale, 100 * stretch, 0.6)
    assert scaled.value == pytest.approx(plain.value * scale, rel=1e-3)


def test_together_or_alone_is_the_same_without_a_sweep() -> None:
    random = np.random.default_rng(3)
    seen = [observed(STEPS[:n], 1 / STEPS[:n] + random.uniform(0, 1), 100) for n in (3, 20, 50, 80)]
    predictor = EarlyCurve()
    assert [found.value for found in predictor.ends(seen)] == pytest.approx(
        [predictor.ends([each])[0].value for each in seen]
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (([1, 2], [1.0], 10), "shape"),
        (([], [], 10), "at least one measurement"),
        (([1, -2], [1.0, 2.0], 10), "not negative"),
        (([1, 2], [1.0, 2.0], 0), "max_steps is 0"),
        (([1, 20], [1.0, 2.0], 10), "beyond max_steps"),
        (([1, 2], [1.0, 2.0], 10, 0.0), "theta is 0"),
    ],
)
def test_bad_input_is_told(arguments: tuple[object, ...], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        fit_curve(*arguments)  # type: ignore[arg-type]


def test_order_and_repeated_steps() -> None:
    seen = observed([3, 1, 2, 2], [0.3, 0.1, 0.9, 0.2], 10)
    assert seen.steps.tolist() == [1, 2, 3]
    assert seen.metric.tolist() == [0.1, 0.2, 0.3]
