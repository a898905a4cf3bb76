"""Registration of revocation models in MLflow, with promotion only of those better on later data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.tracking import MlflowClient
from mlflow.types import ColSpec, Schema

from ebbtide.analysis.tracking import parent_tags, tracking
from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.evaluation import LatestFit, later_scores
from ebbtide.forecasts.revocation.storage import load_model
from ebbtide.market.markets import MARKET_FIELDS

MODEL_NAME = "revpred"
CHAMPION = "champion"
LOADER = "ebbtide.forecasts.revocation.storage.load_model"

_CARD = (
    "Probability that a spot machine is revoked within the hour, given the prices of its market so far and a max "
    "price. A card for each market is among the artifacts, in model/cards."
)


@dataclass(frozen=True)
class Promotion:
    """The result of registering a new model.

    Attributes:
        version: Version number in the registry.
        promoted: Whether the alias `champion` now points at it.
        brier: Pooled Brier score on later data, over all deltas.
        champion_brier: Score of the former champion on the same data; None: there was none for these markets.
    """

    version: str
    promoted: bool
    brier: float
    champion_brier: float | None

    def __str__(self) -> str:
        against = "no champion before it" if self.champion_brier is None else f"champion {self.champion_brier:.4f}"
        outcome = "is the new champion" if self.promoted else "is kept as a challenger"
        return f"version {self.version} {outcome}: Brier {self.brier:.4f} on later data, {against}"


def register(
    fit: LatestFit,
    folder: str | Path,
    *,
    uri: str,
    experiment: str,
    artifacts: str | Path,
    parameters: Mapping[str, Any],
    seed: int,
) -> Promotion:
    """Log a fitted model with its scores, register it, and make it champion if it beats the present one.

    Args:
        fit: The new model and the later data.
        folder: Folder with the saved model and its cards.
        uri: URI of the tracking server or file.
        experiment: Name of the experiment, created if missing.
        artifacts: Folder for artifacts, if `uri` is a file.
        parameters: Parameters to log with the run.
        seed: Seed of the max prices used for scoring.
    """
    with tracking(uri, experiment, artifacts) as client:
        home = client.get_experiment_by_name(experiment).experiment_id
        tags = {"ebbtide.kind": "revocation", **parent_tags()}
        run_id: str = client.create_run(home, run_name=MODEL_NAME, tags=tags).info.run_id
        try:
            for key, value in parameters.items():
                client.log_param(run_id, key, str(value))
            for delta, scores in fit.pooled.items():
                for name, value in scores.items():
                    if value is not None:
                        client.log_metric(run_id, f"{name}_{delta.replace('%', '_percent')}", float(value))
            client.log_artifacts(run_id, str(folder), "model")
            _log_signature(client, run_id)
            source = f"{client.get_run(run_id).info.artifact_uri}/model"
            try:
                client.create_registered_model(MODEL_NAME)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            version = str(client.create_model_version(MODEL_NAME, source, run_id, description=_CARD).version)
            brier, old = _brier(fit.pooled), _champion_brier(client, fit, seed)
            promoted = old is None or brier < old
            if promoted:
                client.set_registered_model_alias(MODEL_NAME, CHAMPION, version)
        except BaseException:
            client.set_terminated(run_id, "FAILED")
            raise
        client.set_terminated(run_id)
    return Promotion(version, promoted, brier, old)


def _log_signature(client: MlflowClient, run_id: str) -> None:
    """Log the model's inputs and outputs, for the registry's page."""
    texts, numbers = MARKET_FIELDS, ("price_usd_per_hour", "max_price_usd_per_hour")
    columns = [ColSpec("string", name) for name in texts] + [ColSpec("double", name) for name in numbers]
    prices = Schema([ColSpec("datetime", "timestamp"), *columns])
    signature = ModelSignature(prices, Schema([ColSpec("double", "revocation_probability")]))
    described = Model("model", run_id, flavors={"ebbtide": {"loader": LOADER}}, signature=signature)
    with TemporaryDirectory(prefix="ebbtide-model-") as folder:
        described.save(str(Path(folder) / "MLmodel"))
        client.log_artifact(run_id, str(Path(folder) / "MLmodel"), "model")


def champion_version(uri: str) -> str | None:
    """The champion's version number in the registry; None: there is none."""
    try:
        return str(MlflowClient(tracking_uri=uri).get_model_version_by_alias(MODEL_NAME, CHAMPION).version)
    except MlflowException:
        return None


def _champion_brier(client: MlflowClient, fit: LatestFit, seed: int) -> float | None:
    """The champion's Brier score on the new model's later data; None: no champion, or it knows other markets."""
    try:
        champion = client.get_model_version_by_alias(MODEL_NAME, CHAMPION)
    except MlflowException:
        return None
    with TemporaryDirectory(prefix="ebbtide-champion-") as folder:
        try:
            model = load_model(download_artifacts(artifact_uri=champion.source, dst_path=folder))
            pooled, _ = later_scores(model, fit.minutes, fit.split, seed)
        except (InputError, MlflowException):
            return None
    return _brier(pooled)


def _brier(pooled: Mapping[str, Mapping[str, Any]]) -> float:
    return sum(float(scores["brier"]) for scores in pooled.values()) / len(pooled)
