"""Tracking in MLflow: backtests, price chains, what is solved, learning curves, calibrations and pipeline runs."""

from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Nothing is sent from this machine unless its user asks for it. MLflow reads this when it is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from ebbtide.backtesting.record import BacktestRecord
from ebbtide.backtesting.summary import cheapest_in_time, money_of
from ebbtide.base.utc import iso
from ebbtide.forecasts.bundle import MANIFEST
from ebbtide.jobs.throughput import step_times_of

if TYPE_CHECKING:
    from ebbtide.forecasts.bundle import ModelBundle
    from ebbtide.forecasts.learning_curves.calibration import StageCalibration
    from ebbtide.forecasts.learning_curves.curves import Curve
    from ebbtide.tracking.solve_stage import Solved


# Environment variable of a stage: the MLflow run of the whole pipeline.
PARENT = "EBBTIDE_PIPELINE_RUN"

# Names of the experiments.
_CHAINS, _SOLVED, _CURVES = "price-chains", "solved", "learning-curves"
_PIPELINE, _BUNDLES = "pipeline", "model-bundles"

# Makes MLflow's page open on runs and their comparison.
_MODEL_TRAINING = {"mlflow.experimentKind": "custom_model_development"}

# What MLflow's page says of each experiment.
_DESCRIPTIONS = {
    "backtests": "Jobs replayed under policies. A parent run for each job: its cheapest policy that is in time, "
    "`best_usd`, `on_demand_usd`, `saving`; below it a run for each policy.",
    _CHAINS: "Markov chains of prices, scored on later days.",
    _SOLVED: "What each of the five systems decides, with expected cost and its deviation.",
    _CURVES: "Learning curves that were trained, and the methods that predict their ends.",
    _PIPELINE: "Nights: what each did and cost. Its files bring the night back.",
    _BUNDLES: "Versions and scores of everything that was learnt.",
}


@contextmanager
def tracking(uri: str, experiment: str, artifacts: str | Path) -> Iterator[MlflowClient]:
    """A client for the tracking server or database at `uri`, with the experiment created if missing.

    Args:
        uri: `sqlite:///...` for a file, `http://...` for a server.
        experiment: Name of the experiment, created if missing.
        artifacts: Folder for artifacts, if `uri` is a file; a server has its own.
    """
    if uri.startswith("sqlite:///"):
        _create_database(Path(uri.removeprefix("sqlite:///")))
    client = MlflowClient(tracking_uri=uri)
    if client.get_experiment_by_name(experiment) is None:
        own = uri.startswith("http")
        location = None if own else Path(artifacts).resolve().as_uri()
        note = {"mlflow.note.content": _DESCRIPTIONS[experiment]} if experiment in _DESCRIPTIONS else {}
        try:
            client.create_experiment(experiment, artifact_location=location, tags=_MODEL_TRAINING | note)
        except MlflowException:
            # Another run beside this one may have made it meanwhile.
            if client.get_experiment_by_name(experiment) is None:
                raise
    _hear_our_loggers()
    yield client


def _create_database(file: Path) -> None:
    """Create MLflow's database under another name first: a process that is killed leaves no half of one."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".creating-") as place:
        made, copy = Path(place) / "made.db", Path(place) / "copy.db"
        MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments(max_results=1)
        shutil.copyfile(made, copy)
        # Unlike a rename, a link never replaces the database of another process that was faster.
        with suppress(FileExistsError):
            os.link(copy, file)


def _hear_our_loggers() -> None:
    """Enable our loggers again: when MLflow creates a database, Alembic disables all loggers."""
    for name in logging.root.manager.loggerDict:
        if name.split(".")[0] == "ebbtide":
            logging.getLogger(name).disabled = False


def parent_tags() -> dict[str, str]:
    """Tags of a top-level run: the pipeline's run as its parent, where there is one."""
    parent = os.environ.get(PARENT)
    return {"mlflow.parentRunId": parent} if parent else {}


