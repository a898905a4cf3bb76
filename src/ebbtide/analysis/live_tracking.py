"""A live run in MLflow: one run for the sweep, and a child run for each trial on whatever machines it trains."""

from __future__ import annotations

import json
import logging
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from ebbtide._utc import HOUR_S
from ebbtide.analysis.tracking import tracking
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import DamagedCheckpointError
from ebbtide.jobs.progress import JobProgress
from ebbtide.jobs.sweep import Direction, Sweep
from ebbtide.live.agent_state import TrialRecord
from ebbtide.live.checkpoints.manifest import Manifest
from ebbtide.live.checkpoints.store import CheckpointStore
from ebbtide.live.journal import Journal
from ebbtide.live.money import money_of
from ebbtide.live.settings import LiveSettings, RunFolder
from ebbtide.live.storage import object_store

_LOGGER = logging.getLogger(__name__)

_EXPERIMENT = "live runs"
# The most metrics that MLflow accepts at once.
_BATCH = 1000
# A larger checkpoint of the best trial is not copied.
_MOST_MODEL_BYTES = 200_000_000
_MOST_TEXT = 5000

# Tag of runs whose metric we log: a program that logs to MLflow itself should not have it twice.
_OUR_METRIC = "ebbtide.logs_metric"


def begin_tracking(folder: RunFolder, uri: str, artifacts: Path) -> None:
    """Create the MLflow runs, or resume those in the journal. Programs find theirs in their environment.

    MLflow reads `MLFLOW_RUN_ID` by itself: `mlflow.start_run()` in a program continues its trial's run on any
    machine.

    Args:
        folder: Folder of the live run.
        uri: Tracking URI; machines elsewhere need that of a server.
        artifacts: Folder for artifacts, if `uri` is a file.
    """
    journal = Journal(folder.journal)
    if journal.state("tracking") is not None:
        resume_tracking(folder)
        return
    settings = folder.settings
    sweep = Sweep.model_validate(settings.sweep)
    with tracking(uri, _EXPERIMENT, artifacts) as client:
        home = client.get_experiment_by_name(_EXPERIMENT).experiment_id
        about = {"run": settings.run, "policy": settings.policy, "provider": settings.provider}
        tags = {f"ebbtide.{name}": value for name, value in about.items()}
        parent = client.create_run(home, run_name=settings.run, tags={"ebbtide.kind": "live", **tags}).info.run_id
        client.log_batch(parent, params=[Param(key, value) for key, value in _parameters(settings, sweep).items()])
        runs = {}
        for trial in sweep.trials():
            trial_id = _trial_id(settings, trial.number)
            own = {"ebbtide.kind": "trial", "ebbtide.trial": trial_id, "mlflow.parentRunId": parent}
            run = client.create_run(home, run_name=trial.name or trial_id, tags={**own, **tags}).info.run_id
            client.log_batch(run, params=[Param(key, str(value)) for key, value in trial.values.items()])
            # Checkpoints are too large to copy; their place is enough to find them.
            client.set_tag(run, "ebbtide.checkpoints_at", f"{settings.store}/trials/{trial_id}")
            runs[str(trial.number)] = run
    environment = {
        number: {"MLFLOW_TRACKING_URI": uri, "MLFLOW_RUN_ID": run, "MLFLOW_EXPERIMENT_NAME": _EXPERIMENT}
        for number, run in runs.items()
    }
    kept = {"uri": uri, "artifacts": str(artifacts), "parent": parent, "runs": runs}
    journal.keep({"tracking": kept, "environment": environment})


def resume_tracking(folder: RunFolder) -> None:
    """Mark the killed MLflow runs of a resumed live run as running. Does nothing without tracking."""
    kept = _kept(folder)
    if kept is None:
        return
    with tracking(kept["uri"], _EXPERIMENT, kept["artifacts"]) as client:
        for run in (kept["parent"], *kept["runs"].values()):
            if client.get_run(run).info.status == "KILLED":
                client.update_run(run, status="RUNNING")


