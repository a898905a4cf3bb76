"""Evaluation as a flow: statistics, report and tracked runs of the records of all jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task

from ebbtide.backtesting.record import metrics_of, read_records
from ebbtide.backtesting.report import write_report
from ebbtide.base.files import write_text
from ebbtide.base.json_values import json_text
from ebbtide.tracking.tracking import log_record
from ebbtide_papers.readme_table import write_pages


@task
def report(records: Path, into: Path) -> None:
    """Write the page, with a section for each job."""
    write_report(read_records(records), into)


@task
def pages(reproductions: Path, into: Path) -> None:
    """A page for each paper that was reproduced here."""
    write_pages(reproductions, into)


@task
def metrics(records: Path, into: Path) -> None:
    """Write the statistics of all jobs, and the models that decided."""
    write_text(into, json_text(metrics_of(read_records(records))))


@task(task_run_name="track-{name}", retries=2, retry_delay_seconds=2)
def track(
    records: Path,
    name: str,
    prices: str,
    tracking: Mapping[str, Any],
    experiment: str,
    files: tuple[Path, ...],
) -> None:
    """Log a run for a job, with one below it for each policy."""
    record = read_records(records)[name]
    about = {key: record.about[key] for key in ("billing", "starts", "seed")}
    log_record(
        record,
        uri=tracking["uri"],
        experiment=experiment,
        artifacts=tracking["artifacts"],
        name=name,
        parameters={"job": name, "prices": prices, **about},
        files=files,
    )


@flow(name="evaluate")
def evaluate(
    parameters: Mapping[str, Any],
    tracking: Mapping[str, Any],
    prices: str,
    records: Path,
    reproductions: Path,
    into: Path,
) -> None:
    """Evaluate the records of all jobs.

    Args:
        parameters: The `evaluate` section of params.yaml.
        tracking: The `tracking` section.
        prices: Source of the prices, a parameter of the tracked runs.
        records: Folder of the records.
        reproductions: Folder of what `ebbtide reproduce --json` wrote, if it is there.
        into: The folder for the report and the statistics.
    """
    report(records, into / "report.html")
    pages(reproductions, into / "reproductions")
    metrics(records, into / "metrics.json")
    for name in read_records(records):
        track(records, name, prices, tracking, parameters["experiment"], (into / "metrics.json",))
