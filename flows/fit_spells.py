"""Fitting spell models as a flow: how long markets have machines and have none, scored on the last days."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from prefect import flow, task

from ebbtide.base.files import write_text
from ebbtide.base.utc import DAY_S, iso, to_epoch_s
from ebbtide.forecasts.capacity.models import SpellModels, default_spell_models, fit_market_spells
from ebbtide.forecasts.capacity.probes import before
from ebbtide.forecasts.capacity.scoring import spell_scores
from ebbtide.market.sources.parquet import load_parquet
from flows.parameters import training_prices


@task(persist_result=False)
def score(probes: pd.DataFrame, split_s: float) -> dict[str, float]:
    """Score on the last days models fitted on the earlier ones, beside the models of the package."""
    fitted, later = fit_market_spells(before(probes, split_s)), before(probes, split_s, later=True)
    packaged = spell_scores(default_spell_models(), later)
    return {**spell_scores(fitted, later), "brier_of_the_package": packaged["brier"]}


@task(persist_result=False)
def fit(probes: pd.DataFrame) -> SpellModels:
    """A model for each market, from all days."""
    return fit_market_spells(probes)


@flow(name="fit_spells", validate_parameters=False)
def fit_spells(parameters: Mapping[str, Any], prices: Path, capacity: Path, into: Path, metrics: Path) -> None:
    """Fit a model for each market with a record of capacity; without any record, take those of the package.

    Args:
        parameters: The `fit_spells` section of params.yaml.
        prices: The price file, which tells where the days end that models may be trained on.
        capacity: The file of probes.
        into: The models' file.
        metrics: Where scores go.
    """
    until_s = training_prices(prices).end_s
    probes = before(load_parquet(capacity), until_s)
    told: dict[str, Any] = {"scores": {}}
    if len(probes):
        fit(probes).write(into)
        told = {
            "scores": score(probes, until_s - float(parameters["test_days"]) * DAY_S),
            "trained": {"from": iso(to_epoch_s(probes["timestamp"].min())), "until": iso(until_s)},
        }
    else:
        default_spell_models().write(into)
    write_text(metrics, json.dumps(told, indent=2, allow_nan=False) + "\n")