def end_tracking(folder: RunFolder, outcome: Outcome) -> None:
    """Log the trials' metrics, their costs and the best trial, and close the runs. Does nothing without tracking.

    A stopped run and its unfinished trials are KILLED; a run with failed trials is FAILED.
    """
    kept = _kept(folder)
    if kept is None:
        return
    settings = folder.settings
    sweep, state = Sweep.model_validate(settings.sweep), Journal(folder.journal).run()
    if state is None:
        return
    trials = state["provider"]["trials"]
    now_ms = int(time.time() * 1000)
    best = best_trial(sweep.direction, trials)
    winner = best[0] if best is not None else _only_one(trials)
    with tracking(kept["uri"], _EXPERIMENT, kept["artifacts"]) as client:
        costs = trial_costs(outcome, trials)
        for number, (job, trial, cost_usd) in enumerate(zip(outcome.jobs, trials, costs, strict=True)):
            run = kept["runs"][str(number)]
            found = _trial_metrics(client, run, sweep, job, trial, cost_usd, now_ms)
            for first in range(0, len(found), _BATCH):
                client.log_batch(run, metrics=found[first : first + _BATCH])
            client.set_tag(run, "ebbtide.winner", str(number == winner).lower())
            client.set_terminated(run, _status(job.is_finished, bool(trial["problem"])))
        parent = kept["parent"]
        money = money_of(state, folder.catalogue)
        whole = {
            "cost_usd": outcome.cost_usd,
            "on_demand_usd": money.on_demand_usd,
            "lost_usd": money.lost_usd,
            "refund_usd": outcome.refund_usd,
            "revocations": outcome.revocations,
            "steps_lost": outcome.steps_lost,
            "makespan_h": outcome.makespan_s / HOUR_S,
        }
        if money.saved_share is not None:
            whole["saved_share"] = money.saved_share
        metrics = [Metric(name, float(value), now_ms, 0) for name, value in whole.items()]
        tags = {"ebbtide.ended": outcome.gave_up or ("finished" if outcome.finished else "the prices are over")}
        if best is not None:
            metrics.append(Metric(f"best_{sweep.metric}", best[2], now_ms, best[1]))
        if winner is not None:
            tags |= {
                "ebbtide.winner": _trial_id(settings, winner),
                "ebbtide.winner_run": kept["runs"][str(winner)],
                "ebbtide.winner_setting": sweep.trials()[winner].name[:_MOST_TEXT],
            }
            tags |= _log_model(client, parent, settings, winner, outcome.finished)
        client.log_batch(parent, metrics=metrics, tags=[RunTag(key, text) for key, text in tags.items()])
        client.set_terminated(parent, _status(outcome.finished, any(trial["problem"] for trial in trials)))


def abandon_tracking(folder: RunFolder, why: str) -> None:
    """Mark the running MLflow runs of a live run whose controller crashed as KILLED, until it is resumed."""
    kept = _kept(folder)
    if kept is None:
        return
    with tracking(kept["uri"], _EXPERIMENT, kept["artifacts"]) as client:
        for run in (kept["parent"], *kept["runs"].values()):
            if client.get_run(run).info.status == "RUNNING":
                client.set_terminated(run, "KILLED")
        client.set_tag(kept["parent"], "ebbtide.ended", why[:_MOST_TEXT])


def best_trial(direction: Direction, trials: Sequence[TrialRecord]) -> tuple[int, int, float] | None:
    """The trial that reported the best value, without failed trials: its number, and the step and the value.

    Args:
        direction: Whether a lower or a higher metric is better.
        trials: The controller's state of each trial: `metrics` by step, and its `problem`.

    Returns:
        None if no trial reported a value.
    """
    sign = -1.0 if direction is Direction.MAXIMIZE else 1.0
    found = [
        (sign * float(value), number, int(step))
        for number, trial in enumerate(trials)
        for step, value in trial["metrics"]
        if not trial["problem"] and not math.isnan(value)
    ]
    if not found:
        return None
    value, number, step = min(found)
    return number, step, sign * value


def _only_one(trials: Sequence[TrialRecord]) -> int | None:
    """The number of the only trial, which is the best without a metric; None: there are several, or it failed."""
    return 0 if len(trials) == 1 and not trials[0]["problem"] else None


def _parameters(settings: LiveSettings, sweep: Sweep) -> dict[str, str]:
    """The settings that the run was started with, as text."""
    of_sweep = (
        "command",
        "entry_point",
        "metric",
        "direction",
        "max_trial_steps",
        "theta",
        "mcnt",
        "budget_usd",
        "deadline_h",
        "decides",
        "billing",
    )
    found: dict[str, Any] = {name: getattr(sweep, name) for name in of_sweep}
    if isinstance(found["command"], list | tuple):
        found["command"] = json.dumps(list(found["command"]))
    found |= {
        "policy": settings.policy,
        "provider": settings.provider,
        "seed": settings.seed,
        "trials": len(sweep.trials()),
        "store": settings.store,
    }
    if sweep.random is not None:
        found["random_seed"] = sweep.random.seed
    return {name: str(value)[:_MOST_TEXT] for name, value in found.items() if value is not None}


