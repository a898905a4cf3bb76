"""Training of networks: weighted classes, early stopping on the validation tail, many networks in parallel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ebbtide.base.cores import in_processes
from ebbtide.forecasts.revocation.calibration import Correction, OddsCalibration, fitted_to
from ebbtide.forecasts.revocation.inputs import (
    MaxPrices,
    Scaling,
    draw,
    max_price_inputs,
    present,
    prices_of,
    windows,
)
from ebbtide.forecasts.revocation.minutes import Floats, Floats32, Integers, Minutes
from ebbtide.forecasts.revocation.networks import RevPredNetwork, TributaryNetwork
from ebbtide.forecasts.revocation.splits import Samples

_VALIDATION_BATCH = 4096

# Factor on the learning rate when a trained network is tuned to a market.
_TUNING_RATE = 0.3

# An epoch counts as better if it lowers the validation loss by at least this share.
_LEAST_GAIN = 0.001


@dataclass(frozen=True)
class TrainingSettings:
    """Training settings of a network.

    Attributes:
        max_prices: Source of training's max prices.
        per_sample: Max prices for each sample and epoch.
        class_weights: Whether to weigh positives by phi- and negatives by phi+ (SpotTune III-B).
        epochs: The largest number of epochs.
        patience: Epochs without a better validation loss after which training stops.
        batch: Number of samples per step.
        learning_rate: Peak learning rate of a one-cycle schedule.
        weight_decay: Weight decay of AdamW.
        seed: Random seed of weights, batches and drawn max prices.
    """

    max_prices: MaxPrices = MaxPrices.MIXED
    per_sample: int = 12
    class_weights: bool = True
    epochs: int = 15
    patience: int = 3
    batch: int = 256
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    seed: int = 0


@dataclass(frozen=True)
class Batch:
    """Samples as network inputs, with what their labels follow from.

    Attributes:
        records: Records of each sample's hour, shape (n, 60, 6).
        present: The present record of each sample, shape (n, 6).
        prices: Price at each sample, USD per hour, shape (n,).
        border: Max price of Algorithm 2 at each sample, USD per hour, shape (n,).
        highest: Highest price of the hour after each sample, USD per hour, shape (n,).
    """

    records: Tensor
    present: Tensor
    prices: Floats
    border: Floats
    highest: Floats

    @classmethod
    def of(cls, minutes: Minutes, table: Floats32, samples: Samples, scaling: Scaling) -> Batch:
        """Convert samples to network inputs.

        Args:
            minutes: Minutes that the samples are from.
            table: `transformed` features of `minutes`, shape (markets, minutes, 6).
            samples: The samples to convert.
            scaling: Scales fitted on the training data.
        """
        at = samples.market, samples.minute
        return cls(
            torch.from_numpy(windows(table, samples, scaling)),
            torch.from_numpy(present(table, samples, scaling)),
            prices_of(minutes, samples),
            minutes.border[at],
            minutes.highest_next_hour[at],
        )

    def __len__(self) -> int:
        return len(self.prices)

    def drawn(self, kind: MaxPrices, number: int, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Max prices as inputs, shape (n, number, 2), and whether each was exceeded, shape (n, number)."""
        max_prices = draw(kind, self.prices, self.border, number, random)
        labels = self.highest[:, None] > max_prices
        return (
            torch.from_numpy(max_price_inputs(self.prices[:, None], max_prices)),
            torch.from_numpy(labels.astype(np.float32)),
        )


@dataclass(frozen=True)
class Fitted:
    """The result of training a network.

    Attributes:
        share_positive: phi+, the share of positives among the training triples.
        validation_loss: Validation loss of the best epoch.
        epochs: Number of epochs that were run.
        samples: Number of samples in each epoch.
    """

    share_positive: float
    validation_loss: float
    epochs: int
    samples: int


