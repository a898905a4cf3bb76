"""Fitting price chains as a flow: learned from a market's past, scored on its last days, tracked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task, unmapped

from ebbtide.base.files import write_text
from ebbtide.base.utc import DAY_S
from ebbtide.errors import unknown_name
from ebbtide.forecasts.price_chain import PriceChain, save_chain
from ebbtide.market.markets import MARKET_FIELDS
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.tracking.tracking import log_chain
from flows.parameters import FitPriceModel, Tracking
from flows.task_runner import task_runner
from flows.training_days import trained_on, training_prices


@task(persist_result=False)
def score(series: PriceSeries, start_s: float, end_s: float, test_days: float) -> dict[str, float]:
    """Score on the last days a chain fitted on the earlier ones, with and without hours of the day."""
    split_s = end_s - test_days * DAY_S
    chain = PriceChain.fit(series, start_s, split_s)
    plain = chain.unconditioned(series, start_s, split_s)
    return {
        "log_likelihood": chain.log_likelihood(series, split_s, end_s),
        "log_likelihood_without_hours": plain.log_likelihood(series, split_s, end_s),
    }


@task(persist_result=False)
def fit(series: PriceSeries, start_s: float, end_s: float) -> PriceChain:
    """The chain of all days."""
    return PriceChain.fit(series, start_s, end_s)


@task(retries=2, retry_delay_seconds=2, persist_result=False)
def track(scores: Mapping[str, float], about: Mapping[str, Any], file: Path, tracking: Tracking) -> None:
    """Log the chain and its scores."""
    log_chain(scores, about, file, uri=tracking.uri, artifacts=tracking.artifacts)


@task(task_run_name="fit-{name}", persist_result=False)
def fit_market(
    name: str, history: PriceHistory, test_days: float, into: Path, tracking: Tracking
) -> dict[str, float]:
    """Score, fit, write and track the chain of one market."""
    market = next(each for each in history if str(each) == name)
    series = history[market]
    scores = score(series, history.start_s, history.end_s, test_days)
    about = {"market": name, "fields": [getattr(market, field) for field in MARKET_FIELDS], **trained_on(history)}
    save_chain(fit(series, history.start_s, history.end_s), into, about)
    track(scores, about, into, tracking)
    return scores


@flow(name="fit_price_model", task_runner=task_runner())
def fit_price_model(
    parameters: FitPriceModel, tracking: Tracking, prices: Path, into: Path, metrics: Path
) -> None:
    """Fit a chain for each market that is named.

    Args:
        parameters: Markets, and the days at the end on which chains are scored.
        tracking: Where runs are tracked.
        prices: The price file.
        into: The chains' folder.
        metrics: Where scores go.

    Raises:
        InputError: A market is not among the prices, or its record is too short.
    """
    history = training_prices(prices)
    named = {str(market): market for market in history}
    names = parameters.markets
    for name in names:
        if name not in named:
            raise unknown_name("market", name, named)
    into.mkdir(parents=True, exist_ok=True)
    files = [into / f"{place:04}.safetensors" for place in range(len(names))]
    found = fit_market.map(
        names,
        history=unmapped(history),
        test_days=unmapped(parameters.test_days),
        into=files,
        tracking=unmapped(tracking),
    ).result()
    likelihoods = [scores["log_likelihood"] for scores in found]
    told = {
        "scores": {"log_likelihood": sum(likelihoods) / len(likelihoods)},
        "markets": dict(zip(names, found, strict=True)),
        "trained": trained_on(history),
    }
    write_text(metrics, json.dumps(told, indent=2, allow_nan=False) + "\n")
