"""What runs of one sweep tell about each other."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide.forecasts.learning_curves.early_curve import expected_errors, shrunk


def test_errors_of_a_curve_alone_are_its_own() -> None:
    found = expected_errors(np.array([[0.3, 0.1], [0.4, np.nan]]), np.array([0, 0]), 2, [], pooling=3)
    assert found[0] == pytest.approx([np.sqrt((0.09 + 0.16) / 2), 0.1])
    assert np.isnan(found[1]).all()


def test_a_sweep_counts_for_so_many_moments_and_tells_those_without_any() -> None:
    errors, owner = np.array([[0.1], [0.3]]), np.array([0, 1])
    pooled = (0.01 + 0.09) / 2
    found = expected_errors(errors, owner, 3, [[0, 1, 2]], pooling=3)
    assert found[0, 0] == pytest.approx(np.sqrt((0.01 + 3 * pooled) / 4))
    assert found[2, 0] == pytest.approx(np.sqrt(pooled))


def test_runs_that_differ_by_noise_alone_are_ranked_by_where_they_are() -> None:
    random = np.random.default_rng(1)
    last = random.uniform(1.0, 1.1, 12)
    noise = random.normal(0, 0.05, 12)
    values = last * (0.8 + noise)
    off = random.normal(0, 0.05, 12) * last
    found = shrunk(values, last, off, [list(range(12))])
    assert (
        np.abs(found / last - np.median(values / last)).max()
        < np.abs(values / last - np.median(values / last)).max()
    )
    certain = shrunk(values, last, np.zeros(12), [list(range(12))])
    np.testing.assert_allclose(certain, values)
    hopeless = shrunk(values, last, off * 100, [list(range(12))])
    assert np.argsort(hopeless).tolist() == np.argsort(last).tolist()


def test_few_runs_and_unknown_errors_change_nothing() -> None:
    values, last = np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 4.0])
    np.testing.assert_array_equal(shrunk(values, last, np.zeros(3), [[0, 1, 2]]), values)
    many = np.arange(1.0, 9.0)
    np.testing.assert_array_equal(shrunk(many, many, np.full(8, np.nan), [list(range(8))]), many)
