"""The models by name, as they are compared (SpotTune IV-D): RevPred, Tributary Predict and two baselines."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from sklearn.linear_model import LogisticRegression

from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.calibration import Correction
from ebbtide.forecasts.revocation.inputs import (
    MaxPrices,
    Scaling,
    draw,
    excerpt,
    fit_scaling,
    max_price_inputs,
    present,
    prices_of,
    transformed,
    windows,
)
from ebbtide.forecasts.revocation.minutes import Floats, Floats32, Minutes
from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.forecasts.revocation.predictor import BATCH, MIN_RISES, RevocationModel, certain, places
from ebbtide.forecasts.revocation.splits import Samples
from ebbtide.forecasts.revocation.training import TrainingSettings
from ebbtide.market.markets import Market


@dataclass
class BaseRate:
    """Share of training minutes in which the price rose within the hour by more than a max price allows.

    Attributes:
        name: Name of the model in tables.
        markets: Markets that it was fitted on.
        rises: For each market, highest price of the next hour over the price, sorted, shape (training minutes,).
    """

    name: str = "base-rate"
    markets: tuple[Market, ...] = ()
    rises: list[Floats] = field(default_factory=list)

    def fit(self, minutes: Minutes, training: Samples, validation: Samples) -> None:
        self.markets = minutes.markets
        self.rises = []
        for row in range(len(minutes.markets)):
            parts = [part.of(row) for part in (training, validation)]
            rises = [minutes.highest_next_hour[row, s.minute] / minutes.prices[row, s.minute] for s in parts]
            self.rises.append(np.sort(np.concatenate(rises)))
        if not sum(map(len, self.rises)):
            raise InputError("no complete minute to learn a base rate from")

    def probabilities(self, minutes: Minutes, samples: Samples, max_prices: Floats) -> Floats:
        place = places(self.markets, minutes.markets, np.unique(samples.market))
        ratio = max_prices / prices_of(minutes, samples)[:, None]
        result = np.empty_like(ratio)
        everyone = np.sort(np.concatenate(self.rises))
        for row in np.unique(samples.market):
            own = samples.market == row
            rises = self.rises[place[row]] if len(self.rises[place[row]]) else everyone
            result[own] = 1.0 - np.searchsorted(rises, ratio[own], side="right") / len(rises)
        return certain(result, ratio)


@dataclass
class Logistic:
    """Logistic regression on the flattened records: one model per market, trained on max prices of every size.

    Attributes:
        seed: Random seed of the training max prices.
        name: Name of the model in tables.
        per_sample: Training max prices per sample.
        markets: Markets that it was fitted on.
        scaling: Scales of the inputs; None before fitting.
        fitted: By row of the market, its model, or a constant where there was too little data.
    """

    seed: int = 0
    name: str = "logistic"
    per_sample: int = 3
    markets: tuple[Market, ...] = ()
    scaling: Scaling | None = None
    fitted: dict[int, LogisticRegression | float] = field(default_factory=dict)

    def fit(self, minutes: Minutes, training: Samples, validation: Samples) -> None:  # noqa: ARG002
        table = transformed(minutes.features)
        self.markets = minutes.markets
        self.scaling = fit_scaling(table, training, len(minutes.markets))
        random = np.random.default_rng(self.seed)
        for row in range(len(minutes.markets)):
            own = training.of(row)
            if not len(own):
                continue
            prices = prices_of(minutes, own)
            border = minutes.border[row, own.minute]
            max_prices = draw(MaxPrices.MIXED, prices, border, self.per_sample, random)
            labels = (minutes.highest_next_hour[row, own.minute][:, None] > max_prices).ravel()
            if labels.sum() < MIN_RISES or (~labels).sum() < MIN_RISES:
                self.fitted[row] = float(labels.mean())
                continue
            inputs = self._inputs(table, own, prices, max_prices)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about convergence; 100 iterations are enough
                self.fitted[row] = LogisticRegression(C=0.1, max_iter=100).fit(inputs, labels)

    def probabilities(self, minutes: Minutes, samples: Samples, max_prices: Floats) -> Floats:
        place = places(self.markets, minutes.markets, np.unique(samples.market))
        table, placed = excerpt(minutes, samples)
        prices = prices_of(minutes, samples)
        result = np.empty_like(max_prices)
        for row in np.unique(samples.market):
            model = self.fitted.get(int(place[row]), 0.0)
            own = np.flatnonzero(samples.market == row)
            for part in np.array_split(own, -(-len(own) // BATCH)):
                if isinstance(model, float):
                    result[part] = model
                    continue
                some = Samples(placed.market[part], placed.minute[part])
                inputs = self._inputs(table, some, prices[part], max_prices[part])
                result[part] = model.predict_proba(inputs)[:, 1].reshape(len(part), -1)
        return certain(result, max_prices / prices[:, None])

    def _inputs(self, table: Floats32, samples: Samples, prices: Floats, max_prices: Floats) -> Floats32:
        """Build the input row of each sample and max price, shape (n * k, inputs)."""
        assert self.scaling is not None
        flat = windows(table, samples, self.scaling).reshape(len(samples), -1)
        fixed = np.concatenate([flat, present(table, samples, self.scaling)], axis=1)
        repeated = np.repeat(fixed, max_prices.shape[1], axis=0)
        asked = max_price_inputs(prices[:, None], max_prices)
        return np.concatenate([repeated, asked.reshape(-1, asked.shape[-1])], axis=1)


def revpred(seed: int = 0) -> NetworkModel:
    """RevPred as Ebbtide uses it: networks tuned to each market from a shared one, max prices of every size."""
    return NetworkModel("revpred", "revpred", shared=True, training=TrainingSettings(seed=seed))


def revpred_published(seed: int = 0) -> NetworkModel:
    """RevPred as printed: one network per market, max prices of Algorithm 2, Eq. 3 as printed, no calibration."""
    training = TrainingSettings(max_prices=MaxPrices.BORDER, per_sample=1, seed=seed)
    return NetworkModel(
        "revpred-published", "revpred", correction=Correction.PRINTED, calibrate=False, training=training
    )


def tributary(seed: int = 0) -> NetworkModel:
    """Tributary Predict: one LSTM over all inputs, one network per market, the published deltas."""
    training = TrainingSettings(max_prices=MaxPrices.PUBLISHED, per_sample=1, class_weights=False, seed=seed)
    return NetworkModel("tributary", "tributary", calibrate=False, training=training)


MODELS: dict[str, Callable[[int], RevocationModel]] = {
    "revpred": revpred,
    "revpred-published": revpred_published,
    "tributary": tributary,
    "logistic": Logistic,
    "base-rate": lambda _seed: BaseRate(),
}
