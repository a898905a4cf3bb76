"""Models of capacity as a flow: how long markets have machines, and the chance that one is refused or lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from prefect import flow, task

from ebbtide.base.files import write_text
from ebbtide.base.utc import DAY_S, HOUR_S, iso, to_epoch_s
from ebbtide.forecasts.bundle import HAZARD, SPELLS
from ebbtide.forecasts.capacity.models import SpellModels, default_spell_models, fit_market_spells
from ebbtide.forecasts.capacity.probes import before
from ebbtide.forecasts.capacity.scoring import spell_scores
from ebbtide.forecasts.hazard.evaluation import evaluate_hazard
from ebbtide.forecasts.hazard.fitting import fit_hazard
from ebbtide.forecasts.hazard.model import Hazard, default_hazard
from ebbtide.forecasts.hazard.observations import observations_of_probes
from ebbtide.market.sources.parquet import load_parquet
from flows.parameters import FitSpells
from flows.task_runner import task_runner
from flows.training_days import training_prices

# Share of the days that is learnt from at least, for scores.
_LEAST_LEARNT = 0.5


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


@task(persist_result=False)
def fit_the_hazard(probes: pd.DataFrame, name: str) -> Hazard:
    """A hazard for all markets, from all days."""
    return fit_hazard(observations_of_probes(probes), default_hazard(), [name])


@task(persist_result=False)
def score_hazard(probes: pd.DataFrame, test_days: float) -> dict[str, float]:
    """Score on the last days a hazard fitted on the earlier ones: log loss within the hour, beside a constant."""
    observations = observations_of_probes(probes)
    span_s = max(each.times_s[-1] for each in observations) - min(each.times_s[0] for each in observations)
    learnt_share = max(1.0 - test_days * DAY_S / span_s, _LEAST_LEARNT)
    rows = evaluate_hazard(observations, "capacity", default_hazard(), learnt_share, leaves_out=False).rows
    hour = {row.estimate: row for row in rows if row.event == "loss" and row.horizon_s == HOUR_S}
    return {"log_loss": hour["hazard"].log_loss, "log_loss_of_a_constant": hour["constant"].log_loss}


@flow(name="fit_spells", task_runner=task_runner("processes"))
def fit_spells(parameters: FitSpells, prices: Path, capacity: Path, into: Path, reports: Path) -> None:
    """Fit models to each market with a record of capacity; without any record, take those of the package.

    Args:
        parameters: Days at the end on which models are scored.
        prices: The price file, which tells where the days end that models may be trained on.
        capacity: The file of probes.
        into: Folder of the models.
        reports: Folder of the scores.
    """
    until_s = training_prices(prices).end_s
    probes = before(load_parquet(capacity), until_s)
    test_days = parameters.test_days
    spells, hazard, told = default_spell_models(), default_hazard(), dict[str, dict[str, float]]()
    trained: dict[str, Any] = {}
    if len(probes):
        scored = score_hazard.submit(probes, test_days)
        fitted, of_hazard = fit.submit(probes), fit_the_hazard.submit(probes, capacity.stem)
        scores = score.submit(probes, until_s - test_days * DAY_S)
        spells, hazard = fitted.result(), of_hazard.result()
        told = {"spells": scores.result(), "hazard": scored.result()}
        trained = {"trained": {"from": iso(to_epoch_s(probes["timestamp"].min())), "until": iso(until_s)}}
    spells.write(into / SPELLS)
    hazard.write(into / HAZARD)
    for name in ("spells", "hazard"):
        report = {"scores": told.get(name, {}), **trained}
        write_text(reports / f"{name}.json", json.dumps(report, indent=2, allow_nan=False) + "\n")
