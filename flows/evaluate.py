"""Evaluation as a flow: statistics, report and tracked runs of a record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task

from ebbtide._files import write_text
from ebbtide._json import json_text
from ebbtide.analysis.record import Record
from ebbtide.analysis.report import write_report
from ebbtide.analysis.tracking import log_record
from ebbtide_papers.readme_table import write_pages


@task
def report(record: Path, into: Path) -> None:
    """Write the page."""
    write_report(Record.read(record), into)


@task
def pages(reproductions: Path, into: Path) -> None:
    """A page for each paper that was reproduced here."""
    write_pages(reproductions, into)


@task
def metrics(record: Path, into: Path) -> None:
    """Write the statistics."""
    write_text(into, json_text(Record.read(record).to_dict()))


@task(retries=2, retry_delay_seconds=2)
def track(
    record: Path,
    parameters: Mapping[str, Any],
    tracking: Mapping[str, Any],
    experiment: str,
    files: tuple[Path, ...],
) -> None:
    """Log a run for each policy."""
    log_record(
        Record.read(record),
        uri=tracking["uri"],
        experiment=experiment,
        artifacts=tracking["artifacts"],
        parameters=parameters,
        files=files,
    )


@flow(name="evaluate")
def evaluate(
    parameters: Mapping[str, Any],
    tracking: Mapping[str, Any],
    made_with: Mapping[str, Any],
    record: Path,
    reproductions: Path,
    into: Path,
) -> None:
    """Evaluate a record.

    Args:
        parameters: The `evaluate` section of params.yaml.
        tracking: The `tracking` section.
        made_with: What to log as parameters of the tracked runs.
        record: The record's folder.
        reproductions: Folder of what `ebbtide reproduce --json` wrote, if it is there.
        into: The folder for the report and the statistics.
    """
    report(record, into / "report.html")
    pages(reproductions, into / "reproductions")
    metrics(record, into / "metrics.json")
    files = (into / "report.html", into / "metrics.json")
    track(record, made_with, tracking, parameters["experiment"], files)
