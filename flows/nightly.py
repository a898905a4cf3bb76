"""The nightly run: adds new prices, brings the pipeline up to date, trains the jobs that are due, reports changes.

It is safe to run twice and after a crash: a batch is recognised by its content, the state of the pipeline is known
to DVC, a job's run is found by its name, and a night that was killed is continued, not begun anew.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact
from prefect.logging import get_run_logger

from ebbtide.base.files import only_one, write_text
from ebbtide.clouds.settings import RUNS
from ebbtide.errors import InputError, TrainingError
from ebbtide.forecasts.bundle import DEFAULT_BUNDLE, MANIFEST, SPEEDS, ModelBundle
from ebbtide.jobs.schedule import DueJob
from ebbtide.market.ingestion import BatchRules, BatchVerdict, judged
from ebbtide.market.prices import PriceHistory
from ebbtide.market.sources.ec2_api import fetch_prices
from ebbtide.tracking.due_runs import DueResult, DueRun, due_runs, failed, unreadable
from ebbtide.tracking.night_state import NightReport, NightState
from ebbtide.tracking.nightly import Night, costs_picture, keep_figures, kept_figures, read_figures
from ebbtide.tracking.tracking import PARENT, pipeline_run
from flows.dvc_process import STATE, DvcProcess
from flows.parameters import parameters as section_of_params
from flows.pipeline import server
from flows.task_runner import task_runner
from flows.train import train

PRICES = Path("data/prices.parquet")
SPEEDS_FILE = DEFAULT_BUNDLE / SPEEDS
ACCEPTED, SET_ASIDE = Path("data/accepted"), Path("data/set-aside")
_NIGHT = STATE / "night.json"
_DVC = DvcProcess(STATE)
REPORTS = Path("reports")
SUMMARY = REPORTS / "nightly.md"

_STAGES_S = 6 * 3600.0


@task(retries=3, retry_delay_seconds=[10, 60, 300], timeout_seconds=1800, persist_result=False)
def collect(regions: list[str], instance_types: list[str], known: PriceHistory | None, incoming: Path) -> None:
    """Fetch prices from EC2 that are newer than the known ones, as a batch that is then checked."""
    since: dict[str, float] = {}
    for market, series in (known or {}).items():
        since[market.region] = max(since.get(market.region, 0.0), float(series.times_s[-1]))
    if regions:
        frame = fetch_prices(regions, instance_types=instance_types, since=since)
        if len(frame):
            newest = frame["timestamp"].max()
            PriceHistory.from_frame(frame).write(incoming / f"ec2-{newest:%Y%m%dT%H%M%S}.parquet")


@task(task_run_name="judge-{file.name}", timeout_seconds=1800, persist_result=False)
def judge(file: Path, known: PriceHistory | None, rules: BatchRules, known_until_s: float) -> BatchVerdict:
    """Check one batch against the known prices and the rules."""
    return judged(file, known, rules, known_until_s=known_until_s)


@task
def sort_out(verdicts: Sequence[BatchVerdict]) -> None:
    """Move good batches to those that the pipeline reads, numbered as they came; set bad ones aside and say why.

    The pipeline reads batches in the order of their names, so that a later batch corrects an earlier one. One that
    was accepted before is not accepted again.
    """
    for verdict in verdicts:
        if not verdict.file.exists():
            continue  # a run that was killed has moved it already
        folder = SET_ASIDE if verdict.problem else ACCEPTED
        folder.mkdir(parents=True, exist_ok=True)
        digest, suffix = _digest(verdict.file), "".join(verdict.file.suffixes)
        if verdict.problem:
            write_text(folder / f"{digest}{suffix}.txt", f"{verdict.file.name}: {verdict.problem}\n")
            os.replace(verdict.file, folder / f"{digest}{suffix}")
        elif any(folder.glob(f"*-{digest}*")):
            verdict.file.unlink()
        else:
            number = max((int(file.name.split("-")[0]) for file in folder.glob("*-*")), default=0) + 1
            os.replace(verdict.file, folder / f"{number:06d}-{digest}{suffix}")


@task(retries=1, retry_delay_seconds=30, timeout_seconds=_STAGES_S)
def bring_up_to_date(targets: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Run `dvc repro`, first the stages that read what DVC does not know; returns the names of those that ran.

    Ingestion is run if batches were added since, and speeds are collected again if runs were.
    """
    accepted = sorted(file.name for file in ACCEPTED.glob("*")) if ACCEPTED.exists() else []
    # Speeds that were never collected are collected by `dvc repro`, if anything needs them.
    runs = sorted(path.parent.name for path in RUNS.glob("*/run.json")) if SPEEDS_FILE.exists() else []
    for stage, marker, found in (
        ("ingest", STATE / "ingested.txt", accepted),
        ("measure_speeds", STATE / "measured.txt", runs),
    ):
        known = marker.read_text(encoding="utf-8").split() if marker.exists() else []
        if found != known:
            _DVC.run("repro", "--force", "--single-item", stage, environment=environment)
    _DVC.run("repro", *targets, environment=environment)
    write_text(STATE / "ingested.txt", "".join(f"{name}\n" for name in accepted))
    write_text(STATE / "measured.txt", "".join(f"{name}\n" for name in runs))
    return _DVC.stages_run()


