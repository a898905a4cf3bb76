"""The model bundle: written, read, refused where it was changed, and never judged on what it was trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.forecasts.bundle import MANIFEST, BundlePart, ModelBundle, part_of, version_of, write_manifest
from ebbtide.forecasts.capacity.models import default_spell_models
from ebbtide.forecasts.learning_curves.calibration import default_calibration, write_calibration
from ebbtide.forecasts.price_chain import PriceChain, save_chain
from ebbtide.market.prices import PriceHistory


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prices") / "prices.parquet"
    eb.generate_prices(days=9, seed=1, kind="auction").write(path)
    return path


@pytest.fixture
def bundle(tmp_path: Path, prices: Path) -> ModelBundle:
    folder = tmp_path / "models"
    history = PriceHistory.read(prices)
    market = history.markets[0]
    write_calibration(default_calibration(), folder / "earlycurve.json")
    default_spell_models().write(folder / "spells.json")
    chain = PriceChain.fit(history[market], history.start_s, history.end_s)
    (folder / "price-chains").mkdir()
    fields = [market.cloud, market.region, market.zone, market.instance_type, market.product]
    save_chain(chain, folder / "price-chains" / "0.safetensors", {"fields": fields})
    (folder / "speeds.json").write_text(json.dumps({"resnet": {"steps_per_hour": {"c3.xlarge": 1200}}}))
    (folder / "solved").mkdir()
    (folder / "solved" / "bids.json").write_text("[]")
    window = history.start_s, history.end_s - 86_400
    parts = {
        "earlycurve": part_of(folder, "earlycurve.json", scores={"error": 0.1, "nothing": float("nan")}),
        "spells": part_of(folder, "spells.json"),
        "price-chains": part_of(folder, "price-chains", window_s=window, data=[prices]),
        "speeds": part_of(folder, "speeds.json"),
        "bids": part_of(folder, "solved/bids.json", window_s=(history.start_s, history.start_s + 3600.0)),
    }
    return write_manifest(folder, parts)


def test_what_is_written_is_read(bundle: ModelBundle, prices: Path) -> None:
    found = ModelBundle.read(bundle.folder)
    assert found == bundle
    history = PriceHistory.read(prices)
    assert found.early_curve == default_calibration().everywhere
    assert found.spells is not None
    assert found.spells.by_market.keys() == default_spell_models().by_market.keys()
    assert list(found.price_chains) == [history.markets[0]]
    assert found.speeds == {"resnet": {"steps_per_hour": {"c3.xlarge": 1200.0}}}
    assert found.revocation is None
    assert found.solved("bids").read_text() == "[]"
    assert found.trained_until_s == history.end_s - 86_400
    assert found.parts["earlycurve"].scores == {"error": 0.1, "nothing": None}
    assert list(found.parts["price-chains"].data) == ["prices.parquet"]
    assert all(len(version) == 12 for version in found.versions.values())


def test_a_registered_part_says_its_number(bundle: ModelBundle) -> None:
    part = part_of(bundle.folder, "spells.json", registry_version="3")
    found = write_manifest(bundle.folder, {"spells": part})
    assert found.versions == {"spells": f"3 ({part.version})"}


def test_the_same_files_have_the_same_version_wherever_they_lie(bundle: ModelBundle, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(bundle.folder, tmp_path / "copy")
    for name, part in bundle.parts.items():
        assert version_of(tmp_path / "copy" / part.path) == bundle.parts[name].version


@pytest.mark.parametrize("name", ["earlycurve", "price-chains", "bids"])
def test_a_part_that_was_changed_or_is_gone_is_refused(bundle: ModelBundle, name: str) -> None:
    path = bundle.folder / bundle.parts[name].path
    file = path if path.is_file() else next(path.iterdir())
    content = file.read_bytes()
    file.write_bytes(content + b" ")
    with pytest.raises(InputError, match="is not the version that manifest.json names"):
        ModelBundle.read(bundle.folder)
    file.write_bytes(content)
    assert ModelBundle.read(bundle.folder) == bundle
    if path.is_file():
        path.unlink()
        with pytest.raises(InputError, match="there is no such part"):
            ModelBundle.read(bundle.folder)


def test_what_it_has_seen_is_not_for_judging_it(bundle: ModelBundle) -> None:
    until_s = bundle.trained_until_s
    bundle.check_unseen([until_s, until_s + 1.0])
    bundle.check_unseen([])
    with pytest.raises(InputError, match="price-chains was trained on prices until .*; start at .* or later"):
        bundle.check_unseen([until_s + 1.0, until_s - 1.0])


def test_a_bundle_of_no_market_data_may_be_judged_anywhere(bundle: ModelBundle) -> None:
    found = write_manifest(bundle.folder, {"spells": bundle.parts["spells"]})
    found.check_unseen([0.0])


def test_what_is_no_bundle_is_told_in_one_line(bundle: ModelBundle, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no model bundle"):
        ModelBundle.read(tmp_path)
    path = bundle.folder / MANIFEST
    content = json.loads(path.read_text())
    for broken, told in (
        ({"schema_version": 99, "parts": {}}, "has schema version 99"),
        ([], "is no manifest of a model bundle"),
        ({"schema_version": 1}, "is no manifest of a model bundle"),
        ({"schema_version": 1, "parts": {}}, "names no model"),
        ({"schema_version": 1, "parts": {"spells": {"path": "spells.json"}}}, "is no manifest of a model bundle"),
        (
            {**content, "parts": {"spells": {**content["parts"]["spells"], "path": "../x"}}},
            "outside of the bundle",
        ),
        (
            {**content, "parts": {"spells": {**content["parts"]["spells"], "path": "/etc/passwd"}}},
            "outside of the",
        ),
    ):
        path.write_text(json.dumps(broken))
        with pytest.raises(InputError, match=told):
            ModelBundle.read(bundle.folder)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="holds no cookbook; solved from its models: bids"):
        ModelBundle.read(bundle.folder).solved("cookbook")


@given(st.floats(0, 4e9), st.floats(0, 4e9), st.none() | st.text("0123456789", min_size=1, max_size=3))
def test_a_part_goes_through_the_manifest_unchanged(start_s: float, end_s: float, version: str | None) -> None:
    part = BundlePart("revpred", "abc", round(start_s), round(end_s), {"b": "2", "a": "1"}, {"x": 1.0}, version)
    assert BundlePart.from_dict(json.loads(json.dumps(part.to_dict()))) == part
