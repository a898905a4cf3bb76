"""The champions of a registry: downloaded once by their content, used without the registry, refused where damaged."""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.cut_answers import cut_answers
from tests.waiting import LIMIT_S, eventually

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.forecasts.bundle import ModelBundle, part_of, write_manifest
from ebbtide.forecasts.capacity.models import default_spell_models
from ebbtide.forecasts.champions import champions, default_models, read_models, tracking_uri
from ebbtide.forecasts.learning_curves.calibration import default_calibration, write_calibration
from ebbtide.tracking.model_registry import Registry


@pytest.fixture
def bundle(tmp_path: Path) -> ModelBundle:
    folder = tmp_path / "trained"
    write_calibration(default_calibration(), folder / "earlycurve.json")
    default_spell_models().write(folder / "spells.json")
    window = 1_000_000.0, 2_000_000.0
    parts = {
        "earlycurve": part_of(folder, "earlycurve.json", data=[folder / "spells.json"], scores={"error": 0.1}),
        "spells": part_of(folder, "spells.json", window_s=window),
    }
    return write_manifest(folder, parts)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "artifacts")


def crowned(registry: Registry, bundle: ModelBundle) -> None:
    for kind in bundle.parts:
        registry.promote(kind, registry.register(bundle, kind), "it is the first")


def test_they_are_the_parts_that_were_registered(registry: Registry, bundle: ModelBundle, tmp_path: Path) -> None:
    crowned(registry, bundle)
    found = champions(registry.uri, tmp_path / "cache")
    assert found.versions == {name: f"1 ({part.version})" for name, part in bundle.parts.items()}
    for name, part in bundle.parts.items():
        own = found.parts[name]
        assert (own.trained_from_s, own.trained_until_s) == (part.trained_from_s, part.trained_until_s)
        assert (own.scores, own.data) == (part.scores, part.data)
    assert found.early_curve == bundle.early_curve
    # What is downloaded once is not downloaded again, and a damaged copy is.
    shutil.rmtree(tmp_path / "artifacts")
    assert champions(registry.uri, tmp_path / "cache") == found
    for copy in (tmp_path / "cache").rglob("spells.json"):
        copy.write_text("{}")
    with pytest.raises(InputError) as told:
        champions(registry.uri, tmp_path / "cache")
    assert f"spells 1, the champion in the model registry at {registry.uri}, cannot be downloaded" in str(
        told.value
    )


def test_files_that_are_not_those_registered_are_refused(
    registry: Registry, bundle: ModelBundle, tmp_path: Path
) -> None:
    crowned(registry, bundle)
    for stored in (tmp_path / "artifacts").rglob("spells.json"):
        stored.write_text("{}")
    with pytest.raises(
        InputError, match="spells 1, the champion in .* is not complete: .* holds no spells.json of"
    ):
        champions(registry.uri, tmp_path / "cache")


def test_what_is_missing_is_told_with_the_address(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"there is no model registry at {registry.uri}; the pipeline's stage"):
        champions(registry.uri, tmp_path / "cache")
    assert not Path(registry.uri.removeprefix("sqlite:///")).exists()
    with pytest.raises(InputError, match="the model registry at http://127.0.0.1:9 does not answer"):
        champions("http://127.0.0.1:9", tmp_path / "cache")
    with cut_answers("status") as url, pytest.raises(InputError, match=f"registry at {url} does not answer"):
        champions(url, tmp_path / "cache")


def test_the_address_is_that_of_the_environment_else_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri() == "sqlite:///.mlflow/mlflow.db"
    Path("params.yaml").write_text("tracking: {uri: 'http://models:5000'}\n")
    assert tracking_uri() == "http://models:5000"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://other")
    assert tracking_uri() == "http://other"


def test_a_folder_is_a_folder_even_if_it_has_that_name(
    bundle: ModelBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle.copy_to(Path("champion"))
    for given in ("./champion", Path("champion")):
        found = read_models(given)
        assert found is not None
        assert found.parts == bundle.parts
    assert read_models(None) is None
    assert read_models(bundle) is bundle
    with pytest.raises(InputError, match="there is no model registry at"):
        eb.policy("spottune", "champion")


def test_the_default_is_the_bundle_here_if_it_is_whole_and_was_trained_before(
    bundle: ModelBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_models(2_000_000.0) == (None, "")
    bundle.copy_to(Path("models"))
    found, why_not = default_models(2_000_000.0)
    assert found is not None
    assert (found.parts, why_not) == (bundle.parts, "")
    found, why_not = default_models(1_999_999.0)
    assert found is None
    assert why_not.startswith(
        "models/ is not used: it was trained on prices until 1970-01-24T03:33:20Z, later than"
    )
    Path("models/spells.json").unlink()
    found, why_not = default_models(2_000_000.0)
    assert found is None
    assert why_not == "models/ is not used: models/spells.json: there is no such part of the bundle"


@pytest.mark.usefixtures("processes")
@pytest.mark.long
def test_a_server_that_no_longer_answers_is_not_needed(
    bundle: ModelBundle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    store = f"sqlite:///{tmp_path}/server.db"
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--backend-store-uri", store]
    server = subprocess.Popen([*command, "--artifacts-destination", str(tmp_path / "kept"), "--workers", "1"])
    try:
        eventually(lambda: answers(f"{uri}/health", server), limit_s=3 * LIMIT_S, poll_s=0.3)
        crowned(Registry(uri, tmp_path), bundle)
        found = champions(uri, tmp_path / "cache")
        assert found.early_curve == bundle.early_curve
    finally:
        server.terminate()
        server.wait(LIMIT_S)
    with caplog.at_level(logging.WARNING):
        assert champions(uri, tmp_path / "cache") == found
    assert "the champions that it last named are used" in caplog.text


def answers(address: str, server: subprocess.Popen[bytes]) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=10):
            return True
    except OSError:
        assert server.poll() is None, "the MLflow server did not start"
        return False