@task(retries=3, retry_delay_seconds=[5, 30, 120], timeout_seconds=1800)
def push() -> bool:
    """Run `dvc push` if a remote is set; returns whether it was run."""
    if not _DVC.run("remote", "list").strip():
        return False
    _DVC.run("push")
    return True


@task
def tell(night: Night) -> None:
    """Write the summary to a file, and summary, tables and figure as artifacts of Prefect."""
    write_text(SUMMARY, night.summary())
    create_markdown_artifact(night.summary(), key="nightly-summary", description="What the night has changed")
    create_table_artifact(night.rows(), key="nightly-figures", description="Models and policies, before and after")
    picture = base64.b64encode(costs_picture(night)).decode()
    create_image_artifact(
        image_url=f"data:image/png;base64,{picture}", key="nightly-picture", description="Costs, before and after"
    )
    costs = [
        {"job": job, "policy": name, "mean cost, USD": round(cost, 4)}
        for job, by_policy in night.after.costs.items()
        for name, cost in by_policy.items()
    ]
    create_table_artifact(costs, key="nightly-costs", description="What each policy costs on the newest prices")


@flow(name="nightly", validate_parameters=False, timeout_seconds=8 * 3600, task_runner=task_runner())
def nightly(parameters: Mapping[str, Any] | None = None, tracking: Mapping[str, Any] | None = None) -> str:
    """Run one night, or continue one that was killed.

    Args:
        parameters: The `nightly` section of params.yaml by name; None: read from the file.
        tracking: The `tracking` section of params.yaml by name; None: read from the file.

    Returns:
        The summary as Markdown text.

    Raises:
        InputError: Another nightly run is under way, or a parameter is not what it should be.
        TrainingError: Everything is done and reported, and a due job did not finish.
    """
    parameters = section_of_params("nightly") if parameters is None else parameters
    tracking = section_of_params("tracking") if tracking is None else tracking
    STATE.mkdir(parents=True, exist_ok=True)
    with only_one(STATE / "lock", "nightly run"):
        _DVC.end_leftovers()
        night = _night(parameters, tracking)
    if problem := failed(night.jobs):
        raise TrainingError(problem)
    return night.summary()


