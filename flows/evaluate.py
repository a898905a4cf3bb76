"""Evaluation as a flow: statistics, report and tracked runs of the records of all jobs."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from prefect import flow, task

from ebbtide.backtesting.record import BacktestRecord, costs_csv, metrics_of
from ebbtide.backtesting.report import write_report
from ebbtide.backtesting.report_answers import answer_of
from ebbtide.backtesting.summary import money_of
from ebbtide.base.files import write_text
from ebbtide.base.json_values import json_text
from ebbtide.tracking.solve_stage import solved_rows
from ebbtide.tracking.tracking import log_record
from flows.parameters import Evaluate, Execute, Tracking


@task(persist_result=False)
def report(records: Mapping[str, BacktestRecord], solved: Path, into: Path) -> None:
    """Write the page: what to rent for each job, what each system decides, and a section for each job."""
    write_report(records, into, solved=solved_rows(solved.parent))


@task(persist_result=False)
def answers(records: Mapping[str, BacktestRecord], into: Path) -> None:
    """Write the first lines of the report as text."""
    found = [answer for name, record in records.items() if (answer := answer_of(name, record))]
    write_text(into, "".join(f"- {answer}\n" for answer in found))


@task(persist_result=False)
def metrics(records: Mapping[str, BacktestRecord], into: Path) -> None:
    """Write the statistics of all jobs and the models that decided; the money alone; and a table for plots."""
    write_text(into / "metrics.json", json_text(metrics_of(records)))
    write_text(
        into / "money.json", json_text({name: money_of(record.summary()) for name, record in records.items()})
    )
    write_text(into / "costs.csv", costs_csv(records))


@task(task_run_name="track-{name}", retries=5, retry_delay_seconds=[2, 10, 30, 60, 120], persist_result=False)
def track(
    name: str, record: BacktestRecord, source: str, tracking: Tracking, experiment: str, files: tuple[Path, ...]
) -> None:
    """Log a run for a job, with one below it for each policy."""
    about = {key: record.about[key] for key in ("billing", "starts", "seed")}
    log_record(
        record,
        uri=tracking.uri,
        experiment=experiment,
        artifacts=tracking.artifacts,
        name=name,
        parameters={"job": name, "prices": source, **about},
        files=files,
    )


@flow(name="evaluate")
def evaluate(
    parameters: Evaluate,
    execute: Execute,
    tracking: Tracking,
    source: str,
    records: Path,
    solved: Path,
    into: Path,
) -> None:
    """Evaluate the records of all jobs.

    Args:
        parameters: Name of the experiment.
        execute: The jobs, in the order of the report.
        tracking: Where runs are tracked.
        source: Source of the prices, a parameter of the tracked runs.
        records: Folder of the records, one for each job.
        solved: Folder of what was solved, in that of the model bundle.
        into: The folder for the report and the statistics.
    """
    _forget(records, execute.runs)
    found = {name: BacktestRecord.read(records / name) for name in execute.runs}
    report(found, solved, into / "report.html")
    answers(found, into / "answers.md")
    metrics(found, into)
    for name, record in found.items():
        track(name, record, source, tracking, parameters.experiment, (into / "metrics.json",))


def _forget(records: Path, jobs: Collection[str]) -> None:
    """Delete what is not of these jobs: DVC leaves records of jobs that were removed, and would count them."""
    for path in records.iterdir():
        if path.name not in jobs:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
