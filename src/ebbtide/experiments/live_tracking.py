"""A live run in MLflow: one run for the sweep, and under it one for each trial, the same wherever it trains."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from mlflow.entities import Metric

from ebbtide.execution.live.controller import metrics_of
from ebbtide.execution.live.journal import Journal
from ebbtide.execution.live.settings import RunFolder
from ebbtide.execution.outcome import Outcome
from ebbtide.experiments.tracking import tracking
from ebbtide.workloads.sweep import Sweep

_EXPERIMENT = "live runs"
# MLflow takes so many at once.
_BATCH = 1000


def begin_tracking(folder: RunFolder, uri: str, artifacts: Path) -> None:
    """Make the runs, unless the journal has them; programs find theirs in their environment.

    MLflow reads `MLFLOW_RUN_ID` by itself: `mlflow.start_run()` in a program goes on with its trial's run, on
    whatever machine.

    Args:
        folder: The live run's.
        uri: Where to track; machines elsewhere need a server's.
        artifacts: Folder for artifacts, if `uri` is a file.
    """
    journal = Journal(folder.journal)
    if journal.state("tracking") is not None:
        return
    settings = folder.settings
    sweep = Sweep.model_validate(settings.sweep)
    with tracking(uri, _EXPERIMENT, artifacts) as client:
        home = client.get_experiment_by_name(_EXPERIMENT).experiment_id
        about = {"run": settings.run, "policy": settings.policy, "provider": settings.provider}
        tags = {f"ebbtide.{name}": value for name, value in about.items()}
        parent = client.create_run(home, run_name=settings.run, tags={"ebbtide.kind": "live", **tags}).info.run_id
        runs = {}
        for trial in sweep.trials():
            trial_id = f"{settings.run}-{trial.number:03d}"
            own = {"ebbtide.kind": "trial", "ebbtide.trial": trial_id, "mlflow.parentRunId": parent}
            run = client.create_run(home, run_name=trial.name, tags={**own, **tags}).info.run_id
            for key, value in trial.values.items():
                client.log_param(run, key, value)
            # Too large to be copied; where they are is enough to have them again.
            client.set_tag(run, "ebbtide.checkpoints_at", f"{settings.store}/trials/{trial_id}")
            runs[str(trial.number)] = run
    environment = {
        number: {"MLFLOW_TRACKING_URI": uri, "MLFLOW_RUN_ID": run, "MLFLOW_EXPERIMENT_NAME": _EXPERIMENT}
        for number, run in runs.items()
    }
    kept = {"uri": uri, "artifacts": str(artifacts), "parent": parent, "runs": runs}
    journal.keep({"tracking": kept, "environment": environment})


def end_tracking(folder: RunFolder, outcome: Outcome) -> None:
    """Log what trials reported and what the sweep cost; close what has ended. Nothing, where none was begun."""
    kept: dict[str, Any] | None = Journal(folder.journal).state("tracking")
    if kept is None:
        return
    sweep = Sweep.model_validate(folder.settings.sweep)
    now_ms = int(time.time() * 1000)
    with tracking(kept["uri"], _EXPERIMENT, kept["artifacts"]) as client:
        for number, (job, reported) in enumerate(zip(outcome.jobs, metrics_of(folder), strict=True)):
            run = kept["runs"][str(number)]
            # A program that logs to MLflow itself has logged its metric already.
            logged = client.get_run(run).data.metrics
            metrics = [] if sweep.metric in logged else [
                Metric(sweep.metric, value, now_ms, step) for step, value in sorted(reported.items())
            ]  # fmt: skip
            progress = {"steps_done": job.steps_done, "steps_lost": job.steps_lost, "checkpoints": job.checkpoints}
            metrics += [Metric(f"ebbtide.{name}", float(value), now_ms, 0) for name, value in progress.items()]
            for first in range(0, len(metrics), _BATCH):
                client.log_batch(run, metrics=metrics[first : first + _BATCH])
            if not math.isnan(job.finished_s):
                client.set_terminated(run)
        whole = {
            "cost_usd": outcome.cost_usd, "refund_usd": outcome.refund_usd, "revocations": outcome.revocations,
            "steps_lost": outcome.steps_lost, "makespan_h": outcome.makespan_s / 3600.0,
        }  # fmt: skip
        told = [Metric(name, float(value), now_ms, 0) for name, value in whole.items()]
        client.log_batch(kept["parent"], metrics=told)
        if outcome.finished:
            client.set_terminated(kept["parent"])
