"""A live run in MLflow: one run for the sweep, and a child run for each trial on whatever machines it trains."""

from __future__ import annotations

import json
import logging
import math
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mlflow.entities import Param, RunTag
from mlflow.tracking import MlflowClient

from ebbtide._utc import HOUR_S
from ebbtide.analysis.live_following import Follower, trial_id_of
from ebbtide.analysis.live_series import MetricLog, Point, trial_costs
from ebbtide.analysis.tracking import parent_tags, tracking
from ebbtide.errors import DamagedCheckpointError, InputError
from ebbtide.forecasts.bundle import MANIFEST, ModelBundle
from ebbtide.jobs.job_list import JobList, Runnable, runnable
from ebbtide.jobs.sweep import Direction
from ebbtide.live.agent_state import TrialRecord
from ebbtide.live.checkpoints.manifest import Manifest
from ebbtide.live.checkpoints.store import CheckpointStore
from ebbtide.live.handle import KEPT_MODELS
from ebbtide.live.journal import journal_of
from ebbtide.live.money import money_of
from ebbtide.live.settings import LiveSettings, RunFolder
from ebbtide.live.storage import object_store

_LOGGER = logging.getLogger(__name__)

_EXPERIMENT = "live runs"
# A larger checkpoint of the best trial is not copied.
_MOST_MODEL_BYTES = 200_000_000
_MOST_TEXT = 5000

# Real seconds between looks at a run that is followed, and after its end for the last look to finish.
_FOLLOWED_EVERY_S, _LAST_LOOK_S = 5.0, 60.0


def begin_tracking(folder: RunFolder, uri: str, artifacts: Path, tags: Mapping[str, str] | None = None) -> None:
    """Create the MLflow runs, or resume those in the journal. Programs find theirs in their environment.

    MLflow reads `MLFLOW_RUN_ID` by itself: `mlflow.start_run()` in a program continues its trial's run on any
    machine.

    Args:
        folder: Folder of the live run.
        uri: Tracking URI; machines elsewhere need that of a server.
        artifacts: Folder for artifacts, if `uri` is a file.
        tags: Further tags of all its MLflow runs, by name.

    Raises:
        InputError: The URI holds a password.
    """
    _check_uri(uri)
    journal = journal_of(folder)
    if journal.state("tracking") is not None:
        resume_tracking(folder)
        return
    settings = folder.settings
    work = runnable(settings.sweep)
    with tracking(uri, _EXPERIMENT, artifacts) as client:
        home = client.get_experiment_by_name(_EXPERIMENT).experiment_id
        about = {"run": settings.run, "policy": settings.policy, "provider": settings.provider}
        common = (
            {f"ebbtide.{name}": value for name, value in about.items()} | _model_tags(folder) | dict(tags or {})
        )
        known = _known_runs(client, home, settings.run)
        parent = known.get("") or _created(
            client, home, settings.run, {"ebbtide.kind": "live", **common, **parent_tags()}
        )
        client.log_batch(parent, params=[Param(key, value) for key, value in _parameters(settings, work).items()])
        runs = {}
        for number, name in enumerate(work.setting_names):
            trial_id = trial_id_of(settings, number)
            own = {"ebbtide.kind": "trial", "ebbtide.trial": trial_id, "mlflow.parentRunId": parent, **common}
            run = known.get(trial_id) or _created(client, home, name or trial_id, own)
            values = work.part_of(number)[1].values
            client.log_batch(run, params=[Param(key, str(value)) for key, value in values.items()])
            # Checkpoints are too large to copy; their place is enough to find them.
            client.set_tag(run, "ebbtide.checkpoints_at", f"{settings.store}/trials/{trial_id}")
            runs[str(number)] = run
    environment = {
        number: {"MLFLOW_TRACKING_URI": uri, "MLFLOW_RUN_ID": run, "MLFLOW_EXPERIMENT_NAME": _EXPERIMENT}
        for number, run in runs.items()
    }
    kept = {"uri": uri, "artifacts": str(artifacts), "parent": parent, "runs": runs}
    journal.keep({"tracking": kept, "environment": environment})