def _night(parameters: Mapping[str, Any], tracking: Mapping[str, Any]) -> Night:
    known = PriceHistory.read(PRICES) if PRICES.exists() else None
    began = NightState(time.time(), known.change_points if known else 0)
    state = (NightState.read(_NIGHT) or began).write(_NIGHT)
    state = _add_batches(parameters, known, state)
    with pipeline_run("nightly", tracking, REPORTS, state.pipeline_run) as (parent, metrics):
        state = replace(state, pipeline_run=parent).write(_NIGHT)
        stages = bring_up_to_date(parameters["targets"], {**server(), PARENT: parent})
        state = state.with_stages(stages).write(_NIGHT)
        get_run_logger().info("stages run: %s", ", ".join(stages) or "none")
        jobs, state = _train(parameters, tracking, parent, state)
        pushed = push() if parameters["push"] else False
        versions = ModelBundle.read(DEFAULT_BUNDLE).versions if (DEFAULT_BUNDLE / MANIFEST).exists() else {}
        after = read_figures(REPORTS, versions)
        promoted = _promoted() if "promote" in state.stages else []
        report = NightReport(
            sum(job.is_done for job in jobs),
            sum(job.revocations for job in jobs),
            math.fsum(job.cost_usd for job in jobs),
            math.fsum(job.on_demand_usd for job in jobs),
            versions,
            promoted,
            max(time.time() - state.began_s, 0.0),
            [job.to_dict() for job in jobs],
        )
        report.write(REPORTS / "nightly.json")
        metrics.update(report.metrics)
        metrics.update(
            {
                f"expected_usd.{job}.{name}": usd
                for job, costs in after.costs.items()
                for name, usd in costs.items()
            }
        )
    night = Night(
        state.batches(accepted=True),
        state.batches(accepted=False),
        (state.change_points, PriceHistory.read(PRICES).change_points),
        state.stages,
        kept_figures(STATE / "accepted.json"),
        after,
        pushed,
        jobs,
        promoted,
    )
    tell(night)
    keep_figures(after, STATE / "accepted.json")
    _DVC.forget()
    _NIGHT.unlink()
    return night


def _add_batches(parameters: Mapping[str, Any], known: PriceHistory | None, state: NightState) -> NightState:
    """Check the batches that have come, and move them; returns the state with what was found."""
    incoming = Path(parameters["incoming"])
    incoming.mkdir(parents=True, exist_ok=True)
    try:
        rules = BatchRules(**parameters["rules"])
    except TypeError as error:
        raise InputError(str(error), file="params.yaml", field="nightly.rules") from None
    collect(parameters["regions"], parameters["instance_types"], known, incoming)
    verdicts: list[BatchVerdict] = []
    for file in batches(incoming):
        # Those that come together may follow one another.
        until_s = max((each.ends_s for each in verdicts if not each.problem), default=-math.inf)
        verdicts.append(judge(file, known, rules, until_s))
    state = state.with_verdicts(verdicts).write(_NIGHT)
    sort_out(verdicts)
    return state


def _train(
    parameters: Mapping[str, Any], tracking: Mapping[str, Any], parent: str, state: NightState
) -> tuple[list[DueResult], NightState]:
    """Train what is due, below the night's run in MLflow; what it trained before it was killed counts."""
    folder = parameters["jobs"]
    found, wrong = due_runs(folder, RUNS, time.time()) if folder is not None else ([], {})
    state = state.with_due([(str(due.job.file), due.due_s) for due in found]).write(_NIGHT)
    dues = [DueRun(job, due_s, RUNS) for file, due_s in state.due if (job := _readable(file)) is not None]
    before = os.environ.get(PARENT)
    os.environ[PARENT] = parent
    try:
        results: list[DueResult] = train(parameters["jobs"], RUNS, tracking, dues) if dues else []
    finally:
        os.environ.pop(PARENT)
        if before is not None:
            os.environ[PARENT] = before
    return [*results, *unreadable(wrong)], state


def _readable(file: str) -> DueJob | None:
    """The due job in a file; None: it was removed or spoilt since the night was killed."""
    try:
        return DueJob.read(file)
    except InputError:
        return None


def _promoted() -> list[str]:
    """Names of the models that the last promotion has promoted; none without one."""
    file = REPORTS / "promotion.json"
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return [str(name) for name in content.get("promoted", [])]


def batches(incoming: Path) -> list[Path]:
    """Files to check, in the order in which they were written; unfinished: a dot first, or .part at the end."""
    found = (
        file
        for file in incoming.iterdir()
        if file.is_file() and not file.name.startswith(".") and file.suffix != ".part"
    )
    return sorted(found, key=lambda file: (file.stat().st_mtime_ns, file.name))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:32]
