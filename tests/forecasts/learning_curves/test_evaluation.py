"""Scores worked out by hand, and what the predictors reach on real training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ebbtide.errors import InputError
from ebbtide.forecasts.learning_curves.calibration import (
    calibrate,
    default_calibration,
    read_calibration,
    write_calibration,
)
from ebbtide.forecasts.learning_curves.curves import Curve, read_curves
from ebbtide.forecasts.learning_curves.evaluation import Ends, ends_of
from ebbtide.forecasts.learning_curves.methods import METHODS, LastValue, evaluate_methods, table_two_curves


def test_scores_by_hand() -> None:
    truth = np.array([1.0, 2.0, 4.0, 5.0, 8.0])
    # The best of the five is ranked second; the errors are 1, 0, 0.25, 0 and 0.
    values = np.array([[2.0], [1.9999], [5.0], [5.0], [8.0]])
    ends = Ends(("a",) * 5, truth, values, values - 0.5, values + 0.5)
    scores = ends.scores((0.7,))["by_theta"]["0.7"]
    assert scores["relative_error_mean"] == pytest.approx((1 + 0.00005 + 0.25) / 5)
    assert (scores["top1"], scores["top3"]) == (0.0, 1.0)
    assert scores["band_coverage"] == pytest.approx(3 / 5)


def test_choosing_is_within_a_workload_and_needs_five_runs() -> None:
    truth = np.array([5.0, 6.0, 7.0, 8.0, 9.0, 1.0, 2.0])
    ends = Ends(("a",) * 5 + ("b",) * 2, truth, truth[:, None], truth[:, None], truth[:, None])
    scores = ends.scores((0.5,))
    assert scores["by_theta"]["0.5"]["top1"] == 1.0
    assert scores["by_theta"]["0.5"]["selections"] == 1
    assert scores["workloads"]["b"]["0.5"]["top1"] is None


def test_only_the_first_part_is_shown() -> None:
    curve = Curve("w", "0", np.arange(1.0, 11.0), np.arange(10.0, 0.0, -1.0), 10.0)
    ends = ends_of([curve], LastValue(), (0.1, 0.3, 0.55, 1.0))
    assert ends.values[0].tolist() == [10.0, 8.0, 6.0, 1.0]


@pytest.fixture(scope="module")
def scores() -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = evaluate_methods(
        table_two_curves(), default_calibration()
    )["methods"]
    return found


@pytest.mark.long
def test_the_table_has_every_method_and_theta(scores: dict[str, dict[str, dict[str, dict[str, float]]]]) -> None:
    assert set(scores) == set(METHODS)
    for found in scores.values():
        assert list(found["by_theta"]) == [f"{tenth / 10:g}" for tenth in range(1, 11)]
        assert found["by_theta"]["1"]["relative_error_mean"] == 0.0
        assert found["by_theta"]["1"]["top1"] == 1.0


@pytest.mark.parametrize("theta", ["0.7", "0.8", "0.9"])
def test_earlycurve_is_better_than_its_rivals_from_the_papers_theta_on(
    scores: dict[str, dict[str, dict[str, dict[str, float]]]], theta: str
) -> None:
    """Thresholds were chosen on the other workloads each time."""
    ours = scores["earlycurve"]["by_theta"][theta]
    for rival in ("slaq", "last-value", "power-law", "earlycurve-published"):
        assert ours["relative_error_mean"] < scores[rival]["by_theta"][theta]["relative_error_mean"]
    for workload, found in scores["earlycurve"]["workloads"].items():  # type: ignore[assignment]
        slaq = scores["slaq"]["workloads"][workload][theta]["relative_error_mean"]  # type: ignore[index]
        assert found[theta]["relative_error_mean"] < slaq + 0.012  # type: ignore[index]


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_workload_is_scored_with_what_was_chosen_on_the_others(tmp_path: Path) -> None:
    curves = [curve for curve in table_two_curves() if curve.workload in ("resnet", "alexnet")]
    found = calibrate(curves, changes=(0.08, 0.5), steadies=(0.04,), windows=(1, 3))
    only = calibrate(
        [replace_workload(curve, "alexnet", curve.name) for curve in curves if curve.workload == "alexnet"]
        + [replace_workload(curve, "other", "x" + curve.name) for curve in curves if curve.workload == "alexnet"],
        changes=(0.08, 0.5),
        steadies=(0.04,),
        windows=(1, 3),
    )
    assert found.without["resnet"].thresholds == only.everywhere.thresholds
    assert calibrate(curves, changes=(0.08, 0.5), steadies=(0.04,), windows=(1, 3), workers=2) == found
    write_calibration(found, tmp_path / "c.json")
    assert read_calibration(tmp_path / "c.json") == found
    assert found.for_workload("never seen") == found.everywhere


def replace_workload(curve: Curve, workload: str, name: str) -> Curve:
    return replace(curve, workload=workload, name=name)


def test_bad_calibrations_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two workloads"):
        calibrate([curve for curve in table_two_curves() if curve.workload == "svm"])
    with pytest.raises(InputError, match="no such file"):
        read_calibration(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InputError, match="no calibration"):
        read_calibration(tmp_path / "bad.json")


@pytest.mark.long
@pytest.mark.real_traces
@pytest.mark.parametrize("name", ["learning-curves-resnet.parquet", "learning-curves-nanogpt.parquet"])
def test_real_curves_that_nobody_here_trained(traces: Path, name: str) -> None:
    """Calibrated on ours alone; every fourth of the many."""
    curves = read_curves(traces / name)
    found = evaluate_methods(curves[:: 4 if len(curves) > 400 else 1], default_calibration())["methods"]
    for theta in ("0.5", "0.6", "0.7", "0.8", "0.9"):
        ours, slaq = (found[method]["by_theta"][theta]["relative_error_mean"] for method in ("earlycurve", "slaq"))
        assert ours < slaq
