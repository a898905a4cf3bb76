"""Curves come from training, and those that come with the package are what it gives."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide.forecasts.learning_curves.methods import table_two_curves
from ebbtide.jobs.reference.measuring import measure_curve, measure_curves
from ebbtide.jobs.reference.profiling import profile


@pytest.mark.parametrize(("workload", "number"), [("svm", 3), ("linear-regression", 0), ("gbt-regression", 1)])
def test_the_packaged_curves_are_what_training_gives(workload: str, number: int) -> None:
    packaged = next(
        curve for curve in table_two_curves() if (curve.workload, curve.name) == (workload, f"{number:02d}")
    )
    steps = int(packaged.steps[9])
    measured = measure_curve(workload, number, steps=steps)
    np.testing.assert_array_equal(measured.steps, packaged.steps[:10])
    # Other processors sum in other orders.
    np.testing.assert_allclose(measured.metric, packaged.metric[:10], rtol=1e-3)
    assert dict(measured.hyperparameters) == dict(packaged.hyperparameters)


@pytest.mark.usefixtures("processes")
@pytest.mark.long
def test_side_by_side_is_one_after_the_other() -> None:
    trials = [("linear-regression", 12), ("linear-regression", 15)]
    for together, (workload, number) in zip(measure_curves_short(trials), trials, strict=True):
        alone = measure_curve(workload, number)
        np.testing.assert_array_equal(together.metric, alone.metric)


def measure_curves_short(trials):  # type: ignore[no-untyped-def]
    return measure_curves(trials, workers=2)


def test_the_packaged_curves_are_all_of_table_two_and_staged_where_the_rate_falls() -> None:
    curves = table_two_curves()
    assert len(curves) == 96
    for curve in curves:
        assert np.isfinite(curve.metric).all()
        assert curve.steps[-1] == curve.max_steps
    staged = [curve for curve in curves if curve.workload == "resnet"]
    falls = []
    for curve in staged:
        epoch = int(curve.hyperparameters["de"])
        before, after = curve.metric[epoch - 6 : epoch], curve.metric[epoch + 2 : epoch + 8]
        falls.append(1 - after.mean() / before.mean())
        # With the lower rate it jumps about less, too.
        assert np.std(np.diff(after)) < np.std(np.diff(before))
    assert min(falls) > 0.01
    assert np.mean(falls) > 0.08


def test_a_profile_has_a_time_for_each_number_of_cores() -> None:
    model, times = profile("svm", 1, cores=(1, 2), seconds=0.1)
    assert set(times) == {1, 2}
    assert all(found.mean_s > 0 and found.steps > 0 for found in times.values())
    assert 0 <= model.parallel <= 1
