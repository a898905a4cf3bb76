"""RevPred and Tributary Predict: networks, class weights undone by Eq. 3, calibration."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from scipy.optimize import minimize
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
from ebbtide.revocation.minutes import Floats, Floats32, Integers, Minutes
from ebbtide.revocation.networks import RevPredNetwork, TributaryNetwork
from ebbtide.revocation.predictions import BATCH, MIN_RISES, certain, places
from ebbtide.revocation.splits import Samples
from ebbtide.revocation.training import Batch, Fitted, Training, log_odds, train


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
            for part in np.array_split(chosen, -(-len(chosen) // BATCH)):
                some = Samples(samples.market[part], samples.minute[part])
                if group < 0:
                    constant = [self.constants[int(row)] for row in own_market[part]]
                    result[part] = np.array(constant)[:, None]
                else:
                    result[part] = self._ask(self.groups[group], minutes, table, some, place, max_prices[part])
        return certain(result, max_prices / prices[:, None])

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


def _log_odds(probability: Floats) -> Floats:
    safe = np.clip(probability, 1e-7, 1 - 1e-7)
    return np.asarray(np.log(safe / (1.0 - safe)))
