"""Training of the jobs that are due, for real: the same runs as of `ebbtide run` and `eb.run`."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.artifacts import create_progress_artifact, create_table_artifact, update_progress_artifact
from prefect.futures import wait
from prefect.logging import get_run_logger
from prefect.task_runners import ThreadPoolTaskRunner

from ebbtide.base.files import only_one
from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.settings import RUNS
from ebbtide.errors import TrainingError
from ebbtide.tracking.due_runs import (
    DueResult,
    DueRun,
    bring_to_end,
    due_runs,
    failed,
    mark_done,
    result_of,
    stop_runs,
    unreadable,
)
from flows.parameters import Tracking, parameters

# Real seconds between updates of what Prefect shows.
_SHOWN_EVERY_S = 3.0
# Set once the flow is interrupted: jobs that still wait are not begun.
_ENDING = threading.Event()
# Real seconds between requests to stop the runs of an interrupted flow.
_STOPPED_EVERY_S = 5.0
# Runs side by side. On EC2 each has machines of its own; here they share the cores.
_AT_ONCE = 2


@task(task_run_name="train-{due.run_id}", persist_result=False)
def train_one(due: DueRun, uri: str, artifacts: Path) -> DueResult:
    """Begin a run or continue it, and wait for its end.

    Raises:
        TrainingError: It did not finish; the other runs go on.
    """
    if _ENDING.is_set():
        raise TrainingError(f"run {due.run_id} was not begun: the night was interrupted")
    logger = get_run_logger()
    shown: Any = create_progress_artifact(0.0, key=_key(due), description=f"{due.job.name}: share of its steps")
    last_s = time.monotonic()

    def show(share: float) -> None:
        nonlocal last_s
        if share >= 1.0 or time.monotonic() - last_s >= _SHOWN_EVERY_S:
            last_s = time.monotonic()
            # A server that does not answer must not end a run.
            with suppress(Exception):
                update_progress_artifact(shown, 100.0 * share)

    logger.info("%s: %s", due.run_id, "continued" if due.kept.is_begun else "begun")
    bring_to_end(due, uri, artifacts, show)
    result = result_of(due)
    if not result.is_done:
        raise TrainingError(f"run {due.run_id} did not finish: {result.problem}")
    logger.info("%s: %.4f USD, %.4f USD on demand", due.run_id, result.cost_usd, result.on_demand_usd)
    return result


@flow(name="train", task_runner=ThreadPoolTaskRunner(max_workers=_AT_ONCE))  # type: ignore[arg-type]
def train(
    jobs: Path = Path("jobs"),
    runs: Path = RUNS,
    tracking: Tracking | None = None,
    dues: list[DueRun] | None = None,
) -> list[DueResult]:
    """Train the jobs that are due, each once; a run that was killed is continued.

    One that fails does not stop the others: its task fails, and its result says why.

    Args:
        jobs: Folder with a file for each job.
        runs: Folder in which runs are kept.
        tracking: Where runs are tracked; None: read from params.yaml.
        dues: The runs that are due; None: those that are due now.

    Returns:
        How each run went.

    Raises:
        InputError: Due jobs are being trained already, or the folder of jobs is not there.
    """
    tracking = tracking or parameters(Tracking)
    wrong: Mapping[str, str] = {}
    if dues is None:
        dues, wrong = due_runs(jobs, runs, time.time())
    runs.parent.mkdir(parents=True, exist_ok=True)
    with only_one(runs.parent / "train.lock", "training of due jobs"):
        return _train(dues, wrong, tracking)


def _train(dues: Sequence[DueRun], wrong: Mapping[str, str], tracking: Tracking) -> list[DueResult]:
    uri, artifacts = absolute_uri(tracking.uri), tracking.artifacts.resolve()
    _ENDING.clear()
    futures = [train_one.submit(due, uri, artifacts) for due in dues]
    try:
        ended = [future.result(raise_on_failure=False) for future in futures]
    except BaseException:
        # Cancelled or interrupted: everything is saved, and the next start continues.
        _ENDING.set()
        waiting = list(futures)
        while waiting:
            # Again and again: a run may just have been about to begin.
            stop_runs(dues)
            waiting = list(wait(waiting, timeout=_STOPPED_EVERY_S).not_done)
        raise
    results = [
        result_of(due, found if isinstance(found, BaseException) else None)
        for due, found in zip(dues, ended, strict=True)
    ]
    mark_done(list(zip(dues, results, strict=True)))
    results += unreadable(wrong)
    create_table_artifact(rows_of(results), key="train-costs", description="What training cost, and on demand")
    if problem := failed(results):
        get_run_logger().error(problem)
    return results


def rows_of(results: Sequence[DueResult]) -> list[dict[str, Any]]:
    """A row a run: what it cost, and what its work would have cost on demand."""
    return [
        {
            "job": result.job,
            "run": result.run,
            "state": result.state,
            "cost, USD": round(result.cost_usd, 4),
            "on demand, USD": round(result.on_demand_usd, 4),
            "saved": f"{1 - result.cost_usd / result.on_demand_usd:.0%}" if result.on_demand_usd else "-",
            "refunds, USD": round(result.refund_usd, 4),
            "revocations": result.revocations,
            "late, h": round(result.late_s / HOUR_S, 2) if result.late_s else "",
            "problem": result.problem,
        }
        for result in results
    ]


def absolute_uri(uri: str) -> str:
    """A tracking URI that is the same from every folder, since programs run in folders of their own."""
    file = uri.removeprefix("sqlite:///")
    return uri if file == uri else f"sqlite:///{Path(file).resolve()}"


def _key(due: DueRun) -> str:
    return f"train-{due.run_id}".lower().replace("_", "-")