def _created(client: MlflowClient, home: str, name: str, tags: Mapping[str, str]) -> str:
    run_id: str = client.create_run(home, run_name=name, tags=dict(tags)).info.run_id
    return run_id


def _known_runs(client: MlflowClient, home: str, run: str) -> dict[str, str]:
    """MLflow runs that a process created for this live run before it was killed, by trial; "": for all of it."""
    found = client.search_runs([home], filter_string=f"tags.`ebbtide.run` = '{run}'")
    return {each.data.tags.get("ebbtide.trial", ""): each.info.run_id for each in found}


def _model_tags(folder: RunFolder) -> dict[str, str]:
    """The version of each model that the run's policy asks."""
    bundle = folder.path / KEPT_MODELS
    if not (bundle / MANIFEST).exists():
        return {}
    return {f"ebbtide.model.{name}": version for name, version in ModelBundle.read(bundle).versions.items()}


def resume_tracking(folder: RunFolder) -> None:
    """Mark the killed MLflow runs of a resumed live run as running. Does nothing without tracking."""
    kept = _kept(folder)
    if kept is None:
        return
    with tracking(kept["uri"], _EXPERIMENT, kept["artifacts"]) as client:
        for key, value in parent_tags().items():
            client.set_tag(kept["parent"], key, value)
        for run in (kept["parent"], *kept["runs"].values()):
            if client.get_run(run).info.status == "KILLED":
                client.update_run(run, status="RUNNING")


@contextmanager
def followed(folder: RunFolder, every_s: float = _FOLLOWED_EVERY_S) -> Iterator[None]:
    """Log metrics, costs, refunds and moves of a run every few seconds while the block runs it.

    A tracking server that does not answer delays nothing but the log: the journal is read in a thread of its own.
    Does nothing without tracking.

    Args:
        folder: Folder of the live run.
        every_s: Real seconds between looks at its journal.
    """
    kept = _kept(folder)
    if kept is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_follow, args=(folder, kept, ended, every_s), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LAST_LOOK_S)


def _follow(folder: RunFolder, kept: Mapping[str, Any], ended: threading.Event, every_s: float) -> None:
    has_warned = False
    with tracking(kept["uri"], _EXPERIMENT, kept["artifacts"]) as client:
        follower = Follower(folder, kept, MetricLog(client), client)
        while not ended.wait(every_s):
            try:
                follower.look()
            except Exception as error:
                if not has_warned:
                    _LOGGER.warning("MLflow is not told how run %s goes on: %s", folder.path.name, error)
                has_warned = True


