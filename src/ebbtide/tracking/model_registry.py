"""The MLflow registry of models: a kind for each part of a model bundle, and a version for each content of it.

A version has its part's files as artifacts; digest, training window, checksums of its data and scores are its
tags, and scores also metrics of its run. A content that is registered already is not registered twice. Which
version has the alias `champion` is decided in `promotion`, and read back in `ebbtide.forecasts.champions`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlflow.artifacts import download_artifacts
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.tracking import MlflowClient
from mlflow.types import ColSpec, Schema

from ebbtide.base.utc import iso
from ebbtide.forecasts.bundle import MODEL_PARTS, ModelBundle
from ebbtide.forecasts.champions import CHAMPION, DIGEST, PART
from ebbtide.market.markets import MARKET_FIELDS
from ebbtide.tracking.tracking import parent_tags, tracking

# Names of the experiments.
_MODELS, _PROMOTIONS = "models", "promotions"

# What each kind is, and the function that reads a version's files.
_CARDS = {
    "revpred": (
        "Probability that a spot machine is revoked within the hour, given the prices of its market so far and a "
        "max price. A card for each market is among the artifacts, in cards.",
        "ebbtide.forecasts.revocation.storage.load_model",
    ),
    "earlycurve": (
        "Thresholds of EarlyCurve, which predicts where the metric of a training will end from its beginning.",
        "ebbtide.forecasts.learning_curves.calibration.read_calibration",
    ),
    "spells": (
        "How long markets have capacity, and have none, by age of the spell and part of the day.",
        "ebbtide.forecasts.capacity.models.SpellModels.read",
    ),
    "hazard": (
        "Chance that a machine requested now is refused, and that one that runs is lost within some time.",
        "ebbtide.forecasts.hazard.model.Hazard.read",
    ),
    "price-chains": (
        "Prices of some markets as Markov chains that know the hour of the week; a file for each market.",
        "ebbtide.forecasts.price_chain.load_chain",
    ),
    "speeds": ("Measured steps per hour, by job and instance type.", "ebbtide.forecasts.bundle.ModelBundle"),
}

# Tags of a run that keeps the verdicts of one promotion, and the name of its file.
_INPUTS, _JUDGED = "ebbtide.inputs", "ebbtide.judged"
_REPORT = "promotion.json"


@dataclass(frozen=True)
class Registry:
    """A registry of models, and where its artifacts go.

    Attributes:
        uri: URI of the tracking server or file.
        artifacts: Folder for artifacts, if `uri` is a file; a server has its own.
    """

    uri: str
    artifacts: str | Path

    def register(self, bundle: ModelBundle, kind: str) -> str:
        """Register a part of a bundle, if its content is not registered yet; returns its version number.

        Args:
            bundle: The bundle whose part it is.
            kind: Name of the part, one of `MODEL_PARTS`.
        """
        part = bundle.parts[kind]
        with tracking(self.uri, _MODELS, self.artifacts) as client:
            known = client.search_model_versions(f"name = '{kind}' and tags.`{DIGEST}` = '{part.version}'")
            if known:
                return str(min(int(version.version) for version in known))
            card, loader = _CARDS[kind]
            home = client.get_experiment_by_name(_MODELS).experiment_id
            tags = {"ebbtide.kind": kind, DIGEST: part.version, **parent_tags()}
            run_id: str = client.create_run(home, run_name=kind, tags=tags).info.run_id
            try:
                about = _about(bundle, kind)
                metrics = [Metric(name, value, 0, 0) for name, value in part.scores.items() if value is not None]
                params = [Param(key, value) for key, value in {"digest": part.version, **about}.items()]
                client.log_batch(run_id, metrics=metrics, params=params)
                files = bundle.folder / part.path
                if files.is_dir():
                    client.log_artifacts(run_id, str(files), f"part/{part.path}")
                else:
                    client.log_artifact(run_id, str(files), "part")
                _log_description(client, run_id, loader, kind)
                try:
                    client.create_registered_model(kind, description=card)
                except MlflowException as error:
                    if error.error_code != "RESOURCE_ALREADY_EXISTS":
                        raise
                entry = json.dumps(replace(part, registry_version=None).to_dict())
                source = f"{client.get_run(run_id).info.artifact_uri}/part"
                # With its tags at once: a version without them is not found again, and would be registered twice.
                made = client.create_model_version(
                    kind, source, run_id, tags={DIGEST: part.version, PART: entry, **about}, description=card
                )
            except BaseException:
                client.set_terminated(run_id, "FAILED")
                raise
            client.set_terminated(run_id)
        return str(made.version)

    def promote(self, kind: str, version: str, reason: str) -> None:
        """Make a version the champion of its kind.

        Args:
            kind: Name of the registered model.
            version: Version number in the registry.
            reason: Why it is promoted, in one sentence; kept as a tag.
        """
        client = MlflowClient(tracking_uri=self.uri)
        client.set_model_version_tag(kind, version, "promoted", reason)
        client.set_registered_model_alias(kind, CHAMPION, version)

    def keep_verdicts(self, inputs: str, report: Mapping[str, Any]) -> None:
        """Keep the report of a promotion before it is carried out, so that a run that was killed can go on.

        Args:
            inputs: Digest of everything that it was decided from.
            report: The report, as plain values.
        """
        with tracking(self.uri, _PROMOTIONS, self.artifacts) as client:
            home = client.get_experiment_by_name(_PROMOTIONS).experiment_id
            tags = {"ebbtide.kind": "promotion", _INPUTS: inputs, **parent_tags()}
            run_id = client.create_run(home, run_name="promotion", tags=tags).info.run_id
            for kind, row in report["kinds"].items():
                client.log_param(run_id, kind, row["verdict"])
                difference = row.get("difference_usd")
                if difference:
                    values = {f"{kind}_difference_usd_{name}": value for name, value in difference.items()}
                    client.log_batch(run_id, metrics=[Metric(key, value, 0, 0) for key, value in values.items()])
            client.log_dict(run_id, dict(report), _REPORT)
            client.set_tag(run_id, _JUDGED, "true")
            client.set_terminated(run_id)

    def kept_verdicts(self, inputs: str) -> dict[str, Any] | None:
        """The report of the newest promotion, if it was decided from the same; else None.

        Args:
            inputs: Digest of everything that is to be decided from.
        """
        with tracking(self.uri, _PROMOTIONS, self.artifacts) as client:
            home = client.get_experiment_by_name(_PROMOTIONS).experiment_id
            newest = client.search_runs(
                [home], f"tags.`{_JUDGED}` = 'true'", max_results=1, order_by=["attributes.start_time DESC"]
            )
            if not newest or newest[0].data.tags.get(_INPUTS) != inputs:
                return None
            uri = f"{newest[0].info.artifact_uri}/{_REPORT}"
            with TemporaryDirectory(prefix="ebbtide-promotion-") as folder:
                path = download_artifacts(artifact_uri=uri, dst_path=folder, tracking_uri=self.uri)
                report: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        return report


def _about(bundle: ModelBundle, kind: str) -> dict[str, str]:
    """Tags of a version that its page shows: training window, checksums of data, scores."""
    part = bundle.parts[kind]
    window = {"trained_from": part.trained_from_s, "trained_until": part.trained_until_s}
    return (
        {name: iso(time_s) for name, time_s in window.items() if time_s is not None}
        | {f"data.{name}": digest for name, digest in part.data.items()}
        | {f"score.{name}": f"{value:.6g}" for name, value in part.scores.items() if value is not None}
    )


def _log_description(client: MlflowClient, run_id: str, loader: str, kind: str) -> None:
    """Log how a version is read, and of RevPred its inputs and outputs, for the registry's page."""
    signature = None
    if kind == "revpred":
        numbers = ("price_usd_per_hour", "max_price_usd_per_hour")
        columns = [ColSpec("string", name) for name in MARKET_FIELDS] + [
            ColSpec("double", name) for name in numbers
        ]
        prices = Schema([ColSpec("datetime", "timestamp"), *columns])
        signature = ModelSignature(prices, Schema([ColSpec("double", "revocation_probability")]))
    flavors = {"ebbtide": {"loader": loader, "path": MODEL_PARTS[kind]}}
    described = Model("part", run_id, flavors=flavors, signature=signature)
    with TemporaryDirectory(prefix="ebbtide-model-") as folder:
        described.save(str(Path(folder) / "MLmodel"))
        client.log_artifact(run_id, str(Path(folder) / "MLmodel"), "part")
