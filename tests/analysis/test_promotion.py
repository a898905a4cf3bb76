"""The registry: the champion moves only to what is better on later data."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mlflow.artifacts import download_artifacts
from mlflow.models import Model

import ebbtide as eb
from ebbtide.analysis.promotion import register
from ebbtide.forecasts.revocation.evaluation import LatestFit, fit_latest, later_scores
from ebbtide.forecasts.revocation.storage import save_model
from ebbtide.market.generator import demo_markets


@pytest.fixture(scope="module")
def fit() -> LatestFit:
    prices = eb.generate_prices(demo_markets()[:2], days=8, seed=3)
    return fit_latest(prices, train_days=5, test_days=1, stride=60)


def worse(fit: LatestFit) -> LatestFit:
    """The same model, its calibration spoilt."""
    groups = [
        replace(group, calibration=replace(group.calibration, offset=group.calibration.offset + 6.0))
        for group in fit.model.groups
    ]
    model = replace(fit.model, groups=groups)
    pooled, markets = later_scores(model, fit.minutes, fit.split, 0)
    return replace(fit, model=model, pooled=pooled, markets=markets)


def test_the_champion_is_whoever_is_best_on_later_data(fit: LatestFit, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"

    def enter(candidate: LatestFit, name: str):
        save_model(candidate.model, tmp_path / name)
        return register(
            candidate,
            tmp_path / name,
            uri=uri,
            experiment="r",
            artifacts=tmp_path / "artifacts",
            parameters={"seed": 0},
            seed=0,
        )

    first, second, third = enter(worse(fit), "a"), enter(fit, "b"), enter(worse(fit), "c")
    assert (first.promoted, first.champion_brier) == (True, None)
    assert second.promoted
    assert second.champion_brier == pytest.approx(first.brier)
    assert not third.promoted
    assert "kept as a challenger" in str(third)
    client = MlflowClient(uri)
    champion = client.get_model_version_by_alias("revpred", "champion")
    assert str(champion.version) == second.version
    run = client.get_run(champion.run_id)
    assert run.info.status == "FINISHED"
    assert np.isfinite(run.data.metrics["brier_published"])
    # The registry's page tells what goes in, what comes out, and how it is loaded.
    assert "a spot machine is revoked within the hour" in champion.description
    described = Model.load(download_artifacts(artifact_uri=champion.source, dst_path=tmp_path / "champion"))
    assert "max_price_usd_per_hour" in described.signature.inputs.input_names()
    assert described.signature.outputs.input_names() == ["revocation_probability"]
    module, _, name = described.flavors["ebbtide"]["loader"].rpartition(".")
    loaded = getattr(importlib.import_module(module), name)(tmp_path / "champion" / "model")
    assert loaded.markets == fit.model.markets
