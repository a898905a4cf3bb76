"""Evaluation: every model on the same (market, minute, max price) triples of later data (SpotTune IV-D).

And the fit of the model to use: on the latest days of a history, scored on the days after them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ebbtide.base.utc import iso
from ebbtide.errors import unknown_name
from ebbtide.forecasts.revocation.calibration import Correction
from ebbtide.forecasts.revocation.inputs import above, prices_of, published
from ebbtide.forecasts.revocation.minutes import Floats, Minutes, minutes_of
from ebbtide.forecasts.revocation.models import MODELS, revpred
from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.forecasts.revocation.predictor import RevocationModel
from ebbtide.forecasts.revocation.scores import Bools, best_f1_threshold, score
from ebbtide.forecasts.revocation.splits import Samples, Split, origins, split_at
from ebbtide.market.prices import PriceHistory

# The published delta, and rises as a share of the price; SpotTune earns refunds at the small ones.
DELTAS = ("published", "0.1%", "1%", "10%")
RIVALS = ("revpred", "tributary", "logistic", "base-rate")


@dataclass(frozen=True)
class Protocol:
    """Protocol of an evaluation of models: splits, samples and seed.

    Attributes:
        train_days: Days of training data, the last fifth of them for validation.
        test_days: Days of data to score on, beginning an hour after the training data.
        origins: Number of such splits, evenly spread over the record.
        stride: Minutes between training samples of a market.
        test_stride: Minutes between scored samples of a market.
        seed: Random seed of models and max prices.
    """

    train_days: float = 9.0
    test_days: float = 3.0
    origins: int = 4
    stride: int = 5
    test_stride: int = 1
    seed: int = 0


@dataclass
class Answers:
    """Predictions of a model at one delta: one array of shape (n,) per origin in each list.

    Attributes:
        market: Row in `Minutes` of each sample's market.
        labels: Whether the price exceeded the max price.
        probabilities: Predicted probabilities of that.
        decisions: Whether the probability reached the model's threshold.
    """

    market: list[np.ndarray] = field(default_factory=list)
    labels: list[Bools] = field(default_factory=list)
    probabilities: list[Floats] = field(default_factory=list)
    decisions: list[Bools] = field(default_factory=list)


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        protocol: How the models were evaluated.
        starts: When each origin's test data begin, as text.
        markets: Names of the markets, in the order of `Minutes`.
        answers: Answers by model name and delta.
        corrections: RevPred's answers before calibration, by direction of Eq. 3 and delta.
    """

    protocol: Protocol
    starts: tuple[str, ...]
    markets: tuple[str, ...]
    answers: Mapping[str, Mapping[str, Answers]]
    corrections: Mapping[str, Mapping[str, Answers]]

    def reliability_curves(self) -> dict[str, tuple[Bools, Floats]]:
        """RevPred's labels and probabilities over all deltas: by direction of Eq. 3, and calibrated."""
        curves = {f"Eq. 3 {direction}": _all(deltas) for direction, deltas in self.corrections.items()}
        if "revpred" in self.answers:
            curves["derived and calibrated"] = _all(self.answers["revpred"])
        return curves

    def to_dict(self) -> dict[str, Any]:
        """Scores by model: `pooled` over everything with the published delta, the other deltas beside it, and
        `markets`, each with the published delta and the others."""
        return {
            "protocol": {**vars(self.protocol), "test_starts": list(self.starts)},
            "models": {name: self._scores(deltas) for name, deltas in self.answers.items()},
            "correction": {name: self._scores(deltas)["pooled"] for name, deltas in self.corrections.items()},
        }

    def _scores(self, deltas: Mapping[str, Answers]) -> dict[str, Any]:
        pooled, markets = scores_of(deltas, self.markets)
        flat = {
            name: {
                **found.get("published", {}),
                **{delta: found[delta] for delta in found if delta != "published"},
            }
            for name, found in markets.items()
        }
        return {
            "pooled": pooled["published"],
            **{d: pooled[d] for d in pooled if d != "published"},
            "markets": flat,
        }


def evaluate(
    prices: PriceHistory,
    protocol: Protocol,
    names: Sequence[str] = RIVALS,
    *,
    on_progress: Callable[[str], None] | None = None,
) -> Evaluation:
    """Fit and score models on the same samples and max prices (SpotTune IV-D).

    Args:
        prices: Price history to split into training and test data.
        protocol: How the models are evaluated.
        names: Names of the models, keys of `MODELS`.
        on_progress: Called before each fit with a line that names it.

    Raises:
        InputError: A model is unknown, or the history is too short for the protocol.
    """
    for name in names:
        if name not in MODELS:
            raise unknown_name("model", name, MODELS)
    minutes = minutes_of(prices)
    answers = {name: {delta: Answers() for delta in DELTAS} for name in names}
    corrections = {str(direction): {delta: Answers() for delta in DELTAS} for direction in Correction}
    starts = []
    begins = origins(minutes, protocol.train_days, protocol.test_days, protocol.origins)
    for number, first in enumerate(begins):
        split = split_at(
            minutes,
            first,
            protocol.train_days,
            protocol.test_days,
            stride=protocol.stride,
            test_stride=protocol.test_stride,
        )
        starts.append(iso(split.origin_s))
        asked = asked_max_prices(minutes, split.test, [protocol.seed, number, 0])
        tuned_on = asked_max_prices(minutes, split.known, [protocol.seed, number, 1])
        for name in names:
            if on_progress:
                on_progress(f"origin {number + 1} of {len(begins)}: {name}")
            model: RevocationModel = MODELS[name](protocol.seed + number)
            model.fit(minutes, split.train, split.validation)
            questions = Questions.of(minutes, split, asked, tuned_on)
            if not isinstance(model, NetworkModel):
                later = model.probabilities(minutes, split.test, asked)
                questions.mark(answers[name], later, model.probabilities(minutes, split.known, tuned_on))
                continue
            # Networks run once; only the correction and calibration of their outputs differ.
            outputs = model.ask(minutes, split.test, asked)
            outputs_known = model.ask(minutes, split.known, tuned_on)
            questions.mark(answers[name], model.read(outputs), model.read(outputs_known))
            if name == "revpred":
                for direction in Correction:
                    plain = [model.read(part, direction, calibrated=False) for part in (outputs, outputs_known)]
                    questions.mark(corrections[direction], *plain)
    kept = corrections if "revpred" in names else {}
    return Evaluation(protocol, tuple(starts), tuple(map(str, minutes.markets)), answers, kept)


