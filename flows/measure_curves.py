"""Measuring learning curves as a flow: every setting of Table II trained to its end, and tracked."""

from __future__ import annotations

from pathlib import Path

from prefect import flow, task
from prefect.logging import get_run_logger

from ebbtide.forecasts.learning_curves.curves import Curve, write_curves
from ebbtide.forecasts.learning_curves.methods import table_two_curves
from flows.parameters import MeasureCurves, Tracking


@task(task_run_name="train-{workload}", persist_result=False)
def train(workload: str, parameters: MeasureCurves) -> list[Curve]:
    """Train all settings of one workload, some side by side."""
    # PyTorch and scikit-learn take seconds to import, and packaged curves need neither.
    from ebbtide.jobs.reference.benchmarks import benchmark
    from ebbtide.jobs.reference.measuring import measure_curves as train_to_the_end

    numbers = parameters.settings
    chosen = range(len(benchmark(workload).settings)) if numbers is None else numbers
    return train_to_the_end(
        [(workload, int(number)) for number in chosen],
        seed=parameters.seed,
        data=parameters.data,
        workers=parameters.workers,
    )


@task(retries=2, retry_delay_seconds=2, persist_result=False)
def track(curves: list[Curve], seed: int, tracking: Tracking) -> None:
    """Log every curve as a run."""
    from ebbtide.tracking.tracking import log_curves

    log_curves(curves, uri=tracking.uri, artifacts=tracking.artifacts, seed=seed)


@flow(name="measure_curves")
def measure_curves(parameters: MeasureCurves, tracking: Tracking, into: Path) -> None:
    """Take the curves of the package, or train; write them, and track those that were trained.

    Args:
        parameters: Which curves, and how they are trained.
        tracking: Where runs are tracked.
        into: The Parquet file.
    """
    if parameters.source == "packaged":
        # They were trained, and tracked, where the package was made.
        write_curves([curve for curve in table_two_curves() if curve.workload in parameters.workloads], into)
        return
    curves: list[Curve] = []
    # One workload after the other: each keeps all its workers busy by itself.
    for workload in parameters.workloads:
        curves += train(workload, parameters)
        get_run_logger().info("trained %s", workload)
    write_curves(curves, into)
    track(curves, parameters.seed, tracking)
