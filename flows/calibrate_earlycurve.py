"""Calibrating EarlyCurve as a flow: thresholds chosen on some workloads, all methods scored on the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task, unmapped

from ebbtide.base.cores import usable_cores
from ebbtide.base.files import write_text
from ebbtide.forecasts.learning_curves.calibration import StageCalibration, calibrate, write_calibration
from ebbtide.forecasts.learning_curves.curves import Curve, read_curves
from ebbtide.forecasts.learning_curves.methods import METHODS, evaluate_methods
from ebbtide.tracking.tracking import log_calibration
from flows.parameters import CalibrateEarlyCurve, Tracking
from flows.resumable import KEEP_RESULT, Item, resumable
from flows.task_runner import task_runner


@task(persist_result=False)
def choose(curves: list[Curve], parameters: CalibrateEarlyCurve) -> StageCalibration:
    """Choose thresholds on all workloads, and on all but each."""
    return calibrate(
        curves,
        changes=parameters.changes,
        steadies=parameters.steadies,
        windows=parameters.windows,
        workers=usable_cores(),
    )


@task(task_run_name="score-{item.name}", **KEEP_RESULT)
def score(item: Item, curves: list[Curve], calibration: StageCalibration) -> dict[str, Any]:
    """Score one method; EarlyCurve on each workload with what was chosen on the others."""
    scores: dict[str, Any] = evaluate_methods(curves, calibration, [item.name])["methods"][item.name]
    return scores


@task(retries=2, retry_delay_seconds=2, persist_result=False)
def track(calibration: StageCalibration, scores: Mapping[str, Any], file: Path, tracking: Tracking) -> None:
    """Log the thresholds and every method's scores."""
    log_calibration(calibration, scores, file, uri=tracking.uri, artifacts=tracking.artifacts)


@flow(name="calibrate_earlycurve", task_runner=task_runner())
def calibrate_earlycurve(
    parameters: CalibrateEarlyCurve, tracking: Tracking, curves: Path, into: Path, metrics: Path
) -> None:
    """Choose, score, write and track.

    Args:
        parameters: Thresholds to choose from.
        tracking: Where runs are tracked.
        curves: The curves' file.
        into: The calibration's file.
        metrics: Where scores go.
    """
    whole = read_curves(curves)
    calibration = choose(whole, parameters)
    write_calibration(calibration, into)
    with resumable("calibrate_earlycurve", METHODS, [], [curves, into]) as items:
        found = score.map(items, unmapped(whole), unmapped(calibration)).result()
    scores = dict(zip(METHODS, found, strict=True))
    told = {name: found["by_theta"] for name, found in scores.items()}
    errors = {
        f"relative_error_at_{theta}": row["relative_error_mean"] for theta, row in told["earlycurve"].items()
    }
    write_text(metrics, json.dumps({"methods": told, "scores": errors}, indent=2, allow_nan=False) + "\n")
    track(calibration, scores, into, tracking)
