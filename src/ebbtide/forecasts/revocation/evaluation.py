"""The evaluation: every model on the same (market, minute, max price) triples of later data (SpotTune IV-D)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ebbtide._utc import iso
from ebbtide.errors import unknown_name
from ebbtide.forecasts.revocation.correction import Correction
from ebbtide.forecasts.revocation.inputs import prices_of
from ebbtide.forecasts.revocation.max_prices import above, published
from ebbtide.forecasts.revocation.minutes import Floats, Minutes, minutes_of
from ebbtide.forecasts.revocation.models import MODELS
from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.forecasts.revocation.predictions import RevocationModel
from ebbtide.forecasts.revocation.scores import Bools, best_f1_threshold, score
from ebbtide.forecasts.revocation.splits import Samples, Split, origins, split_at
from ebbtide.market.prices import PriceHistory

# The published delta, and rises as a share of the price: the small ones are where refunds are earned.
DELTAS = ("published", "0.1%", "1%", "10%")
RIVALS = ("revpred", "tributary", "logistic", "base-rate")


@dataclass(frozen=True)
class Protocol:
    """How models are evaluated.

    Attributes:
        train_days: Trained on, the last fifth of it for validation.
        test_days: Scored on, an hour later.
        origins: How many such splits, evenly spread over the record.
        stride: Minutes between training samples.
        test_stride: Minutes between scored ones.
        seed: Of models and max prices.
    """

    train_days: float = 9.0
    test_days: float = 3.0
    origins: int = 4
    stride: int = 5
    test_stride: int = 1
    seed: int = 0


@dataclass
class Answers:
    """Of one model and delta: what happened, predicted and decided, origin after origin."""

    market: list[np.ndarray] = field(default_factory=list)
    labels: list[Bools] = field(default_factory=list)
    probabilities: list[Floats] = field(default_factory=list)
    decisions: list[Bools] = field(default_factory=list)


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation gives.

    Attributes:
        protocol: How.
        starts: Where each origin's test begins, as text.
        markets: Their names, in order.
        answers: By model and delta.
        corrections: Of RevPred before calibration, by direction of Eq. 3 and delta.
    """

    protocol: Protocol
    starts: tuple[str, ...]
    markets: tuple[str, ...]
    answers: Mapping[str, Mapping[str, Answers]]
    corrections: Mapping[str, Mapping[str, Answers]]

    def reliability_curves(self) -> dict[str, tuple[Bools, Floats]]:
        """Labels and probabilities over all deltas, of RevPred: by direction of Eq. 3, and calibrated."""
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
    """Fit and score models.

    Args:
        prices: The history.
        protocol: How.
        names: Which of `MODELS`.
        on_progress: Told what is being done.

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
            # Networks are asked once; only what is made of their answer differs.
            said, said_of_known = model.ask(minutes, split.test, asked), model.ask(minutes, split.known, tuned_on)
            questions.mark(answers[name], model.read(said), model.read(said_of_known))
            if name == "revpred":
                for direction in Correction:
                    plain = [model.read(part, direction, calibrated=False) for part in (said, said_of_known)]
                    questions.mark(corrections[direction], *plain)
    kept = corrections if "revpred" in names else {}
    return Evaluation(protocol, tuple(starts), tuple(map(str, minutes.markets)), answers, kept)


@dataclass(frozen=True)
class Questions:
    """What every model is asked, and the truth; shapes (n, deltas).

    Attributes:
        market: Of each question about later data, shape (n,).
        truth: Of those.
        known_truth: Of questions about what was known, which thresholds are set on.
    """

    market: np.ndarray
    truth: Bools
    known_truth: Bools

    @classmethod
    def of(cls, minutes: Minutes, split: Split, asked: Floats, tuned_on: Floats) -> Questions:
        """Max prices `asked` about the test part, and `tuned_on` about the known one."""
        return cls(
            split.test.market, exceeded(minutes, split.test, asked), exceeded(minutes, split.known, tuned_on)
        )

    def mark(self, answers: Mapping[str, Answers], later: Floats, of_known: Floats) -> None:
        """Add a model's probabilities to `answers`, by delta; it decides by the threshold best on known data."""
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
    """Scores pooled over markets, by delta; and by market name and delta, empty for markets not asked about."""
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
    """Whether the price exceeded each max price within the hour, shape (n, k)."""
    return np.asarray(minutes.highest_next_hour[samples.market, samples.minute][:, None] > max_prices)
