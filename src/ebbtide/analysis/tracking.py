"""Tracking in MLflow: a run for each backtest, and under it one for each policy."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Nothing leaves this machine that its user did not ask to send. MLflow reads this when it is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")

from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from ebbtide.analysis.record import Record

# In the environment of a stage: the run of the whole pipeline that it is part of.
PARENT = "EBBTIDE_PIPELINE_RUN"

# Has MLflow's page open on runs and their comparison.
_MODEL_TRAINING = {"mlflow.experimentKind": "custom_model_development"}


@contextmanager
def tracking(uri: str, experiment: str, artifacts: str | Path) -> Iterator[MlflowClient]:
    """A client for the tracking server or database at `uri`, with the experiment there.

    Args:
        uri: `sqlite:///...` for a file, `http://...` for a server.
        experiment: Made if it is not there.
        artifacts: Folder for artifacts, if `uri` is a file; a server keeps its own.
    """
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(tracking_uri=uri)
    if client.get_experiment_by_name(experiment) is None:
        own = uri.startswith("http")
        location = None if own else Path(artifacts).resolve().as_uri()
        client.create_experiment(experiment, artifact_location=location, tags=_MODEL_TRAINING)
    _hear_our_loggers()
    yield client


def _hear_our_loggers() -> None:
    """When MLflow makes a database, Alembic turns every logger off that there is."""
    for name in logging.root.manager.loggerDict:
        if name.split(".")[0] == "ebbtide":
            logging.getLogger(name).disabled = False


def parent_tags() -> dict[str, str]:
    """For a run at the top: the pipeline's run as its parent, where there is one."""
    parent = os.environ.get(PARENT)
    return {"mlflow.parentRunId": parent} if parent else {}


def log_record(
    record: Record,
    *,
    uri: str,
    experiment: str,
    artifacts: str | Path,
    parameters: Mapping[str, Any],
    files: tuple[Path, ...] = (),
) -> str:
    """Log a backtest: parameters and files on a parent run, statistics of each policy on a child of it.

    Args:
        record: What came of it.
        uri: Where to track.
        experiment: Under which name.
        artifacts: See `tracking`.
        parameters: What it was run with; the same on every run, so that they can be compared.
        files: Kept with the parent run.

    Returns:
        The parent run's id.
    """
    with tracking(uri, experiment, artifacts) as client:
        home = client.get_experiment_by_name(experiment).experiment_id
        common = {key: str(value) for key, value in parameters.items()}
        parent = client.create_run(home, run_name=record.title, tags={"ebbtide.kind": "backtest", **parent_tags()})
        parent_id: str = parent.info.run_id
        try:
            for key, value in common.items():
                client.log_param(parent_id, key, value)
            for name, row in record.summary().items():
                tags = {"ebbtide.kind": "policy", "ebbtide.policy": name, "mlflow.parentRunId": parent_id}
                run_id = client.create_run(home, run_name=name, tags=tags).info.run_id
                for key, value in {"policy": name, **common}.items():
                    client.log_param(run_id, key, value)
                client.log_batch(run_id, metrics=_metrics(row))
                client.set_terminated(run_id)
            for file in files:
                client.log_artifact(parent_id, str(file))
        except BaseException:
            client.set_terminated(parent_id, "FAILED")
            raise
        client.set_terminated(parent_id)
    return parent_id


def _metrics(row: Mapping[str, Any]) -> list[Metric]:
    """`cost_usd_mean` and so on; statistics of no runs are left out."""
    values = {"unfinished": float(row["unfinished"])}
    for metric, spread in row.items():
        if isinstance(spread, Mapping):
            values |= {f"{metric}_{name}": value for name, value in spread.items() if value is not None}
    return [Metric(name, value, 0, 0) for name, value in values.items()]
