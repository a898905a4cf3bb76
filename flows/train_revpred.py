"""Training RevPred as a flow: fit, a card for each market, scores on later data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task, unmapped

from ebbtide.base.files import write_text
from ebbtide.forecasts.revocation.evaluation import LatestFit, fit_latest
from ebbtide.forecasts.revocation.storage import model_card, save_model
from ebbtide.market.prices import PriceHistory
from flows.parameters import TrainRevPred
from flows.task_runner import task_runner
from flows.training_days import trained_on, training_prices


@task(persist_result=False)
def fit(prices: Path, grid: Path, parameters: TrainRevPred) -> LatestFit:
    """Fit one network over all markets to the grid of prices, and score it on later data."""
    return fit_latest(training_prices(prices), grid=PriceHistory.read(grid), **parameters.model_dump())


@task(task_run_name="card-{row}", persist_result=False)
def write_card(row: int, fitted: LatestFit, into: Path) -> None:
    """Write one market's card."""
    market = fitted.model.markets[row]
    text = model_card(fitted.model, market, fitted.trained, fitted.markets[str(market)])
    write_text(into / f"market-{row:04}.md", text)


@flow(name="train_revpred", task_runner=task_runner())
def train_revpred(parameters: TrainRevPred, prices: Path, grid: Path, into: Path, metrics: Path) -> None:
    """Train, and keep the model with its cards and scores.

    Args:
        parameters: Training and test days, stride and seed.
        prices: The price file.
        grid: Its prices on an even grid, which the model is trained on.
        into: The model's folder.
        metrics: Where its pooled scores go.
    """
    fitted = fit(prices, grid, parameters)
    rows = [row for row, market in enumerate(fitted.model.markets) if fitted.markets[str(market)]]
    write_card.map(rows, fitted=unmapped(fitted), into=unmapped(into / "cards")).result()
    save_model(fitted.model, into)
    told = {
        "pooled": fitted.pooled,
        "scores": {name: _mean(fitted.pooled, name) for name in ("brier", "auc")},
        "trained": trained_on(training_prices(prices)),
    }
    write_text(metrics, json.dumps(told, indent=2, allow_nan=False) + "\n")


def _mean(pooled: Mapping[str, Mapping[str, Any]], name: str) -> float | None:
    """A score's mean over all deltas; None: it is not defined for one."""
    values = [scores[name] for scores in pooled.values()]
    return None if None in values else sum(values) / len(values)
