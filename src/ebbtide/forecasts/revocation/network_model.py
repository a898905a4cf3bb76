"""RevPred and Tributary Predict: networks, Eq. 3 to undo class weights, calibration."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.calibration import Correction, OddsCalibration
from ebbtide.forecasts.revocation.inputs import (
    Scaling,
    excerpt,
    fit_scaling,
    max_price_inputs,
    present,
    prices_of,
    transformed,
    windows,
)
from ebbtide.forecasts.revocation.minutes import Floats, Floats32, Integers, Minutes
from ebbtide.forecasts.revocation.networks import RevPredNetwork, Weights, ask_each, some_of, stack
from ebbtide.forecasts.revocation.predictor import BATCH, MIN_RISES, certain, places
from ebbtide.forecasts.revocation.splits import Samples
from ebbtide.forecasts.revocation.training import (
    Batch,
    Fitted,
    Fitting,
    Group,
    Shape,
    TrainingSettings,
    fit_groups,
)
from ebbtide.market.markets import Market

# Up to this many samples per market the networks run in one batch; with more, one by one is as fast.
_FEW = 8

# Seeds of the general networks and of the shared start differ by multiples of this.
_GENERAL_SEED = 1_000_003

# Number of general networks: a second one was no better on days outside the protocols' test data.
_GENERALS = 1

# Markets named in the warning of constants.
_MOST_NAMED = 3


@dataclass(frozen=True)
class NetworkOutputs:
    """Outputs of the networks for some samples, before Eq. 3 and calibration.

    Attributes:
        group: Index of each sample's group; -1 for a market with a constant; shape (n,).
        own: Log odds of the market's own network, shape (n, k).
        general: Log odds of the general networks, shape (networks, n, k).
        constant: Probability for markets with a constant, shape (n,).
        ratio: Max price over price, shape (n, k).
    """

    group: Integers
    own: Floats32
    general: Floats32
    constant: Floats
    ratio: Floats


@dataclass
class NetworkModel:
    """RevPred or Tributary Predict: networks, Eq. 3 to undo class weights, calibration on validation data.

    Attributes:
        name: Name of the model in tables.
        kind: Which network: `revpred` or `tributary`.
        hidden: Width of the LSTM.
        dropout: Dropout rate of RevPred's network.
        shared: If true, every market's network is tuned from one trained on all markets, and its log odds are
            averaged with those of general networks; if not, each is trained on its own market, as in SpotTune.
        correction: Which way Eq. 3 corrects.
        calibrate: Whether slope and offset of the log odds are fitted on validation data.
        training: How the networks are trained.
        markets: Markets that it was fitted on.
        scaling: Scales of the inputs; None before fitting.
        groups: The fitted networks, one per market.
        generals: General networks: trained on all markets and not tuned.
        constants: Probability for markets with too little data, by row in `markets`.
        common: How the training of the shared start went; None if there is none.
    """

    name: str
    kind: str
    hidden: int = 24
    dropout: float = 0.3
    shared: bool = False
    correction: Correction = Correction.DERIVED
    calibrate: bool = True
    training: TrainingSettings = field(default_factory=TrainingSettings)
    markets: tuple[Market, ...] = ()
    scaling: Scaling | None = None
    groups: list[Group] = field(default_factory=list)
    generals: list[Group] = field(default_factory=list)
    constants: dict[int, float] = field(default_factory=dict)
    common: Fitted | None = None
    _stacked: Weights | None = field(default=None, init=False, repr=False, compare=False)

    def fit(self, minutes: Minutes, training: Samples, validation: Samples) -> None:
        if not len(training) or not len(validation):
            raise InputError("no complete minutes to train on, or none to validate on")
        table = transformed(minutes.features)
        self.markets = minutes.markets
        self.scaling = fit_scaling(table, training, len(minutes.markets))
        self.groups, self.generals, self.constants, self.common, self._stacked = [], [], {}, None, None
        rows = [row for row in range(len(minutes.markets)) if self._can_learn(minutes, training, validation, row)]
        self._warn_of_constants()
        parts = minutes, table, training, validation
        if not self.shared or not rows:
            self.groups = fit_groups([self._fitting(*parts, np.array([row]), self.training) for row in rows])
            return
        # The shared start and the general networks differ by their seeds alone.
        seeds = [self.training.seed + number * _GENERAL_SEED for number in range(_GENERALS + 1)]
        everywhere = self._fitting(*parts, np.array(rows), self.training)
        start, *self.generals = fit_groups(
            [replace(everywhere, training=replace(self.training, seed=seed)) for seed in seeds]
        )
        self.common = start.fitted
        # Where validation holds no rise, tuning would only teach the network to answer "never".
        tuned = [row for row in rows if self._rises(minutes, validation, row) >= MIN_RISES]
        own = fit_groups([self._fitting(*parts, np.array([row]), self.training, start) for row in tuned])
        by_row = dict(zip(tuned, own, strict=True))
        self.groups = [by_row.get(row, replace(start, markets=np.array([row]))) for row in rows]

    def probabilities(self, minutes: Minutes, samples: Samples, max_prices: Floats) -> Floats:
        return self.read(self.ask(minutes, samples, max_prices))

    def ask(self, minutes: Minutes, samples: Samples, max_prices: Floats) -> NetworkOutputs:
        """Run the networks; arguments as for `probabilities`."""
        place = places(self.markets, minutes.markets, np.unique(samples.market))
        own_market = place[samples.market]
        group = self._group_of()[own_market]
        inputs = _Inputs(self, *excerpt(minutes, samples), prices_of(minutes, samples), place, max_prices)
        with torch.inference_mode():
            own = self._ask_own(inputs, group)
            general = np.zeros((len(self.generals), *max_prices.shape), np.float32)
            inputs.ask_each([other.network for other in self.generals], np.flatnonzero(group >= 0), general)
        constant = np.array([self.constants.get(int(row), 0.0) for row in own_market])
        return NetworkOutputs(group, own, general, constant, max_prices / inputs.prices[:, None])

    def read(
        self, outputs: NetworkOutputs, direction: Correction | None = None, *, calibrated: bool = True
    ) -> Floats:
        """Probabilities from the networks' outputs, shape (n, k).

        Args:
            outputs: Outputs returned by `ask`.
            direction: Which way Eq. 3 corrects; by default the model's own.
            calibrated: Whether to calibrate, if the model does so at all.
        """
        direction = direction or self.correction
        if not self.training.class_weights:
            direction = Correction.NONE
        scaled = self.calibrate and calibrated
        odds = np.zeros(outputs.own.shape)
        learnt = outputs.group >= 0
        if learnt.any():
            own = OddsCalibration.of_each([group.calibration for group in self.groups], outputs.group[learnt])
            odds[learnt] = own.log_odds(outputs.own[learnt], direction, scaled=scaled)
        if self.generals:
            others = zip(self.generals, outputs.general, strict=True)
            general = [other.calibration.log_odds(part, direction, scaled=scaled) for other, part in others]
            odds = (odds + np.mean(general, axis=0)) / 2.0
        probability = np.where(outputs.group[:, None] >= 0, 1.0 / (1.0 + np.exp(-odds)), outputs.constant[:, None])
        return certain(probability, outputs.ratio)

    @property
    def shape(self) -> Shape:
        """The architecture of the networks."""
        return Shape(self.kind, self.hidden, self.dropout)

    def _rises(self, minutes: Minutes, samples: Samples, row: int) -> int:
        """The number of a market's samples after which the price rose within the hour."""
        own = samples.of(row)
        return int((minutes.highest_next_hour[row, own.minute] > minutes.prices[row, own.minute]).sum())

    def _can_learn(self, minutes: Minutes, training: Samples, validation: Samples, row: int) -> bool:
        number, rises = len(training.of(row)), self._rises(minutes, training, row)
        if rises >= MIN_RISES and (self.shared or len(validation.of(row))):
            return True
        if not number:
            # A price that has never changed has no complete minutes, and has not risen in any.
            columns = slice(int(training.minute.min()), int(training.minute.max()) + 1)
            highest, prices = minutes.highest_next_hour[row, columns], minutes.prices[row, columns]
            number, rises = int(np.isfinite(highest).sum()), int((highest > prices).sum())
        # Laplace's rule: an event without an example is not impossible.
        self.constants[row] = (rises + 1) / (number + 2)
        return False

    def _warn_of_constants(self) -> None:
        """Warn once of all markets whose price rose too rarely."""
        if not self.constants:
            return
        named = [f"{self.markets[row]} ({value:.2g})" for row, value in self.constants.items()]
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        warnings.warn(
            f"{self.name}: prices rose in too few training minutes to learn from; constant probabilities: "
            f"{', '.join(named[:_MOST_NAMED])}{more}",
            stacklevel=3,
        )

    def _fitting(
        self,
        minutes: Minutes,
        table: Floats32,
        training: Samples,
        validation: Samples,
        members: Integers,
        how: TrainingSettings,
        start: Group | None = None,
    ) -> Fitting:
        """A network to be fitted to some markets, new or tuned from `start`."""
        learn, check = self._batches(minutes, table, training, validation, members)
        return Fitting(self.shape, members, how, learn, check, self.correction, self.calibrate, start)

    def _batches(
        self, minutes: Minutes, table: Floats32, training: Samples, validation: Samples, members: Integers
    ) -> tuple[Batch, Batch]:
        assert self.scaling is not None
        parts = []
        for part in (training, validation):
            own = np.isin(part.market, members)
            some = Samples(part.market[own], part.minute[own])
            parts.append(Batch.of(minutes, table, some, self.scaling))
        return parts[0], parts[1]

    def _ask_own(self, inputs: _Inputs, group: Integers) -> Floats32:
        """Log odds of each sample from its own group's network, shape (n, k)."""
        own = np.zeros(inputs.max_prices.shape, np.float32)
        asked, counts = np.unique(group[group >= 0], return_counts=True)
        if len(asked) > 1 and counts.max() <= _FEW and self.kind == "revpred":
            # All networks get the same number of samples: those with fewer repeat their last one.
            order = np.argsort(group, kind="stable")[np.count_nonzero(group < 0) :]
            first = np.append(0, np.cumsum(counts)[:-1])
            padded = order[first[:, None] + np.minimum(np.arange(counts.max()), counts[:, None] - 1)]
            weights = self._stack()
            if len(asked) < len(self.groups):
                weights = some_of(weights, torch.from_numpy(asked))
            shaped = [part.reshape(*padded.shape, *part.shape[1:]) for part in inputs.tensors(padded.ravel())]
            own[padded] = ask_each(weights, *shaped).numpy()
            return own
        for number in asked:
            inputs.ask_each([self.groups[number].network], np.flatnonzero(group == number), own[None])
        return own

    def _stack(self) -> Weights:
        if self._stacked is None:
            self._stacked = stack([cast(RevPredNetwork, group.network) for group in self.groups])
        return self._stacked

    def _group_of(self) -> Integers:
        """The group of each market the model was fitted on; -1 for those with a constant."""
        found = np.full(len(self.markets), -1, dtype=np.int64)
        for number, group in enumerate(self.groups):
            found[group.markets] = number
        return found


