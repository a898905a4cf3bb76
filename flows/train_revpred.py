"""Training RevPred as a flow: fit, a card for each market, register, promote if better on later data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task, unmapped
from prefect.logging import get_run_logger

from ebbtide._files import write_text
from ebbtide.analysis.promotion import Promotion, register
from ebbtide.forecasts.revocation.evaluation import LatestFit, fit_latest
from ebbtide.forecasts.revocation.storage import model_card, save_model
from flows.parameters import trained_on, training_prices
from flows.task_runner import task_runner


@task(persist_result=False)
def fit(prices: Path, parameters: Mapping[str, Any]) -> LatestFit:
    """Fit one network over all markets, and score it on later data."""
    return fit_latest(training_prices(prices), **parameters)


@task(task_run_name="card-{row}", persist_result=False)
def write_card(row: int, fitted: LatestFit, into: Path) -> None:
    """Write one market's card."""
    market = fitted.model.markets[row]
    text = model_card(fitted.model, market, fitted.trained, fitted.markets[str(market)])
    write_text(into / f"market-{row:04}.md", text)


@task(retries=2, retry_delay_seconds=2, persist_result=False)
def promote(
    fitted: LatestFit, folder: Path, parameters: Mapping[str, Any], tracking: Mapping[str, Any]
) -> Promotion:
    """Register the model; make it champion if it is better."""
    return register(
        fitted,
        folder,
        uri=tracking["uri"],
        experiment="revocation",
        artifacts=tracking["artifacts"],
        parameters=parameters,
        seed=parameters["seed"],
    )


@flow(name="train_revpred", validate_parameters=False, task_runner=task_runner())
def train_revpred(
    parameters: Mapping[str, Any], tracking: Mapping[str, Any], prices: Path, into: Path, metrics: Path
) -> None:
    """Train, and keep the model with its cards and scores.

    Args:
        parameters: The `train_revpred` section of params.yaml.
        tracking: The `tracking` section.
        prices: The price file.
        into: The model's folder.
        metrics: Where its pooled scores go.
    """
    fitted = fit(prices, parameters)
    rows = [row for row, market in enumerate(fitted.model.markets) if fitted.markets[str(market)]]
    write_card.map(rows, fitted=unmapped(fitted), into=unmapped(into / "cards")).result()
    save_model(fitted.model, into)
    promoted = promote(fitted, into, parameters, tracking)
    get_run_logger().info(promoted)
    told = {
        "pooled": fitted.pooled,
        "scores": {"brier": promoted.brier},
        "trained": trained_on(training_prices(prices)),
        "registry_version": promoted.version,
    }
    write_text(metrics, json.dumps(told, indent=2, allow_nan=False) + "\n")
