"""The predictors behind one small interface: RevPred, Tributary Predict, logistic regression and the base rate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from torch import nn

from ebbtide.errors import InputError
from ebbtide.market.markets import Market
from ebbtide.revocation.correction import Correction, corrected
from ebbtide.revocation.inputs import (
    Scaling,
    fit_scaling,
    max_price_inputs,
    present,
    prices_of,
    transformed,
    windows,
)
from ebbtide.revocation.max_prices import MaxPrices, draw
from ebbtide.revocation.minutes import Floats, Floats32, Integers, Minutes
from ebbtide.revocation.networks import RevPredNetwork, TributaryNetwork
from ebbtide.revocation.splits import Samples
from ebbtide.revocation.training import Batch, Fitted, Training, log_odds, train

# With fewer training minutes after which the price rose at all, there is nothing to learn from.
MIN_RISES = 10

_BATCH = 8192


class RevocationModel(Protocol):
    """Predicts whether a price will exceed a max price within the hour."""

    name: str

    def fit(self, minutes: Minutes, training: Samples, validation: Samples) -> None:
        """Learn from `training`; stop early and calibrate on `validation`, which is later."""
        ...

    def probabilities(self, minutes: Minutes, samples: Samples, max_prices: Floats) -> Floats:
        """The probability for each sample and max price, shapes (n, k); 1 where the price is already above.

        Raises:
            InputError: A market was not there when the model was fitted.
        """
        ...


@dataclass
class BaseRate:
    """How often, in training, the price rose within the hour by more than a max price allows."""

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
        return _certain(result, ratio)


@dataclass
class Logistic:
    """Logistic regression on the same records laid flat, a model a market, trained on max prices of every size."""

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
                warnings.simplefilter("ignore")  # it says that it could go on improving; 100 rounds are enough
                self.fitted[row] = LogisticRegression(C=0.1, max_iter=100).fit(inputs, labels)

    def probabilities(self, minutes: Minutes, samples: Samples, max_prices: Floats) -> Floats:
        place = places(self.markets, minutes.markets, np.unique(samples.market))
        table = transformed(minutes.features)
        prices = prices_of(minutes, samples)
        result = np.empty_like(max_prices)
        for row in np.unique(samples.market):
            model = self.fitted.get(int(place[row]), 0.0)
            own = np.flatnonzero(samples.market == row)
            for part in np.array_split(own, -(-len(own) // _BATCH)):
                if isinstance(model, float):
                    result[part] = model
                    continue
                some = Samples(samples.market[part], samples.minute[part])
                inputs = self._inputs(table, some, prices[part], max_prices[part])
                result[part] = model.predict_proba(inputs)[:, 1].reshape(len(part), -1)
        return _certain(result, max_prices / prices[:, None])

    def _inputs(self, table: Floats32, samples: Samples, prices: Floats, max_prices: Floats) -> Floats32:
        """A row for each sample and max price."""
        assert self.scaling is not None
        flat = windows(table, samples, self.scaling).reshape(len(samples), -1)
        fixed = np.concatenate([flat, present(table, samples, self.scaling)], axis=1)
        repeated = np.repeat(fixed, max_prices.shape[1], axis=0)
        asked = max_price_inputs(prices[:, None], max_prices)
        return np.concatenate([repeated, asked.reshape(-1, asked.shape[-1])], axis=1)


@dataclass
class Group:
    """A network, and the markets that it answers for."""

    markets: Integers
    network: nn.Module
    fitted: Fitted
    slope: float = 1.0
    offset: float = 0.0


@dataclass
class NetworkModel:
    """RevPred or Tributary Predict: a network, class weights undone by Eq. 3, calibrated on validation.

    Attributes:
        name: For tables.
        kind: `revpred` or `tributary`.
        hidden: Width of the LSTM.
        dropout: Of RevPred's network.
        shared: All markets' networks start from one trained on all of them; else each is trained on its own
            market alone, as SpotTune has it.
        correction: Which direction of Eq. 3.
        calibrate: Fit slope and offset of the log odds on validation.
        training: How it is trained.
        markets: It was fitted on.
        scaling: Of its inputs.
        groups: Its networks, one a market.
        constants: What markets without enough to learn from get, by place among `markets`.
        common: How the common start was trained, if there is one.
    """

    name: str
    kind: str
    hidden: int = 24
    dropout: float = 0.3
    shared: bool = False
    correction: Correction = Correction.DERIVED
    calibrate: bool = True
    training: Training = field(default_factory=Training)
    markets: tuple[Market, ...] = ()
    scaling: Scaling | None = None
    groups: list[Group] = field(default_factory=list)
    constants: dict[int, float] = field(default_factory=dict)
    common: Fitted | None = None

    def fit(self, minutes: Minutes, training: Samples, validation: Samples) -> None:
        if not len(training) or not len(validation):
            raise InputError("no complete minutes to train on, or none to validate on")
        table = transformed(minutes.features)
        self.markets = minutes.markets
        self.scaling = fit_scaling(table, training, len(minutes.markets))
        self.groups, self.constants = [], {}
        rows = [row for row in range(len(minutes.markets)) if self._can_learn(minutes, training, validation, row)]
        start = (
            self._fit_group(minutes, table, training, validation, np.array(rows)) if self.shared and rows else None
        )
        self.common = start.fitted if start else None
        for row in rows:
            own = np.array([row])
            if start is None:
                self.groups.append(self._fit_group(minutes, table, training, validation, own))
            elif len(validation.of(row)):
                self.groups.append(self._fit_group(minutes, table, training, validation, own, start))
            else:
                self.groups.append(replace(start, markets=own))

    def probabilities(self, minutes: Minutes, samples: Samples, max_prices: Floats) -> Floats:
        place = places(self.markets, minutes.markets, np.unique(samples.market))
        table = transformed(minutes.features)
        prices = prices_of(minutes, samples)
        result = np.empty(max_prices.shape)
        group_of = self._group_of()
        own_market = place[samples.market]
        for group in np.unique(group_of[own_market]):
            chosen = np.flatnonzero(group_of[own_market] == group)
            for part in np.array_split(chosen, -(-len(chosen) // _BATCH)):
                some = Samples(samples.market[part], samples.minute[part])
                if group < 0:
                    constant = [self.constants[int(row)] for row in own_market[part]]
                    result[part] = np.array(constant)[:, None]
                else:
                    result[part] = self._ask(self.groups[group], minutes, table, some, place, max_prices[part])
        return _certain(result, max_prices / prices[:, None])

    def new_network(self) -> nn.Module:
        """A network of this model's shape, not yet trained."""
        if self.kind == "tributary":
            return TributaryNetwork(self.hidden)
        return RevPredNetwork(self.hidden, self.dropout)

    def _can_learn(self, minutes: Minutes, training: Samples, validation: Samples, row: int) -> bool:
        own = training.of(row)
        rose = minutes.highest_next_hour[row, own.minute] > minutes.prices[row, own.minute]
        if len(own) and rose.sum() >= MIN_RISES and (self.shared or len(validation.of(row))):
            return True
        # Laplace's rule: what never happened is not impossible.
        self.constants[row] = float((rose.sum() + 1) / (len(own) + 2))
        warnings.warn(
            f"{self.name}: {minutes.markets[row]} rose in {int(rose.sum())} of {len(own)} training minutes, "
            f"too few to learn from; it gets the constant {self.constants[row]:.4f}",
            stacklevel=3,
        )
        return False

    def _fit_group(
        self,
        minutes: Minutes,
        table: Floats32,
        training: Samples,
        validation: Samples,
        members: Integers,
        start: Group | None = None,
    ) -> Group:
        """Fit a network to some markets; with `start`, go on from that group's network and calibration."""
        torch.manual_seed(self.training.seed)
        network = self.new_network()
        if start is not None:
            network.load_state_dict(start.network.state_dict())
        assert self.scaling is not None
        parts = []
        for part in (training, validation):
            own = np.isin(part.market, members)
            some = Samples(part.market[own], part.minute[own])
            parts.append(Batch.of(minutes, table, some, self.scaling))
        if start is not None:
            # Class weights and calibration stay those of all: one market's validation is too short for them.
            fitted = train(network, self.training, *parts, share_positive=start.fitted.share_positive)
            return Group(members, network, fitted, start.slope, start.offset)
        fitted = train(network, self.training, *parts)
        group = Group(members, network, fitted)
        if self.calibrate:
            self._calibrate(group, parts[1])
        return group

    def _calibrate(self, group: Group, validation: Batch) -> None:
        """Platt's scaling of the corrected log odds, held near the identity."""
        random = np.random.default_rng(self.training.seed + 2)
        inputs, labels = validation.drawn(self.training.max_prices, self.training.per_sample, random)
        odds = _log_odds(self._corrected(group, log_odds(group.network, validation, inputs).numpy()))
        truth = labels.numpy()

        def cost(scale: Floats) -> float:
            scaled = scale[0] * odds + scale[1]
            loss = np.mean(np.logaddexp(0.0, scaled) - truth * scaled)
            return float(loss + 0.01 * ((scale[0] - 1) ** 2 + scale[1] ** 2))

        group.slope, group.offset = (float(value) for value in minimize(cost, [1.0, 0.0], method="Nelder-Mead").x)

    def _corrected(self, group: Group, odds: Floats32) -> Floats:
        raw = 1.0 / (1.0 + np.exp(-odds.astype(np.float64)))
        direction = self.correction if self.training.class_weights else Correction.NONE
        return corrected(raw, group.fitted.share_positive, direction)

    def _ask(
        self,
        group: Group,
        minutes: Minutes,
        table: Floats32,
        samples: Samples,
        place: Integers,
        max_prices: Floats,
    ) -> Floats:
        assert self.scaling is not None
        scaling = Scaling(self.scaling.usual_log_price[place], self.scaling.mean, self.scaling.deviation)
        group.network.eval()
        with torch.inference_mode():
            odds = group.network(
                torch.from_numpy(windows(table, samples, scaling)),
                torch.from_numpy(present(table, samples, scaling)),
                torch.from_numpy(max_price_inputs(prices_of(minutes, samples)[:, None], max_prices)),
            ).numpy()
        probability = self._corrected(group, odds)
        if not self.calibrate:
            return probability
        return np.asarray(1.0 / (1.0 + np.exp(-(group.slope * _log_odds(probability) + group.offset))))

    def _group_of(self) -> Integers:
        """The group of each market the model was fitted on; -1 for those with a constant."""
        found = np.full(len(self.markets), -1, dtype=np.int64)
        for number, group in enumerate(self.groups):
            found[group.markets] = number
        return found


