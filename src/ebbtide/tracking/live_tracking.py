"""A live run in MLflow: one run for the sweep, and a child run for each trial on whatever machines it trains."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mlflow.entities import Param
from mlflow.tracking import MlflowClient

from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.controller.from_storage import from_storage_of
from ebbtide.controller.journal.journal import journal_of
from ebbtide.errors import CloudError, EbbtideError, InputError
from ebbtide.forecasts.bundle import KEPT_MODELS, MANIFEST, ModelBundle
from ebbtide.jobs.job_list import Runnable, runnable
from ebbtide.tracking.live_ending import RunEnd
from ebbtide.tracking.live_following import Follower, trial_id_of
from ebbtide.tracking.live_series import MetricLog
from ebbtide.tracking.mlflow_names import allowed_names, is_refusal, renamed, untold, words_of
from ebbtide.tracking.tracking import parent_tags, tracking

_LOGGER = logging.getLogger(__name__)

_EXPERIMENT = "live runs"
_MOST_TEXT = 5000
# The most parameters that MLflow accepts at once.
_AT_ONCE = 100

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
        InputError: The URI holds a password, or MLflow refuses it.
        CloudError: MLflow is away.
    """
    _check_uri(uri)
    if _kept(folder) is not None:
        resume_tracking(folder)
        return
    try:
        _begin(folder, uri, artifacts, dict(tags or {}))
    except EbbtideError:
        raise
    except Exception as error:
        kind = InputError if is_refusal(error) else CloudError
        raise kind(
            f"MLflow cannot be told of it, so nothing was rented: {words_of(error)}; start it, or track nothing"
        ) from error


def _begin(folder: RunFolder, uri: str, artifacts: Path, tags: Mapping[str, str]) -> None:
    settings = folder.settings
    work = runnable(settings.sweep)
    with tracking(uri, _EXPERIMENT, artifacts) as client:
        home = client.get_experiment_by_name(_EXPERIMENT).experiment_id
        about = {"run": settings.run, "policy": settings.policy, "provider": settings.provider}
        common = {f"ebbtide.{name}": value for name, value in about.items()} | _model_tags(folder) | dict(tags)
        if settings.fingerprint:
            common["ebbtide.fingerprint"] = settings.fingerprint
        known = _known_runs(client, home, settings)
        parent = known.get("") or _created(
            client, home, settings.run, {"ebbtide.kind": "live", **common, **parent_tags()}
        )
        for key, value in _unknown_tags(folder).items():
            client.set_tag(parent, key, value)
        _log_parameters(client, parent, _parameters(settings, work))
        runs = {}
        names: set[str] = set()
        for number, name in enumerate(work.setting_names):
            trial_id = trial_id_of(settings, number)
            own = {"ebbtide.kind": "trial", "ebbtide.trial": trial_id, "mlflow.parentRunId": parent, **common}
            run = known.get(trial_id) or _created(client, home, name or trial_id, own)
            sweep, trial = work.part_of(number)
            _log_parameters(client, run, trial.values)
            names |= {*trial.values, *([sweep.metric] if sweep.metric else [])}
            # Checkpoints are too large to copy; their place is enough to find them.
            client.set_tag(run, "ebbtide.checkpoints_at", f"{settings.store}/trials/{trial_id}")
            runs[str(number)] = run
    environment = {
        number: {"MLFLOW_TRACKING_URI": uri, "MLFLOW_RUN_ID": run, "MLFLOW_EXPERIMENT_NAME": _EXPERIMENT}
        for number, run in runs.items()
    }
    kept = {"uri": uri, "artifacts": str(artifacts), "parent": parent, "runs": runs}
    journal_of(folder).keep({"tracking": kept, "environment": environment})
    if other := renamed(names):
        _LOGGER.warning("%s", other)


def _log_parameters(client: MlflowClient, run: str, values: Mapping[str, Any]) -> None:
    names = allowed_names(values)
    found = [Param(names[key], str(value)) for key, value in values.items()]
    for first in range(0, len(found), _AT_ONCE):
        client.log_batch(run, params=found[first : first + _AT_ONCE])


def _created(client: MlflowClient, home: str, name: str, tags: Mapping[str, str]) -> str:
    run_id: str = client.create_run(home, run_name=name, tags=dict(tags)).info.run_id
    return run_id


