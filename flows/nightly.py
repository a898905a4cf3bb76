"""The nightly run: adds new prices, brings the pipeline up to date, trains the jobs that are due, reports changes.

It is safe to run twice and after a crash: a batch is recognised by its content, the state of the pipeline is known
to DVC, a job's run is found by its name, and a night that was killed is continued, not begun anew.
"""

from __future__ import annotations

import base64
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from prefect import flow, task
from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact
from prefect.logging import get_run_logger

from ebbtide.base.files import only_one, write_text
from ebbtide.errors import InputError, TrainingError
from ebbtide.forecasts.bundle import DEFAULT_BUNDLE, MANIFEST, ModelBundle
from ebbtide.jobs.schedule import DueJob
from ebbtide.market.prices import PriceHistory
from ebbtide.storage.objects import object_store
from ebbtide.tracking.due_runs import DueResult, DueRun, due_runs, failed, unreadable
from ebbtide.tracking.night_state import NightReport, NightState
from ebbtide.tracking.nightly import Night, costs_picture, keep_figures, kept_figures, read_figures
from ebbtide.tracking.tracking import PARENT, pipeline_run
from flows.cache_store import push_cache
from flows.collect import ACCEPTED, PRICES, check_batches, collect_speeds, sort_out
from flows.dvc_process import STATE, DvcProcess
from flows.ingest import accepted_batches
from flows.night_commit import check_branch, commit_night, versioned_files
from flows.notify import notify
from flows.parameters import Nightly, Tracking, check_parameters, job_files
from flows.parameters import parameters as section_of_params
from flows.pipeline import environment_of_stages
from flows.task_runner import task_runner
from flows.train import train

_NIGHT = STATE / "night.json"
_DVC = DvcProcess(STATE)
REPORTS = Path("reports")
SUMMARY = REPORTS / "nightly.md"

_STAGES_S = 6 * 3600.0


@task(retries=1, retry_delay_seconds=30, timeout_seconds=_STAGES_S)
def bring_up_to_date(targets: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Version the new batches with DVC and run `dvc repro`; returns the names of the stages that ran."""
    for file in accepted_batches(ACCEPTED):
        if not file.with_name(f"{file.name}.dvc").exists():
            _DVC.run("add", str(file))
    _DVC.run("repro", *targets, environment=environment)
    return _DVC.stages_run()


@task(retries=3, retry_delay_seconds=[5, 30, 120], timeout_seconds=1800)
def push(store: str | None) -> bool:
    """Upload DVC's cache to a store, or run `dvc push` if a remote is set; returns whether it was done."""
    if store is not None:
        get_run_logger().info("%d objects pushed to %s", push_cache(object_store(store)), store)
        return True
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


@flow(
    name="nightly", timeout_seconds=8 * 3600, task_runner=task_runner(), on_failure=[notify], on_crashed=[notify]
)
def nightly(parameters: Nightly | None = None, tracking: Tracking | None = None) -> str:
    """Run one night, or continue one that was killed.

    Args:
        parameters: What the night adds, updates, trains and keeps; None: read from params.yaml.
        tracking: Where runs are tracked; None: read from params.yaml.

    Returns:
        The summary as Markdown text.

    Raises:
        InputError: Another nightly run is under way, or a parameter is not what it should be.
        TrainingError: Everything is done and reported, and a due job did not finish.
    """
    check_parameters()
    parameters = parameters or section_of_params(Nightly)
    tracking = tracking or section_of_params(Tracking)
    if parameters.branch:
        # Before anything is trained and paid.
        check_branch(parameters.branch)
    STATE.mkdir(parents=True, exist_ok=True)
    with only_one(STATE / "lock", "nightly run or collection"):
        _DVC.end_leftovers()
        night = _night(parameters, tracking)
    if problem := failed(night.jobs):
        raise TrainingError(problem)
    return night.summary()


def _night(parameters: Nightly, tracking: Tracking) -> Night:
    known = PriceHistory.read(PRICES) if PRICES.exists() else None
    began = NightState(time.time(), known.change_points if known else 0)
    state = (NightState.read(_NIGHT) or began).write(_NIGHT)
    # Kept before they are moved: a night that is killed between tells of them, too.
    verdicts = check_batches(parameters)
    state = state.with_verdicts(verdicts).write(_NIGHT)
    sort_out(verdicts)
    collect_speeds(parameters.runs)
    with pipeline_run("nightly", tracking.uri, tracking.artifacts, night_files, state.pipeline_run) as (
        parent,
        metrics,
    ):
        state = replace(state, pipeline_run=parent).write(_NIGHT)
        stages = bring_up_to_date(parameters.targets, {**environment_of_stages(), PARENT: parent})
        state = state.with_stages(stages).write(_NIGHT)
        get_run_logger().info("stages run: %s", ", ".join(stages) or "none")
        jobs, state = _train(parameters, tracking, parent, state)
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
        pushed = push(parameters.store) if parameters.push else False
        commit = keep_night(parameters.branch, state.began_s) if parameters.branch else ""
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
        commit,
    )
    tell(night)
    keep_figures(after, STATE / "accepted.json")
    _DVC.forget()
    _NIGHT.unlink()
    return night


def night_files() -> list[Path]:
    """Files kept with the night's run in MLflow: those by which the night is restored, and its reports."""
    found = [*versioned_files(REPORTS, job_files()), *sorted(REPORTS.glob("*.html"))]
    # Of a link, MLflow would keep what it leads to: folders whole, and files from outside the project.
    return [file for file in found if not file.is_symlink()]


@task(retries=1, retry_delay_seconds=30)
def keep_night(branch: str, began_s: float) -> str:
    """Commit the night's parameters, lock file, reports and batches to a branch; returns the commit."""
    return commit_night(branch, began_s, versioned_files(REPORTS, job_files()))


def _train(
    parameters: Nightly, tracking: Tracking, parent: str, state: NightState
) -> tuple[list[DueResult], NightState]:
    """Train what is due, below the night's run in MLflow; what it trained before it was killed counts."""
    folder, runs = parameters.jobs, parameters.runs
    found, wrong = due_runs(folder, runs, time.time()) if folder is not None else ([], {})

    def is_begun(file: str, due_s: float) -> bool:
        job = _readable(file)
        return job is not None and DueRun(job, due_s, runs).kept.is_begun

    state = state.with_due([(str(due.job.file), due.due_s) for due in found], is_begun).write(_NIGHT)
    dues = [DueRun(job, due_s, runs) for file, due_s in state.due if (job := _readable(file)) is not None]
    before = os.environ.get(PARENT)
    os.environ[PARENT] = parent
    try:
        results: list[DueResult] = train(folder, runs, tracking, dues) if folder and dues else []
    finally:
        os.environ.pop(PARENT, None)
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