def log_record(
    record: BacktestRecord,
    *,
    uri: str,
    experiment: str,
    artifacts: str | Path,
    parameters: Mapping[str, Any],
    name: str | None = None,
    files: tuple[Path, ...] = (),
) -> str:
    """Log a backtest: parameters and files on a parent run, statistics of each policy on a child run.

    Args:
        record: Record of the backtest.
        uri: Tracking URI; see `tracking`.
        experiment: Name of the experiment, created if missing.
        artifacts: Folder for artifacts; see `tracking`.
        parameters: Settings of the backtest, logged on every run for comparison.
        name: Name of the parent run; None: the record's title.
        files: Files to keep with the parent run.

    Returns:
        The parent run's id.
    """
    with tracking(uri, experiment, artifacts) as client:
        home = client.get_experiment_by_name(experiment).experiment_id
        common = {key: str(value) for key, value in parameters.items()}
        tags = {"ebbtide.kind": "backtest", **parent_tags()}
        parent = client.create_run(home, run_name=name or record.title, tags=tags)
        parent_id: str = parent.info.run_id
        try:
            models = {f"model {name}": version for name, version in record.about.get("models", {}).items()}
            summary = record.summary()
            best = {"best policy": cheapest_in_time(summary)}
            told = [Param(key, value) for key, value in (common | models | best).items()]
            client.log_batch(parent_id, params=told, metrics=_values(money_of(summary)))
            for policy, row in summary.items():
                tags = {"ebbtide.kind": "policy", "ebbtide.policy": policy, "mlflow.parentRunId": parent_id}
                run_id = client.create_run(home, run_name=policy, tags=tags).info.run_id
                params = [Param(key, value) for key, value in {"policy": policy, **common}.items()]
                client.log_batch(run_id, params=params, metrics=_metrics(row))
                client.set_terminated(run_id)
            for file in files:
                client.log_artifact(parent_id, str(file))
        except BaseException:
            client.set_terminated(parent_id, "FAILED")
            raise
        client.set_terminated(parent_id)
    return parent_id


def _metrics(row: Mapping[str, Any]) -> list[Metric]:
    """Metrics such as `cost_usd_mean`; statistics without runs are left out."""
    values = {name: float(row[name]) for name in ("unfinished", "missed") if name in row}
    for metric, spread in row.items():
        if isinstance(spread, Mapping):
            values |= {f"{metric}_{name}": value for name, value in spread.items() if value is not None}
    return _values(values)


def _values(values: Mapping[str, float]) -> list[Metric]:
    return [Metric(name, value, 0, 0) for name, value in values.items()]


def log_chain(
    scores: Mapping[str, float], about: Mapping[str, Any], file: Path, *, uri: str, artifacts: str | Path
) -> None:
    """Log a price chain.

    Args:
        scores: Scores of the chain on later days, by name.
        about: Facts about its training data, by name.
        file: File of the chain, kept with the run.
        uri: Tracking URI; see `tracking`.
        artifacts: Folder for artifacts; see `tracking`.
    """
    _log("price-chain", str(about["market"]), about, scores, file, uri, artifacts, _CHAINS)


def log_solved(solved: Solved, folder: Path, *, uri: str, artifacts: str | Path) -> None:
    """Log something that was solved from a bundle's models: what for, its expected cost and its risk.

    Args:
        solved: The artifact to log.
        folder: The bundle's folder; the artifact's file is kept with the run.
        uri: Tracking URI; see `tracking`.
        artifacts: Folder for artifacts; see `tracking`.
    """
    scores = {name: value for name, value in solved.scores.items() if math.isfinite(value)}
    _log(solved.kind, solved.kind, solved.about, scores, folder / solved.path, uri, artifacts, _SOLVED)


def log_bundle(bundle: ModelBundle, *, uri: str, artifacts: str | Path) -> None:
    """Log a model bundle: versions of its parts as parameters, their scores as metrics, and its manifest.

    Args:
        bundle: The bundle to log.
        uri: Tracking URI; see `tracking`.
        artifacts: Folder for artifacts; see `tracking`.
    """
    until_s = bundle.trained_until_s
    about = dict(bundle.versions) | ({"trained_until": iso(until_s)} if math.isfinite(until_s) else {})
    scores = {
        f"{name}_{score}": value
        for name, part in bundle.parts.items()
        for score, value in part.scores.items()
        if value is not None
    }
    _log("model-bundle", "models", about, scores, bundle.folder / MANIFEST, str(uri), str(artifacts), _BUNDLES)


def _log(
    kind: str,
    name: str,
    parameters: Mapping[str, Any],
    metrics: Mapping[str, float],
    file: Path,
    uri: str,
    artifacts: str | Path,
    experiment: str,
) -> None:
    with tracking(uri, experiment, artifacts) as client:
        home = client.get_experiment_by_name(experiment).experiment_id
        run_id = client.create_run(home, run_name=name, tags={"ebbtide.kind": kind, **parent_tags()}).info.run_id
        params = [Param(key, str(value)) for key, value in parameters.items()]
        found = [Metric(key, value, 0, 0) for key, value in metrics.items()]
        client.log_batch(run_id, params=params, metrics=found)
        client.log_artifact(run_id, str(file))
        client.set_terminated(run_id)


# The most metrics that MLflow accepts at once.
_AT_ONCE = 1000


