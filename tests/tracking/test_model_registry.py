"""The registry of models: a version for each content, with what it was made of; verdicts outlive a killed run."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pytest
from mlflow.artifacts import download_artifacts
from mlflow.models import Model
from mlflow.tracking import MlflowClient
from tests.mlflow_database import empty_database

from ebbtide.forecasts.bundle import MODEL_PARTS, ModelBundle, part_of, write_manifest
from ebbtide.forecasts.capacity.models import default_spell_models
from ebbtide.forecasts.champions import CHAMPION
from ebbtide.forecasts.hazard.model import default_hazard
from ebbtide.forecasts.learning_curves.calibration import default_calibration, write_calibration
from ebbtide.tracking.model_registry import Registry


@pytest.fixture
def bundle(tmp_path: Path) -> ModelBundle:
    """A part of each kind; what is in the folders does not matter to the registry."""
    folder = tmp_path / "models"
    write_calibration(default_calibration(), folder / "earlycurve.json")
    default_spell_models().write(folder / "spells.json")
    default_hazard().write(folder / "hazard.json")
    (folder / "speeds.json").write_text("{}")
    for name in ("revpred", "price-chains"):
        (folder / name).mkdir()
        (folder / name / "0000").write_text(name)
    prices = tmp_path / "prices.parquet"
    prices.write_text("prices")
    window, scores = (0.0, 86_400.0), {"brier": 0.25, "auc": None}
    return write_manifest(
        folder,
        {
            kind: part_of(folder, path, window_s=window, data=[prices], scores=scores)
            for kind, path in MODEL_PARTS.items()
        },
    )


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(empty_database(tmp_path / "mlflow.db"), tmp_path / "artifacts")


def test_a_version_tells_what_it_was_made_of(registry: Registry, bundle: ModelBundle, tmp_path: Path) -> None:
    assert {registry.register(bundle, kind) for kind in MODEL_PARTS} == {"1"}
    client = MlflowClient(registry.uri)
    assert {model.name for model in client.search_registered_models()} == set(MODEL_PARTS)
    version = client.get_model_version("revpred", "1")
    part = bundle.parts["revpred"]
    assert version.tags["ebbtide.digest"] == part.version
    assert version.tags["trained_from"] == "1970-01-01T00:00:00Z"
    assert version.tags["trained_until"] == "1970-01-02T00:00:00Z"
    assert version.tags["data.prices.parquet"] == part.data["prices.parquet"]
    assert version.tags["score.brier"] == "0.25"
    assert "score.auc" not in version.tags
    run = client.get_run(version.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics == {"brier": 0.25}
    # The registry's page tells what goes in, what comes out, and how it is loaded.
    assert "a spot machine is revoked within the hour" in version.description
    got = Path(
        download_artifacts(artifact_uri=version.source, dst_path=tmp_path / "got", tracking_uri=registry.uri)
    )
    assert (got / "revpred" / "0000").read_text() == "revpred"
    described = Model.load(got)
    assert "max_price_usd_per_hour" in described.signature.inputs.input_names()
    assert described.signature.outputs.input_names() == ["revocation_probability"]


def test_every_kind_is_read_by_what_its_version_names(
    registry: Registry, bundle: ModelBundle, tmp_path: Path
) -> None:
    for kind in MODEL_PARTS:
        registry.register(bundle, kind)
        source = MlflowClient(registry.uri).get_model_version(kind, "1").source
        at = download_artifacts(artifact_uri=source, dst_path=tmp_path / kind, tracking_uri=registry.uri)
        module, *names = loader_of(Model.load(at).flavors["ebbtide"]["loader"])
        found = importlib.import_module(module)
        for name in names:
            found = getattr(found, name)
        assert callable(found)


def loader_of(dotted: str) -> list[str]:
    """The module of a dotted name, and the names within it."""
    words = dotted.split(".")
    modules = next(n for n in range(len(words), 0, -1) if is_module(".".join(words[:n])))
    return [".".join(words[:modules]), *words[modules:]]


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_the_same_content_is_one_version_and_another_is_the_next(registry: Registry, bundle: ModelBundle) -> None:
    assert [registry.register(bundle, "spells") for _ in range(3)] == ["1", "1", "1"]
    file = bundle.folder / "spells.json"
    whole = file.read_text()
    file.write_text(whole + "\n")
    changed = write_manifest(bundle.folder, {"spells": part_of(bundle.folder, "spells.json")})
    assert registry.register(changed, "spells") == "2"
    file.write_text(whole)
    assert registry.register(bundle, "spells") == "1"
    assert len(MlflowClient(registry.uri).search_model_versions("name = 'spells'")) == 2


def test_the_champion_is_whom_it_was_given_to_last_and_says_why(registry: Registry, bundle: ModelBundle) -> None:
    registry.register(bundle, "spells")
    registry.promote("spells", "1", "is the first champion")
    version = MlflowClient(registry.uri).get_model_version_by_alias("spells", CHAMPION)
    assert (str(version.version), version.tags["promoted"]) == ("1", "is the first champion")


def test_verdicts_are_kept_for_the_run_that_repeats_a_killed_one(registry: Registry) -> None:
    difference = {"mean": -0.1, "low": -0.2, "high": -0.05}
    row = {"verdict": "cheaper", "difference_usd": difference}
    first = {"promoted": ["spells"], "kinds": {"spells": row, "speeds": {"verdict": "first"}}}
    assert registry.kept_verdicts("a") is None
    registry.keep_verdicts("a", first)
    assert registry.kept_verdicts("a") == first
    assert registry.kept_verdicts("b") is None
    client = MlflowClient(registry.uri)
    (run,) = client.search_runs([client.get_experiment_by_name("promotions").experiment_id])
    assert run.data.metrics["spells_difference_usd_mean"] == -0.1
    # Only the newest: what was decided since must not be undone.
    registry.keep_verdicts("b", {"promoted": [], "kinds": {}})
    assert registry.kept_verdicts("a") is None