def _trial_metrics(
    client: MlflowClient,
    run: str,
    sweep: Sweep,
    job: JobProgress,
    trial: TrialRecord,
    cost_usd: float,
    now_ms: int,
) -> list[Metric]:
    """Metrics that are not logged yet: a run that was stopped before has logged earlier steps."""
    progress = {
        "steps_done": job.steps_done,
        "steps_lost": job.steps_lost,
        "checkpoints": job.checkpoints,
        "cost_usd": cost_usd,
    }
    found = [Metric(f"ebbtide.{name}", float(value), now_ms, 0) for name, value in progress.items()]
    data = client.get_run(run).data
    if not sweep.metric:
        return found
    if sweep.metric in data.metrics and _OUR_METRIC not in data.tags:
        return found
    logged = {point.step for point in client.get_metric_history(run, sweep.metric)} if data.metrics else set()
    new = [(int(step), float(value)) for step, value in sorted(trial["metrics"]) if int(step) not in logged]
    if new:
        client.set_tag(run, _OUR_METRIC, "true")
    return found + [Metric(sweep.metric, value, now_ms, step) for step, value in new]


def _log_model(
    client: MlflowClient, parent: str, settings: LiveSettings, number: int, is_over: bool
) -> dict[str, str]:
    """Tags with the place of the best trial's newest checkpoint; at the end, a small one is copied to MLflow."""
    trial_id = _trial_id(settings, number)
    tags = {"ebbtide.winner_checkpoint": f"{settings.store}/trials/{trial_id}"}
    try:
        store = CheckpointStore(object_store(settings.store), trial_id)
        newest: Manifest | None = next(store.manifests(), None)
        if newest is None:
            return {}
        tags |= {"ebbtide.winner_step": str(newest.step), "ebbtide.winner_bytes": str(newest.size_bytes)}
        if is_over and newest.size_bytes <= _MOST_MODEL_BYTES:
            with tempfile.TemporaryDirectory(prefix="ebbtide-") as temporary:
                store.fetch(newest, Path(temporary) / "winner")
                client.log_artifacts(parent, str(Path(temporary) / "winner"), "winner")
    except (OSError, DamagedCheckpointError) as error:
        _LOGGER.warning("the checkpoint of the best trial is not in MLflow: %s", error)
    return tags


def _status(is_done: bool, has_failed: bool) -> str:
    if not is_done:
        return "KILLED"
    return "FAILED" if has_failed else "FINISHED"


def _kept(folder: RunFolder) -> dict[str, Any] | None:
    found: dict[str, Any] | None = Journal(folder.journal).state("tracking")
    return found


def _trial_id(settings: LiveSettings, number: int) -> str:
    return f"{settings.run}-{number:03d}"


def trial_costs(outcome: Outcome, kept: Sequence[TrialRecord]) -> list[float]:
    """The cost of each trial, USD; the sum is the cost of the run.

    A machine's cost is divided among the trials that trained on it, by time. The cost of unused machines and of
    data transfer is divided among all trials, by their training time.

    Args:
        outcome: Outcome of the run.
        kept: The controller's state of each trial: `stretches`, each with `lease_id` and `duration_s`; where
            there is none, steps are used in place of time.
    """
    times: list[dict[int, float]] = [{} for _ in kept]
    for time_s, trial in zip(times, kept, strict=True):
        for stretch in trial["stretches"]:
            lease_id = int(stretch["lease_id"])
            time_s[lease_id] = time_s.get(lease_id, 0.0) + float(stretch["duration_s"])
    costs = [0.0] * len(times)
    for lease in outcome.leases:
        shares = _shares([time_s.get(lease.lease_id, 0.0) for time_s in times])
        if shares is not None:
            usd = outcome.ledger.usd_of(lease.lease_id)
            costs = [cost + share * usd for cost, share in zip(costs, shares, strict=True)]
    left = outcome.cost_usd - math.fsum(costs)
    of_all = (
        _shares([math.fsum(time_s.values()) for time_s in times])
        or _shares([job.steps_run for job in outcome.jobs])
        or [1.0 / len(times) for _ in times]
    )
    return [cost + share * left for cost, share in zip(costs, of_all, strict=True)]


def _shares(weights: Sequence[float]) -> list[float] | None:
    whole = math.fsum(weights)
    return [weight / whole for weight in weights] if whole > 0 else None
