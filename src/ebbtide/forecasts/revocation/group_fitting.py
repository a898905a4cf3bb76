"""Fitting the networks of a model: each with its own seed, and in its own process where that takes long."""

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

# This many samples, over all epochs, take seconds to train on: less work is done faster in this process.
_SAMPLES_WORTH_A_PROCESS = 40_000

Weights = Mapping[str, Floats32]


@dataclass(frozen=True)
class Shape:
    """The architecture of a network.

    Attributes:
        kind: Which network: `revpred` or `tributary`.
        hidden: Width of the LSTM.
        dropout: Dropout rate of RevPred's network.
    """

    kind: str
    hidden: int
    dropout: float

    def network(self) -> nn.Module:
        """A new, untrained network."""
        if self.kind == "tributary":
            return TributaryNetwork(self.hidden)
        return RevPredNetwork(self.hidden, self.dropout)


@dataclass(frozen=True)
class Group:
    """A fitted network and the markets that it predicts.

    Attributes:
        markets: Rows of the markets in `Minutes`, shape (markets,).
        network: The fitted network, in evaluation mode.
        fitted: How its training went.
        calibration: Calibration of its log odds.
    """

    markets: Integers
    network: nn.Module
    fitted: Fitted
    calibration: Calibration


@dataclass(frozen=True)
class Fitting:
    """One network to be fitted.

    Attributes:
        shape: Architecture of the network.
        markets: Rows of the markets that it will predict, shape (markets,).
        training: How the network is trained.
        learn: Samples that it is trained on.
        check: Samples for early stopping and calibration.
        correction: Direction of Eq. 3 where classes are weighted.
        calibrate: Whether slope and offset of the log odds are fitted on `check`.
        start: A fitted network to tune; its class weights and calibration are kept, since one market's
            validation data are too short for them. None means a new network.
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
    """Fit independent networks; the weights do not depend on the number of workers.

    Args:
        fittings: The networks to be fitted.
        workers: Number of processes; by default one per core if there is enough work, else this process.
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
    """Fit one network; weights are returned as arrays, which pass between processes as plain bytes."""
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