def revpred(seed: int = 0) -> NetworkModel:
    """RevPred as we use it: networks tuned to each market from a common start, max prices of every size."""
    return NetworkModel("revpred", "revpred", shared=True, training=Training(seed=seed))


def revpred_published(seed: int = 0) -> NetworkModel:
    """RevPred as printed: a network a market, Algorithm 2's max prices alone, Eq. 3 as printed, no calibration."""
    training = Training(max_prices=MaxPrices.BORDER, per_sample=1, seed=seed)
    return NetworkModel(
        "revpred-published", "revpred", correction=Correction.PRINTED, calibrate=False, training=training
    )


def tributary(seed: int = 0) -> NetworkModel:
    """Tributary Predict: one LSTM over everything, a network a market, the published deltas."""
    training = Training(max_prices=MaxPrices.PUBLISHED, per_sample=1, class_weights=False, seed=seed)
    return NetworkModel("tributary", "tributary", calibrate=False, training=training)


MODELS: dict[str, Callable[[int], RevocationModel]] = {
    "revpred": revpred,
    "revpred-published": revpred_published,
    "tributary": tributary,
    "logistic": Logistic,
    "base-rate": lambda _seed: BaseRate(),
}


def places(known: Sequence[Market], markets: Sequence[Market], needed: Integers) -> Integers:
    """For each of `markets`, its place among `known`; those not needed may be unknown (and get 0).

    Raises:
        InputError: A needed market is unknown.
    """
    at = {market: place for place, market in enumerate(known)}
    for row in needed:
        if markets[row] not in at:
            names = ", ".join(map(str, known))
            raise InputError(f"market {markets[row]} is unknown to the model, which was fitted on {names}")
    return np.array([at.get(market, 0) for market in markets], dtype=np.int64)


def _certain(probability: Floats, ratio: Floats) -> Floats:
    """1 where the max price is below the price: such a lease is revoked, or refused, at once."""
    return np.where(ratio < 1.0, 1.0, probability)


def _log_odds(probability: Floats) -> Floats:
    safe = np.clip(probability, 1e-7, 1 - 1e-7)
    return np.asarray(np.log(safe / (1.0 - safe)))
