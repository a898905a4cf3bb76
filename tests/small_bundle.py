"""A model bundle with a revocation model that is trained in seconds."""

from __future__ import annotations

from pathlib import Path

from ebbtide.forecasts.bundle import ModelBundle, part_of, write_manifest
from ebbtide.forecasts.revocation.minutes import minutes_of
from ebbtide.forecasts.revocation.models import revpred
from ebbtide.forecasts.revocation.splits import split_at
from ebbtide.forecasts.revocation.storage import save_model
from ebbtide.forecasts.revocation.training import Training
from ebbtide.market.prices import PriceHistory


def small_bundle(known: PriceHistory, folder: Path) -> ModelBundle:
    """Train on a history of six days and a half or more, and write the bundle."""
    minutes = minutes_of(known)
    model = revpred()
    model.training = Training(epochs=1)
    split = split_at(minutes, 60, 6, 0.5, stride=60)
    model.fit(minutes, split.train, split.validation)
    save_model(model, folder / "revpred")
    part = part_of(folder, "revpred", window_s=(known.start_s, known.end_s), scores={"brier": 0.1})
    return write_manifest(folder, {"revpred": part})