def log_curves(curves: Sequence[Curve], *, uri: str, artifacts: str | Path, seed: int) -> None:
    """Log learning curves, each as a run tagged with its workload.

    Args:
        curves: Complete learning curves, one per setting.
        uri: Tracking URI; see `tracking`.
        artifacts: Folder for artifacts; see `tracking`.
        seed: Seed they were trained with.
    """
    with tracking(uri, _CURVES, artifacts) as client:
        home = client.get_experiment_by_name(_CURVES).experiment_id
        for curve in curves:
            tags = {"ebbtide.kind": "learning-curve", "ebbtide.workload": curve.workload, **parent_tags()}
            run_id = client.create_run(home, run_name=f"{curve.workload}-{curve.name}", tags=tags).info.run_id
            about = {"workload": curve.workload, "setting": curve.name, "seed": seed, **curve.hyperparameters}
            client.log_batch(run_id, params=[Param(key, str(value)) for key, value in about.items()])
            seconds = curve.train_seconds if curve.train_seconds is not None else [0.0] * len(curve.steps)
            metrics = [
                Metric("metric", float(value), round(float(spent) * 1000), int(step))
                for step, value, spent in zip(curve.steps, curve.metric, seconds, strict=True)
            ]
            summary = {"final": curve.final}
            if curve.train_seconds is not None and len(curve.steps) > 1:
                times = step_times_of(curve.steps.tolist(), curve.train_seconds.tolist())
                summary |= {"seconds_per_step": times.mean_s, "step_time_cv": times.coefficient_of_variation}
            metrics += [Metric(key, value, 0, int(curve.max_steps)) for key, value in summary.items()]
            for some in _batches(metrics):
                client.log_batch(run_id, metrics=some)
            client.set_terminated(run_id)


def log_calibration(
    calibration: StageCalibration, scores: Mapping[str, Any], file: Path, *, uri: str, artifacts: str | Path
) -> None:
    """Log a calibration as a run, with a child run for each method's scores; the step is theta in percent.

    Args:
        calibration: The chosen thresholds of EarlyCurve.
        scores: Scores of each method, under `by_theta`.
        file: File of the calibration, kept with the run.
        uri: Tracking URI; see `tracking`.
        artifacts: Folder for artifacts; see `tracking`.
    """
    with tracking(uri, _CURVES, artifacts) as client:
        home = client.get_experiment_by_name(_CURVES).experiment_id
        tags = {"ebbtide.kind": "earlycurve-calibration", **parent_tags()}
        parent = client.create_run(home, run_name="calibrate EarlyCurve", tags=tags).info.run_id
        chosen = calibration.everywhere.thresholds
        client.log_param(parent, "xi", chosen.change)
        client.log_param(parent, "epsilon", chosen.steady)
        client.log_artifact(parent, file)
        for name, found in scores.items():
            own = {"ebbtide.kind": "curve-predictor", "mlflow.parentRunId": parent}
            run_id = client.create_run(home, run_name=name, tags=own).info.run_id
            client.log_param(run_id, "method", name)
            metrics = [
                Metric(key, float(value), 0, round(float(theta) * 100))
                for theta, values in found["by_theta"].items()
                for key, value in values.items()
                if value is not None
            ]
            for some in _batches(metrics):
                client.log_batch(run_id, metrics=some)
            client.set_terminated(run_id)
        client.set_terminated(parent)


def _batches(metrics: Iterable[Metric]) -> Iterator[list[Metric]]:
    rest = iter(metrics)
    while some := list(islice(rest, _AT_ONCE)):
        yield some


@contextmanager
def pipeline_run(
    name: str, uri: str, artifacts: str | Path, files: Callable[[], Iterable[Path]], run: str = ""
) -> Iterator[tuple[str, dict[str, float]]]:
    """A run of the whole pipeline: the parent of all runs of its stages; files are added at the end.

    Args:
        name: Name of the flow.
        uri: Tracking URI; see `tracking`.
        artifacts: Folder for artifacts; see `tracking`.
        files: Gives the files to keep with the run, at its end.
        run: Id of the run that a killed process has begun; empty: there is none.

    Returns:
        The run's id, for the stages' environment variable `PARENT`, and metrics by name, to be filled; they are
        logged at the end.
    """
    with tracking(uri, _PIPELINE, artifacts) as client:
        home = client.get_experiment_by_name(_PIPELINE).experiment_id
        run = run or client.create_run(home, run_name=name, tags={"ebbtide.kind": "pipeline"}).info.run_id
        client.update_run(run, status="RUNNING")
        metrics: dict[str, float] = {}
        try:
            yield run, metrics
            client.log_batch(
                run, metrics=[Metric(key, value, int(time.time() * 1000), 0) for key, value in metrics.items()]
            )
            for file in files():
                parent = "" if file.parent == Path() else file.parent.as_posix()
                client.log_artifact(run, str(file), parent or None)
        except BaseException:
            client.set_terminated(run, "FAILED")
            raise
        client.set_terminated(run)
