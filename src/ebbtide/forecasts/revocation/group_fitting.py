"""Fitting the networks of a model: each by itself, with its own seed, in its own process where that takes long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ebbtide._cores import in_processes
from ebbtide.forecasts.revocation.calibration import Calibration, fitted_to
from ebbtide.forecasts.revocation.correction import Correction
from ebbtide.forecasts.revocation.minutes import Floats32, Integers
from ebbtide.forecasts.revocation.networks import RevPredNetwork, TributaryNetwork
from ebbtide.forecasts.revocation.training import Batch, Fitted, Training, log_odds, train

# So many samples, over all epochs, are seconds of training: less work than that is done sooner in this process.
_SAMPLES_WORTH_A_PROCESS = 40_000

Weights = Mapping[str, Floats32]


@dataclass(frozen=True)
class Shape:
    """What a network is.

    Attributes:
        kind: `revpred` or `tributary`.
        hidden: Width of the LSTM.
        dropout: Of RevPred's network.
    """

    kind: str
    hidden: int
    dropout: float

    def network(self) -> nn.Module:
        """One that is not trained."""
        if self.kind == "tributary":
            return TributaryNetwork(self.hidden)
        return RevPredNetwork(self.hidden, self.dropout)


@dataclass(frozen=True)
class Group:
    """A network, and the markets that it answers for."""

    markets: Integers
    network: nn.Module
    fitted: Fitted
    calibration: Calibration


@dataclass(frozen=True)
class Fitting:
    """One network to be fitted.

    Attributes:
        shape: Of the network.
        markets: That it will answer for.
        training: How it is trained.
        learn: What it learns from.
        check: What decides when it stops, and what it is calibrated on.
        correction: Direction of Eq. 3 where classes are weighted.
        calibrate: Fit slope and offset of the log odds on `check`.
        start: A fitted network to tune: class weights and calibration stay those of it, since one market's
            validation is too short for them. None: a new network.
    """

    shape: Shape
    markets: Integers
    training: Training
    learn: Batch
    check: Batch
    correction: Correction
    calibrate: bool
    start: Group | None = None


def fit_groups(fittings: Sequence[Fitting], *, workers: int | None = None) -> list[Group]:
    """Fit networks that do not depend on each other: the same weights whatever the number of workers.

    Args:
        fittings: What is to be fitted.
        workers: Processes; by default one a core if there is work enough, else none.
    """
    samples = sum(len(one.learn) * one.training.epochs for one in fittings)
    if workers is None and samples < _SAMPLES_WORTH_A_PROCESS:
        workers = 1
    fitted = in_processes(_fitted, fittings, workers=workers)
    return [_group(one, *found) for one, found in zip(fittings, fitted, strict=True)]


def _group(fitting: Fitting, weights: Weights, fitted: Fitted, calibration: Calibration) -> Group:
    network = fitting.shape.network()
    network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    network.eval()
    return Group(fitting.markets, network, fitted, calibration)


def _fitted(fitting: Fitting) -> tuple[Weights, Fitted, Calibration]:
    """Weights as arrays: they go from process to process as plain bytes."""
    how, start = fitting.training, fitting.start
    torch.manual_seed(how.seed)
    network = fitting.shape.network()
    if start is not None:
        network.load_state_dict(start.network.state_dict())
        fitted = train(network, how, fitting.learn, fitting.check, share_positive=start.fitted.share_positive)
        return _weights(network), fitted, start.calibration
    fitted = train(network, how, fitting.learn, fitting.check)
    calibration = Calibration(fitted.share_positive)
    if fitting.calibrate:
        random = np.random.default_rng(how.seed + 2)
        inputs, labels = fitting.check.drawn(how.max_prices, how.per_sample, random)
        odds = log_odds(network, fitting.check, inputs).numpy()
        direction = fitting.correction if how.class_weights else Correction.NONE
        calibration = fitted_to(calibration, odds, labels.numpy() > 0.5, direction)
    return _weights(network), fitted, calibration


def _weights(network: nn.Module) -> Weights:
    return {name: value.detach().cpu().numpy() for name, value in network.state_dict().items()}
