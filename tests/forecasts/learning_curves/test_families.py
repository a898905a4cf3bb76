"""Families find the curves that they are of; the inner solver is held to SciPy's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import nnls

from ebbtide.forecasts.learning_curves.curves import Floats
from ebbtide.forecasts.learning_curves.families import (
    Fits,
    Pieces,
    _non_negative,
    exponential,
    level,
    power_law,
    straight,
    sublinear,
)

STEPS = np.arange(1.0, 71.0)


def piece(metric: Floats, weights: Floats | None = None) -> Pieces:
    weights = np.ones_like(metric) if weights is None else weights
    return Pieces(STEPS[None], metric[None], weights[None], np.array([[100.0]]))


@pytest.mark.parametrize(
    ("family", "curve", "tolerance"),
    [
        (sublinear, lambda k: 1 / (0.002 * k**2 + 0.05 * k + 0.5) + 0.3, 0.01),
        (sublinear, lambda k: 1 / (0.1 * k + 0.4) + 0.8, 0.01),
        (sublinear, lambda k: 1 / (0.3 * k + 1.0), 0.02),
        (exponential, lambda k: 0.5 + 2.0 * 0.95**k, 0.01),
        (exponential, lambda k: 0.2 + np.exp(-((k / 40) ** 2)), 0.05),
        (power_law, lambda k: 0.4 + 2.0 * k**-0.5, 0.01),
        (straight, lambda k: 5.0 - 0.02 * k, 1e-9),
        (level, lambda k: np.full_like(k, 3.0), 1e-12),
    ],
)
def test_a_family_extrapolates_its_own_curves(
    family: Callable[[Pieces], Fits], curve: Callable[[Floats], Floats], tolerance: float
) -> None:
    fits = family(piece(curve(STEPS)))
    assert fits.values[0, 0] == pytest.approx(float(curve(np.array([100.0]))[0]), rel=tolerance)


@pytest.mark.parametrize("seed", range(20))
def test_non_negative_least_squares_is_scipys(seed: int) -> None:
    random = np.random.default_rng(seed)
    step, weights = np.sort(random.uniform(0, 1, 12)), random.uniform(0.1, 1.0, 12)
    target = random.normal(1.0, 1.5, 12)
    columns = np.stack([step**2, step, np.ones(12)], axis=1)
    root = np.sqrt(weights)
    expected, _ = nnls(columns * root[:, None], target * root)
    moments = np.array([(weights * step**power).sum() for power in range(5)])
    ours = _non_negative(moments, (weights * target) @ columns)
    np.testing.assert_allclose(ours, expected, atol=1e-6)


@pytest.mark.parametrize("family", [sublinear, exponential, power_law])
def test_no_family_rises_or_falls_below_zero(family: Callable[[Pieces], Fits]) -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        metric = np.abs(random.normal(1.0, 0.5, len(STEPS)))
        pieces = Pieces(STEPS[None], metric[None], np.ones((1, 70)), np.linspace(70, 1000, 30)[None])
        values = family(pieces).values[0]
        assert (np.diff(values) <= 1e-9).all()
        assert values.min() >= -1e-9


@pytest.mark.parametrize("family", [sublinear, exponential, power_law, straight, level])
def test_fits_side_by_side_are_fits_alone_and_padding_is_nothing(family: Callable[[Pieces], Fits]) -> None:
    random = np.random.default_rng(2)
    metric = 1.0 + np.exp(-np.outer(random.uniform(0.01, 0.2, 5), STEPS)) + random.normal(0, 0.01, (5, 70))
    weights = np.ones((5, 70))
    weights[2, 30:] = 0.0
    together = family(Pieces(np.tile(STEPS, (5, 1)), metric, weights, np.full((5, 1), 100.0)))
    alone = family(piece(metric[4]))
    np.testing.assert_allclose(together.values[4], alone.values[0], rtol=1e-9)
    cut = Pieces(STEPS[None, :30], metric[2:3, :30], np.ones((1, 30)), np.array([[100.0]]))
    np.testing.assert_allclose(together.values[2], family(cut).values[0], rtol=1e-9)