def _known_runs(client: MlflowClient, home: str, settings: LiveSettings) -> dict[str, str]:
    """MLflow runs that a process created for this live run before it was killed, by trial; "": for all of it."""
    found = client.search_runs([home], filter_string=f"tags.`ebbtide.run` = '{settings.run}'")
    return {
        each.data.tags.get("ebbtide.trial", ""): each.info.run_id
        for each in found
        # Others may have a run of this id.
        if each.data.tags.get("ebbtide.fingerprint", "") == settings.fingerprint
    }


def _unknown_tags(folder: RunFolder) -> dict[str, str]:
    """Tags of a run whose journal was lost: the part of its costs that is unknown."""
    found = from_storage_of(journal_of(folder, read_only=True))
    return {} if found is None else {"ebbtide.unknown": str(found)}


def _model_tags(folder: RunFolder) -> dict[str, str]:
    """The version of each model that the run's policy asks."""
    bundle = folder.path / KEPT_MODELS
    if not (bundle / MANIFEST).exists():
        return {}
    return {f"ebbtide.model.{name}": version for name, version in ModelBundle.read(bundle).versions.items()}


def resume_tracking(folder: RunFolder) -> None:
    """Mark the killed MLflow runs of a resumed live run as running. Does nothing without tracking, or if MLflow is
    away, but to warn."""
    kept = _kept(folder)
    if kept is None:
        return
    with (
        untold(folder.path.name, "of the resumption"),
        tracking(kept["uri"], _EXPERIMENT, kept["artifacts"]) as client,
    ):
        for key, value in (parent_tags() | _unknown_tags(folder)).items():
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
    follower: Follower | None = None
    has_warned = False
    while not ended.wait(every_s):
        try:
            if follower is None:
                with tracking(kept["uri"], _EXPERIMENT, kept["artifacts"]) as client:
                    follower = Follower(folder, kept, MetricLog(client), client)
            follower.look()
        except Exception as error:
            if not has_warned:
                _LOGGER.warning("MLflow is not told how run %s goes on: %s", folder.path.name, words_of(error))
            has_warned = True


def end_tracking(folder: RunFolder) -> None:
    """Log the trials' metrics, their costs and the best trial, and close the runs. Does nothing without tracking.

    Everything comes from the run's journal, so this may be called again, by another process too. A stopped run and
    its unfinished trials are KILLED; a run with failed trials is FAILED. What MLflow refuses, or is not told since
    it is away, is warned of.

    Args:
        folder: Folder of a live run whose controller has ended.
    """
    kept = _kept(folder)
    outcome = journal_of(folder).state("outcome")
    if kept is None or outcome is None:
        return
    with (
        untold(folder.path.name, "of the end"),
        tracking(kept["uri"], _EXPERIMENT, kept["artifacts"]) as client,
    ):
        RunEnd(folder, kept, outcome, client).tell()


def abandon_tracking(folder: RunFolder, why: str) -> None:
    """Mark the running MLflow runs of a live run whose controller crashed as KILLED, until it is resumed."""
    kept = _kept(folder)
    if kept is None:
        return
    with untold(folder.path.name, "of the end"), tracking(kept["uri"], _EXPERIMENT, kept["artifacts"]) as client:
        for run in (kept["parent"], *kept["runs"].values()):
            if client.get_run(run).info.status == "RUNNING":
                client.set_terminated(run, "KILLED")
        client.set_tag(kept["parent"], "ebbtide.ended", why[:_MOST_TEXT])


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
    found: dict[str, Any] = {name: getattr(work, name) for name in of_sweep if name in type(work).model_fields}
    if isinstance(found.get("command"), list | tuple):
        found["command"] = json.dumps(list(found["command"]))
    found |= {
        "policy": settings.policy,
        **{f"policy.{name}": value for name, value in settings.parameters.items()},
        "provider": settings.provider,
        "seed": settings.seed,
        "trials": len(work.job_names),
        "store": settings.store,
    }
    if work.is_list:
        found["jobs"] = ", ".join(part.name for part in work.parts)
    elif work.kind == "sweep" and work.random is not None:
        found["random_seed"] = work.random.seed
    return {name: str(value)[:_MOST_TEXT] for name, value in found.items() if value is not None}


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
