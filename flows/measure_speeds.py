"""Measured speeds as a flow: those that live runs of each job have measured, for runs and plans to come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prefect import flow, task

from ebbtide.base.files import write_text
from ebbtide.base.input_files import read_json
from ebbtide.forecasts.bundle import speeds_of


@task(persist_result=False)
def merge(measured: Path) -> dict[str, dict[str, Any]]:
    """The speeds of every job; of files that name one job, the last counts."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(measured.glob("*.json")):
        found |= speeds_of(read_json(file), file)
    return found


@flow(name="measure_speeds")
def measure_speeds(measured: Path, into: Path, metrics: Path) -> None:
    """Merge and write.

    Args:
        measured: Folder of speeds by job, as `collect` takes them from runs.
        into: The speeds' file.
        metrics: Where the number of measured jobs and rates goes.
    """
    found = merge(measured)
    write_text(into, json.dumps(found, indent=2) + "\n")
    types = sum(len(rates.get("steps_per_hour", {})) for rates in found.values())
    scores = {"jobs": len(found), "instance_types": types}
    write_text(metrics, json.dumps({"scores": scores}, indent=2) + "\n")