def train(
    network: nn.Module,
    training: TrainingSettings,
    train_on: Batch,
    validate_on: Batch,
    *,
    share_positive: float | None = None,
) -> Fitted:
    """Train a network in place, to the weights of its best epoch on validation.

    Args:
        network: The network, whose weights are changed in place.
        training: How it is trained.
        train_on: Samples to train on.
        validate_on: Samples for early stopping.
        share_positive: phi+ of the network's earlier training: tune it at a lower learning rate with the same
            class weights, and keep the old weights if that does not help. None for a new network.
    """
    tune = share_positive is not None
    peak = training.learning_rate * (_TUNING_RATE if tune else 1.0)
    random = np.random.default_rng(training.seed)
    # Validation uses the same max prices in every epoch.
    kind = training.max_prices
    asked, truth = validate_on.drawn(kind, training.per_sample, np.random.default_rng(training.seed + 1))
    share = float(train_on.drawn(kind, training.per_sample, np.random.default_rng(training.seed))[1].mean())
    if share_positive is not None:
        share = share_positive
    weights = (1.0 - share, share) if training.class_weights else (1.0, 1.0)
    optimiser = torch.optim.AdamW(network.parameters(), lr=peak, weight_decay=training.weight_decay)
    steps = training.epochs * math.ceil(len(train_on) / training.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, peak, total_steps=steps, pct_start=0.2)
    shuffle = torch.Generator().manual_seed(training.seed)
    best, since, epochs = math.inf, 0, 0
    best_state = {name: value.clone() for name, value in network.state_dict().items()}
    if tune:
        best = float(_loss(log_odds(network, validate_on, asked), truth, weights))
    while epochs < training.epochs and since < training.patience:
        epochs += 1
        network.train()
        inputs, labels = train_on.drawn(kind, training.per_sample, random)
        for batch in torch.split(torch.randperm(len(train_on), generator=shuffle), training.batch):
            odds = network(train_on.records[batch], train_on.present[batch], inputs[batch])
            loss = _loss(odds, labels[batch], weights)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
        validation = float(_loss(log_odds(network, validate_on, asked), truth, weights))
        if validation < best * (1.0 - _LEAST_GAIN):
            best, since = validation, 0
            best_state = {name: value.clone() for name, value in network.state_dict().items()}
        else:
            since += 1
    network.load_state_dict(best_state)
    network.eval()
    return Fitted(share, best, epochs, len(train_on))


def log_odds(network: nn.Module, batch: Batch, inputs: Tensor) -> Tensor:
    """The network's log odds in evaluation mode, shape (n, k)."""
    network.eval()
    with torch.inference_mode():
        return torch.cat(
            [
                network(batch.records[part], batch.present[part], inputs[part])
                for part in torch.split(torch.arange(len(batch)), _VALIDATION_BATCH)
            ]
        )


def _loss(odds: Tensor, labels: Tensor, weights: tuple[float, float]) -> Tensor:
    """Cross entropy with weights on positives and negatives, divided by the sum of weights."""
    positive, negative = weights
    weight = labels * positive + (1.0 - labels) * negative
    loss = nn.functional.binary_cross_entropy_with_logits(odds, labels, weight=weight, reduction="sum")
    return loss / weight.sum()


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
    calibration: OddsCalibration


@dataclass(frozen=True)
class Fitting:
    """Network to be fitted, with its samples and settings.

    Attributes:
        shape: Architecture of the network.
        markets: Rows of the markets that it will predict, shape (markets,).
        training: Training settings.
        learn: Samples that it is trained on.
        check: Samples for early stopping and calibration.
        correction: Direction of Eq. 3 where classes are weighted.
        calibrate: Whether slope and offset of the log odds are fitted on `check`.
        start: A fitted network to tune; its class weights and calibration are kept, since one market's
            validation data are too short for them. None means a new network.
    """

    shape: Shape
    markets: Integers
    training: TrainingSettings
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


def _group(fitting: Fitting, weights: Weights, fitted: Fitted, calibration: OddsCalibration) -> Group:
    network = fitting.shape.network()
    network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    network.eval()
    return Group(fitting.markets, network, fitted, calibration)


def _fitted(fitting: Fitting) -> tuple[Weights, Fitted, OddsCalibration]:
    """Fit one network; weights are returned as arrays, which pass between processes as plain bytes."""
    how, start = fitting.training, fitting.start
    torch.manual_seed(how.seed)
    network = fitting.shape.network()
    if start is not None:
        network.load_state_dict(start.network.state_dict())
        fitted = train(network, how, fitting.learn, fitting.check, share_positive=start.fitted.share_positive)
        return _weights(network), fitted, start.calibration
    fitted = train(network, how, fitting.learn, fitting.check)
    calibration = OddsCalibration(fitted.share_positive)
    if fitting.calibrate:
        random = np.random.default_rng(how.seed + 2)
        inputs, labels = fitting.check.drawn(how.max_prices, how.per_sample, random)
        odds = log_odds(network, fitting.check, inputs).numpy()
        direction = fitting.correction if how.class_weights else Correction.NONE
        calibration = fitted_to(calibration, odds, labels.numpy() > 0.5, direction)
    return _weights(network), fitted, calibration


def _weights(network: nn.Module) -> Weights:
    return {name: value.detach().cpu().numpy() for name, value in network.state_dict().items()}
