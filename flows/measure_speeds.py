"""Measured speeds as a flow: those that live runs of each job have measured, for runs and plans to come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task

from ebbtide.base.files import write_text
from ebbtide.runs.collected_speeds import CollectedSpeeds, speeds_of_runs


@task(persist_result=False)
def collect(runs: Path) -> dict[str, CollectedSpeeds]:
    """The speeds of every job that has run."""
    return speeds_of_runs(runs)


@flow(name="measure_speeds", validate_parameters=False)
def measure_speeds(parameters: Mapping[str, Any], into: Path, metrics: Path) -> None:
    """Collect and write.

    Args:
        parameters: The `measure_speeds` section of params.yaml.
        into: The speeds' file.
        metrics: Where the number of measured jobs and rates goes.
    """
    found = collect(Path(parameters["runs"]))
    write_text(into, json.dumps({name: rates.to_dict() for name, rates in found.items()}, indent=2) + "\n")
    types = sum(len(rates.steps_per_hour) for rates in found.values())
    scores = {"jobs": len(found), "instance_types": types}
    write_text(metrics, json.dumps({"scores": scores}, indent=2) + "\n")
