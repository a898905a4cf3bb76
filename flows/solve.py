"""Solving as a flow: from the models of the bundle and the training days to what one of the systems decides."""

from __future__ import annotations

from pathlib import Path

from prefect import flow, task

from ebbtide.errors import unknown_name
from ebbtide.forecasts.bundle import ModelBundle, write_solved
from ebbtide.tracking.solve_stage import SOLVERS, Known, Solved
from ebbtide.tracking.tracking import log_solved
from flows.parameters import Solve, Tracking
from flows.training_days import training_prices


@task(task_run_name="solve-{kind}", persist_result=False)
def solve_one(kind: str, known: Known, settings: Solve, folder: Path) -> Solved:
    """Solve for one system, and write its file."""
    return SOLVERS[kind](known, getattr(settings, kind).model_dump(mode="json"), folder)


@task(task_run_name="track-{solved.kind}", retries=2, retry_delay_seconds=2, persist_result=False)
def track(solved: Solved, folder: Path, tracking: Tracking) -> None:
    """Log the artifact, with its expected cost and risk."""
    log_solved(solved, folder, uri=tracking.uri, artifacts=tracking.artifacts)


@flow(name="solve", flow_run_name="solve@{kind}")
def solve(kind: str, parameters: Solve, tracking: Tracking, folder: Path, prices: Path) -> None:
    """Solve for one system, write its manifest, and track.

    Args:
        kind: Name of the artifact: cookbook, bids, allocation, portfolio or deadline.
        parameters: A section for each artifact.
        tracking: Where runs are tracked.
        folder: The model bundle's folder; what is solved goes into its folder `solved`.
        prices: The price file; the days held back are not looked at.

    Raises:
        InputError: A file is not what it should be, the market of the cookbook has no chain, or a deadline cannot
            be met.
    """
    if kind not in SOLVERS:
        raise unknown_name("artifact", kind, SOLVERS)
    bundle = ModelBundle.read(folder)
    solved = solve_one(kind, Known(bundle, training_prices(prices), prices), parameters, folder)
    write_solved(bundle, {solved.kind: solved.part(folder)})
    track(solved, folder, tracking)