@dataclass(frozen=True)
class _Inputs:
    """Samples and max prices, converted to network inputs batch by batch."""

    model: NetworkModel
    table: Floats32
    samples: Samples
    prices: Floats
    place: Integers
    max_prices: Floats

    def tensors(self, rows: Integers) -> tuple[Tensor, Tensor, Tensor]:
        """Records, present records and max prices of some samples."""
        fitted = self.model.scaling
        assert fitted is not None
        scaling = Scaling(fitted.usual_log_price[self.place], fitted.mean, fitted.deviation)
        some = Samples(self.samples.market[rows], self.samples.minute[rows])
        asked = max_price_inputs(self.prices[rows][:, None], self.max_prices[rows])
        return (
            torch.from_numpy(windows(self.table, some, scaling)),
            torch.from_numpy(present(self.table, some, scaling)),
            torch.from_numpy(asked),
        )

    def ask_each(self, networks: Sequence[nn.Module], rows: Integers, into: Floats32) -> None:
        """Run networks on the samples `rows`, and write the log odds of network i into `into[i, rows]`."""
        for part in np.array_split(rows, -(-len(rows) // BATCH) or 1):
            if not len(part) or not len(networks):
                continue
            tensors = self.tensors(part)
            for network, own in zip(networks, into, strict=True):
                network.eval()
                own[part] = network(*tensors).numpy()
