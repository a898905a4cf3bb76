"""Fitting the model to use: on the latest days of a history, scored on the days after them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ebbtide._utc import iso
from ebbtide.forecasts.revocation.evaluation import DELTAS, Answers, Questions, asked_max_prices, scores_of
from ebbtide.forecasts.revocation.minutes import Minutes, minutes_of
from ebbtide.forecasts.revocation.models import revpred
from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.forecasts.revocation.splits import Split, origins, split_at
from ebbtide.market.prices import PriceHistory


@dataclass(frozen=True)
class LatestFit:
    """A model fitted to the latest data, with its scores on the days after.

    Attributes:
        model: RevPred fitted on the days before the last `test_days`.
        minutes: Minutes of the whole price history.
        split: Samples that it was trained, validated and scored on.
        pooled: Scores over all markets, by delta.
        markets: Scores by market name and delta.
        trained: What the model was trained on, in words.
    """

    model: NetworkModel
    minutes: Minutes
    split: Split
    pooled: Mapping[str, Mapping[str, Any]]
    markets: Mapping[str, Mapping[str, Mapping[str, Any]]]
    trained: str


def fit_latest(
    prices: PriceHistory, *, train_days: float, test_days: float, stride: int = 5, seed: int = 0
) -> LatestFit:
    """Fit RevPred to the last `train_days` before the last `test_days`, and score it on those.

    Raises:
        InputError: The history is too short.
    """
    minutes = minutes_of(prices)
    # The second of two origins is as late as the record allows.
    first = origins(minutes, train_days, test_days, 2)[-1]
    split = split_at(minutes, first, train_days, test_days, stride=stride)
    model = revpred(seed)
    model.fit(minutes, split.train, split.validation)
    pooled, markets = later_scores(model, minutes, split, seed)
    start, end = iso(minutes.times_s[first]), iso(split.origin_s)
    trained = f"{len(minutes.markets)} markets from {start} to {end}, every {stride} minutes, seed {seed}"
    return LatestFit(model, minutes, split, pooled, markets, trained)


def later_scores(
    model: NetworkModel, minutes: Minutes, split: Split, seed: int
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, dict[str, Any]]]]:
    """Scores on the test data, pooled by delta, and by market and delta; thresholds are set on the known data."""
    answers = {delta: Answers() for delta in DELTAS}
    asked = asked_max_prices(minutes, split.test, [seed, 0])
    tuned_on = asked_max_prices(minutes, split.known, [seed, 1])
    later, of_known = (
        model.probabilities(minutes, split.test, asked),
        model.probabilities(minutes, split.known, tuned_on),
    )
    Questions.of(minutes, split, asked, tuned_on).mark(answers, later, of_known)
    return scores_of(answers, tuple(map(str, minutes.markets)))