def end_tracking(folder: RunFolder) -> None:
    """Log the trials' metrics, their costs and the best trial, and close the runs. Does nothing without tracking.

    Everything comes from the run's journal, so this may be called again, by another process too. A stopped run and
    its unfinished trials are KILLED; a run with failed trials is FAILED.

    Args:
        folder: Folder of a live run whose controller has ended.
    """
    kept = _kept(folder)
    journal = journal_of(folder)
    outcome = journal.state("outcome")
    if kept is None or outcome is None:
        return
    settings = folder.settings
    work = runnable(settings.sweep)
    now_ms = int(time.time() * 1000)
    with tracking(kept["uri"], _EXPERIMENT, kept["artifacts"]) as client:
        log = MetricLog(client)
        state = Follower(folder, kept, log, client).look(is_last=True)
        if state is None:
            return
        trials, jobs = state["provider"]["trials"], state["engine"]["jobs"]
        end_step = max(int(outcome["end_s"] - outcome["start_s"]), 0)
        best = None if isinstance(work, JobList) else best_trial(work.direction, trials)
        winner = best[0] if best is not None else _only_one(trials)
        for number, (job, trial, cost_usd) in enumerate(
            zip(jobs, trials, trial_costs(state, outcome["cost_usd"]), strict=True)
        ):
            run = kept["runs"][str(number)]
            values = {
                "steps_done": job["steps_done"],
                "steps_lost": job["steps_lost"],
                "checkpoints": job["checkpoints"],
                "moves": max(len({stretch["attempt"] for stretch in trial.get("stretches", ())}) - 1, 0),
                "cost_usd": cost_usd,
            }
            log.end(
                run, [Point(f"ebbtide.{name}", end_step, float(value)) for name, value in values.items()], now_ms
            )
            client.set_tag(run, "ebbtide.winner", str(number == winner).lower())
            client.set_terminated(run, _status(not math.isnan(job["finished_s"]), bool(trial["problem"])))
        parent = kept["parent"]
        money = money_of(state, folder.catalogue)
        whole = {
            "cost_usd": outcome["cost_usd"],
            "on_demand_usd": money.on_demand_usd,
            "lost_usd": money.lost_usd,
            "refund_usd": outcome["refund_usd"],
            "revocations": outcome["revocations"],
            "steps_lost": outcome["steps_lost"],
            "makespan_h": (outcome["end_s"] - outcome["start_s"]) / HOUR_S,
        }
        if money.saved_share is not None:
            whole["saved_share"] = money.saved_share
        log.end(parent, [Point(name, end_step, float(value)) for name, value in whole.items()], now_ms)
        ended = outcome["gave_up"] or ("finished" if outcome["finished"] else "the prices are over")
        tags = {"ebbtide.ended": ended}
        if best is not None and not isinstance(work, JobList):
            log.end(parent, [Point(f"best_{work.metric}", end_step, best[2])], now_ms)
            tags["ebbtide.best_step"] = str(best[1])
        if winner is not None:
            tags |= {
                "ebbtide.winner": trial_id_of(settings, winner),
                "ebbtide.winner_run": kept["runs"][str(winner)],
                "ebbtide.winner_setting": work.setting_names[winner][:_MOST_TEXT],
            }
            tags |= _log_model(client, parent, settings, winner, outcome["finished"])
        client.log_batch(parent, tags=[RunTag(key, text) for key, text in tags.items()])
        client.set_terminated(parent, _status(outcome["finished"], any(trial["problem"] for trial in trials)))


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


def _parameters(settings: LiveSettings, work: Runnable) -> dict[str, str]:
    """The settings that the run was started with, as text; those of a list are what holds for all of its jobs."""
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
    found: dict[str, Any] = {name: getattr(work, name, None) for name in of_sweep}
    if isinstance(found["command"], list | tuple):
        found["command"] = json.dumps(list(found["command"]))
    found |= {
        "policy": settings.policy,
        **{f"policy.{name}": value for name, value in settings.parameters.items()},
        "provider": settings.provider,
        "seed": settings.seed,
        "trials": len(work.job_names),
        "store": settings.store,
    }
    if isinstance(work, JobList):
        found["jobs"] = ", ".join(job.name for job in work.listed)
    elif work.random is not None:
        found["random_seed"] = work.random.seed
    return {name: str(value)[:_MOST_TEXT] for name, value in found.items() if value is not None}


def _log_model(
    client: MlflowClient, parent: str, settings: LiveSettings, number: int, is_over: bool
) -> dict[str, str]:
    """Tags with the place of the best trial's newest checkpoint; at the end, a small one is copied to MLflow."""
    trial_id = trial_id_of(settings, number)
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
    found: dict[str, Any] | None = journal_of(folder).state("tracking")
    return found


def _check_uri(uri: str) -> None:
    """Refuse an address that holds a password: it would be kept with the run and sent to its machines.

    Raises:
        InputError: It does.
    """
    try:
        parts = urlsplit(uri)
        has_password = parts.password is not None or (parts.username is not None and parts.scheme != "sqlite")
    except ValueError as error:
        raise InputError(f"is no address: {error}", field="tracking.uri") from None
    if has_password:
        raise InputError(
            "holds a name or password, which would be kept with the run; leave them out, and set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD here and on the machines",
            field="tracking.uri",
        )
