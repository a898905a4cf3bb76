"""Solving as a flow: the models of the bundle and the training days in; what the five systems decide out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task

from ebbtide.forecasts.bundle import ModelBundle, write_solved
from ebbtide.tracking.solve_stage import SOLVERS, Known, Solved
from ebbtide.tracking.tracking import log_solved
from flows.parameters import training_prices


@task(task_run_name="solve-{kind}", persist_result=False)
def solve_one(kind: str, known: Known, settings: Mapping[str, Any], folder: Path) -> Solved:
    """Solve for one system, and write its file."""
    return SOLVERS[kind](known, settings, folder)


@task(task_run_name="track-{solved.kind}", retries=2, retry_delay_seconds=2, persist_result=False)
def track(solved: Solved, folder: Path, tracking: Mapping[str, Any]) -> None:
    """Log one artifact, with its expected cost and risk."""
    log_solved(solved, folder, uri=tracking["uri"], artifacts=tracking["artifacts"])


@flow(name="solve", validate_parameters=False)
def solve(parameters: Mapping[str, Any], tracking: Mapping[str, Any], folder: Path, prices: Path) -> None:
    """Solve for every system, write the manifest, and track.

    Args:
        parameters: The `solve` section of params.yaml, with a section for each artifact.
        tracking: The `tracking` section.
        folder: The model bundle's folder; what is solved goes into its folder `solved`.
        prices: The price file; the days held back are not looked at.

    Raises:
        InputError: A file is not what it should be, the market of the cookbook has no chain, or a deadline cannot
            be met.
    """
    bundle = ModelBundle.read(folder)
    known = Known(bundle, training_prices(prices), prices)
    found = [solve_one(kind, known, parameters[kind], folder) for kind in SOLVERS]
    write_solved(bundle, {solved.kind: solved.part(folder) for solved in found})
    for solved in found:
        track(solved, folder, tracking)
