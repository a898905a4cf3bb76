"""Learning curves in MLflow: a run for each setting with its metric by step, and for each calibration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param

from ebbtide.analysis.tracking import parent_tags, tracking
from ebbtide.forecasts.learning_curves.calibration import Calibration
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.throughput import step_times_of

EXPERIMENT = "learning-curves"

# MLflow takes so many metrics at once.
_AT_ONCE = 1000


def log_curves(curves: Sequence[Curve], *, uri: str, artifacts: str | Path, seed: int) -> None:
    """Log curves, each as a run tagged with its workload.

    Args:
        curves: Whole ones.
        uri: Where to track.
        artifacts: See `tracking`.
        seed: They were trained with.
    """
    with tracking(uri, EXPERIMENT, artifacts) as client:
        home = client.get_experiment_by_name(EXPERIMENT).experiment_id
        for curve in curves:
            tags = {"ebbtide.kind": "learning-curve", "ebbtide.workload": curve.workload, **parent_tags()}
            run_id = client.create_run(home, run_name=f"{curve.workload}-{curve.name}", tags=tags).info.run_id
            about = {"workload": curve.workload, "setting": curve.name, "seed": seed, **curve.hyperparameters}
            client.log_batch(run_id, params=[Param(key, str(value)) for key, value in about.items()])
            seconds = curve.train_seconds if curve.train_seconds is not None else [0.0] * len(curve.steps)
            metrics = [
                Metric("metric", float(value), round(float(spent) * 1000), int(step))
                for step, value, spent in zip(curve.steps, curve.metric, seconds, strict=True)
            ]
            summary = {"final": curve.final}
            if curve.train_seconds is not None and len(curve.steps) > 1:
                times = step_times_of(curve.steps.tolist(), curve.train_seconds.tolist())
                summary |= {"seconds_per_step": times.mean_s, "step_time_cv": times.coefficient_of_variation}
            metrics += [Metric(key, value, 0, int(curve.max_steps)) for key, value in summary.items()]
            for some in _batches(metrics):
                client.log_batch(run_id, metrics=some)
            client.set_terminated(run_id)


def log_calibration(
    calibration: Calibration, scores: Mapping[str, Any], file: Path, *, uri: str, artifacts: str | Path
) -> None:
    """Log a calibration as a run, and under it every method's scores, theta in percent as the step.

    Args:
        calibration: What was chosen.
        scores: By method: `by_theta`.
        file: The calibration's own, kept with the run.
        uri: Where to track.
        artifacts: See `tracking`.
    """
    with tracking(uri, EXPERIMENT, artifacts) as client:
        home = client.get_experiment_by_name(EXPERIMENT).experiment_id
        tags = {"ebbtide.kind": "earlycurve-calibration", **parent_tags()}
        parent = client.create_run(home, run_name="calibrate EarlyCurve", tags=tags).info.run_id
        chosen = calibration.everywhere.thresholds
        client.log_param(parent, "xi", chosen.change)
        client.log_param(parent, "epsilon", chosen.steady)
        client.log_artifact(parent, file)
        for name, found in scores.items():
            own = {"ebbtide.kind": "curve-predictor", "mlflow.parentRunId": parent}
            run_id = client.create_run(home, run_name=name, tags=own).info.run_id
            client.log_param(run_id, "method", name)
            metrics = [
                Metric(key, float(value), 0, round(float(theta) * 100))
                for theta, values in found["by_theta"].items()
                for key, value in values.items()
                if value is not None
            ]
            for some in _batches(metrics):
                client.log_batch(run_id, metrics=some)
            client.set_terminated(run_id)
        client.set_terminated(parent)


def _batches(metrics: Iterable[Metric]) -> Iterator[list[Metric]]:
    rest = iter(metrics)
    while some := list(islice(rest, _AT_ONCE)):
        yield some
