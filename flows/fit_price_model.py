"""Fitting a price chain as a flow: learned from a market's past, scored on its last days, tracked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task

from ebbtide._files import write_text
from ebbtide._utc import DAY_S, iso
from ebbtide.analysis.tracking import log_chain
from ebbtide.errors import unknown_name
from ebbtide.forecasts.price_chain import PriceChain, save_chain
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory


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
def track(scores: Mapping[str, float], about: Mapping[str, Any], file: Path, tracking: Mapping[str, Any]) -> None:
    """Log the chain and its scores."""
    log_chain(scores, about, file, uri=tracking["uri"], artifacts=tracking["artifacts"])


@flow(name="fit_price_model", validate_parameters=False)
def fit_price_model(
    parameters: Mapping[str, Any], tracking: Mapping[str, Any], prices: Path, into: Path, metrics: Path
) -> None:
    """Score, fit, write and track.

    Args:
        parameters: The `fit_price_model` section of params.yaml.
        tracking: The `tracking` section.
        prices: The price file.
        into: The chain's file.
        metrics: Where scores go.

    Raises:
        InputError: The market is not among the prices, or its record is too short.
    """
    history = PriceHistory.read(prices)
    named = {str(market): market for market in history}
    if parameters["market"] not in named:
        raise unknown_name("market", parameters["market"], named)
    series = history[named[parameters["market"]]]
    scores = score(series, history.start_s, history.end_s, float(parameters["test_days"]))
    about = {"market": parameters["market"], "from": iso(history.start_s), "to": iso(history.end_s)}
    save_chain(fit(series, history.start_s, history.end_s), into, about)
    write_text(metrics, json.dumps(scores, indent=2, allow_nan=False) + "\n")
    track(scores, about, into, tracking)