@dataclass(frozen=True)
class Questions:
    """The true labels of the questions that every model is asked.

    Attributes:
        market: Row in `Minutes` of each test sample's market, shape (n,).
        truth: Whether the price exceeded the max price in the test data, shape (n, deltas).
        known_truth: The same for the training and validation data, on which thresholds are set, shape (m, deltas).
    """

    market: np.ndarray
    truth: Bools
    known_truth: Bools

    @classmethod
    def of(cls, minutes: Minutes, split: Split, asked: Floats, tuned_on: Floats) -> Questions:
        """Label max prices `asked` on the test data, and `tuned_on` on the known data; shapes (n, deltas)."""
        return cls(
            split.test.market, exceeded(minutes, split.test, asked), exceeded(minutes, split.known, tuned_on)
        )

    def mark(self, answers: Mapping[str, Answers], later: Floats, of_known: Floats) -> None:
        """Add a model's probabilities to `answers`, by delta, with decisions at the best threshold on known data.

        Args:
            answers: Answers by delta, extended in place.
            later: Probabilities on the test data, shape (n, deltas).
            of_known: Probabilities on the known data, shape (m, deltas).
        """
        for column, delta in enumerate(DELTAS):
            threshold = best_f1_threshold(self.known_truth[:, column], of_known[:, column])
            own = answers[delta]
            own.market.append(self.market)
            own.labels.append(self.truth[:, column])
            own.probabilities.append(later[:, column])
            own.decisions.append(later[:, column] >= threshold)


def scores_of(
    deltas: Mapping[str, Answers], names: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, dict[str, Any]]]]:
    """Scores pooled over markets, by delta; and by market name and delta, empty for markets without samples."""
    pooled: dict[str, dict[str, Any]] = {}
    markets: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in names}
    for delta, own in deltas.items():
        market = np.concatenate(own.market)
        labels, probabilities = np.concatenate(own.labels), np.concatenate(own.probabilities)
        decisions = np.concatenate(own.decisions)
        pooled[delta] = score(labels, probabilities, decisions).to_dict()
        for row in np.unique(market):
            its = market == row
            markets[names[row]][delta] = score(labels[its], probabilities[its], decisions[its]).to_dict()
    return pooled, markets


def _all(deltas: Mapping[str, Answers]) -> tuple[Bools, Floats]:
    labels = [part for own in deltas.values() for part in own.labels]
    probabilities = [part for own in deltas.values() for part in own.probabilities]
    return np.concatenate(labels), np.concatenate(probabilities)


def asked_max_prices(minutes: Minutes, samples: Samples, seed: Sequence[int]) -> Floats:
    """The max price of each delta for each sample, shape (n, deltas), the same for every model."""
    prices = prices_of(minutes, samples)
    random = np.random.default_rng(list(seed))
    columns = [published(prices, random)]
    columns += [above(prices, float(delta.removesuffix("%")) / 100) for delta in DELTAS[1:]]
    return np.stack(columns, axis=1)


def exceeded(minutes: Minutes, samples: Samples, max_prices: Floats) -> Bools:
    """Return whether the price exceeded each max price within the hour, shape (n, k)."""
    return np.asarray(minutes.highest_next_hour[samples.market, samples.minute][:, None] > max_prices)


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
    prices: PriceHistory,
    *,
    train_days: float,
    test_days: float,
    stride: int = 5,
    seed: int = 0,
    grid: PriceHistory | None = None,
) -> LatestFit:
    """Fit RevPred to the last `train_days` before the last `test_days`, and score it on those.

    Args:
        prices: The recorded prices, from which the model is asked when it is scored, as it is in use.
        train_days: Days of training data, the last fifth of them for validation.
        test_days: Days of data to score on.
        stride: Minutes between training samples of a market.
        seed: Random seed of the model and the max prices.
        grid: The prices on an even grid, whose features the model is trained on; by default the recorded ones.

    Raises:
        InputError: The history is too short, or the grid lacks a market.
    """
    minutes = minutes_of(prices)
    # The second of two origins is as late as the record allows.
    first = origins(minutes, train_days, test_days, 2)[-1]
    split = split_at(minutes, first, train_days, test_days, stride=stride)
    model = revpred(seed)
    model.fit(minutes if grid is None else minutes_of(prices, grid), split.train, split.validation)
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
