"""Measuring learning curves as a flow: every setting of Table II trained to its end, and tracked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from prefect import flow, task
from prefect.logging import get_run_logger

from ebbtide.forecasts.learning_curves.curves import Curve, curves_frame, curves_of, write_curves
from ebbtide.forecasts.learning_curves.methods import table_two_curves
from flows.ingest import input_files
from flows.parameters import MeasureCurves, Tracking
from flows.resumable import KEEP_RESULT, Item, resumable


@task(task_run_name="train-{item.name}", **KEEP_RESULT)
def train(item: Item, parameters: MeasureCurves, datasets: Path) -> dict[str, Any]:
    """Train all settings of one workload, some side by side; returns the columns of their curves."""
    # PyTorch and scikit-learn take seconds to import, and packaged curves need neither.
    from ebbtide.jobs.reference.benchmarks import benchmark
    from ebbtide.jobs.reference.measuring import measure_curves as train_to_the_end

    numbers = parameters.settings
    chosen = range(len(benchmark(item.name).settings)) if numbers is None else numbers
    curves = train_to_the_end(
        [(item.name, int(number)) for number in chosen],
        seed=parameters.seed,
        data=datasets if input_files(datasets) else None,
        workers=parameters.workers,
    )
    return {str(column): values.tolist() for column, values in curves_frame(curves).items()}


@task(retries=2, retry_delay_seconds=2, persist_result=False)
def track(curves: list[Curve], seed: int, tracking: Tracking) -> None:
    """Log every curve as a run."""
    from ebbtide.tracking.tracking import log_curves

    log_curves(curves, uri=tracking.uri, artifacts=tracking.artifacts, seed=seed)


@flow(name="measure_curves")
def measure_curves(parameters: MeasureCurves, tracking: Tracking, datasets: Path, into: Path) -> None:
    """Take the curves of the package, or train; write them, and track those that were trained.

    Args:
        parameters: Which curves, and how they are trained.
        tracking: Where runs are tracked.
        datasets: Folder of the original datasets; where it is empty, trainings use stand-ins.
        into: The Parquet file.
    """
    if parameters.source == "packaged":
        # They were trained, and tracked, where the package was made.
        write_curves([curve for curve in table_two_curves() if curve.workload in parameters.workloads], into)
        return
    curves: list[Curve] = []
    settings = parameters.model_dump(mode="json")
    with resumable("measure_curves", parameters.workloads, settings, [datasets]) as items:
        # One workload after the other: each keeps all its workers busy by itself.
        for item in items:
            curves += curves_of(pd.DataFrame(train(item, parameters, datasets)))
            get_run_logger().info("trained %s", item.name)
        write_curves(curves, into)
        track(curves, parameters.seed, tracking)
