"""Splits by time: training, validation, then test data, an hour apart so that no label spans two of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S, MINUTE_S, iso
from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.minutes import WINDOW, Integers, Minutes

# The last part of the training time, used for early stopping, calibration and thresholds.
VALIDATION_SHARE = 0.2

_MINUTES_A_DAY = int(DAY_S / MINUTE_S)
_GAP = int(HOUR_S / MINUTE_S)


@dataclass(frozen=True)
class Samples:
    """Some minutes of some markets.

    Attributes:
        market: Row of each sample in `Minutes`, shape (n,).
        minute: Column of each sample in `Minutes`, shape (n,).
    """

    market: Integers
    minute: Integers

    def __len__(self) -> int:
        return len(self.market)

    def of(self, market: int) -> Samples:
        """The samples of one market."""
        own = self.market == market
        return Samples(self.market[own], self.minute[own])


@dataclass(frozen=True)
class Split:
    """Training, validation and test samples, in this order of time.

    Attributes:
        train: Samples to fit on.
        validation: Samples for early stopping and calibration, later than `train`.
        test: Samples to score on, later than `validation`.
        origin_s: When the training time ends, seconds since 1970.
    """

    train: Samples
    validation: Samples
    test: Samples
    origin_s: float

    @property
    def known(self) -> Samples:
        """Training and validation together: thresholds are set on both, since spikes are rare in either."""
        return Samples(
            np.concatenate([self.train.market, self.validation.market]),
            np.concatenate([self.train.minute, self.validation.minute]),
        )


def samples_between(minutes: Minutes, first: int, last: int, stride: int) -> Samples:
    """Every `stride`-th complete minute of [first, last) of every market."""
    columns = np.arange(max(first, WINDOW - 1), min(last, len(minutes.times_s)), stride)
    market, place = np.nonzero(minutes.complete[:, columns])
    return Samples(market, columns[place])


def split_at(
    minutes: Minutes, first: int, train_days: float, test_days: float, *, stride: int, test_stride: int = 1
) -> Split:
    """Split from minute `first` on: training data, their tail for validation, and test data after them.

    A sample's label looks an hour ahead, so an hour is left out before validation and before test.

    Args:
        minutes: Minutes of the price history.
        first: Column of the first training minute.
        train_days: Days of training and validation together.
        test_days: Days of test data.
        stride: Minutes between training or validation samples of a market.
        test_stride: Minutes between test samples of a market.

    Raises:
        InputError: The split is not inside the history, or a part has no complete minutes.
    """
    train_end = first + round(train_days * _MINUTES_A_DAY)
    test_end = train_end + _GAP + round(test_days * _MINUTES_A_DAY)
    if first < 0 or test_end > len(minutes.times_s):
        have = (len(minutes.times_s) - 1) * MINUTE_S / DAY_S
        raise InputError(
            f"the history has {have:.1f} days; training on {train_days:g} and testing on {test_days:g} needs "
            f"{train_days + test_days + 1 / 24:.1f}"
        )
    validation = first + round(train_days * (1 - VALIDATION_SHARE) * _MINUTES_A_DAY)
    split = Split(
        samples_between(minutes, first, validation - _GAP, stride),
        samples_between(minutes, validation, train_end - _GAP, stride),
        samples_between(minutes, train_end + _GAP, test_end, test_stride),
        float(minutes.times_s[train_end]),
    )
    for name in ("train", "validation", "test"):
        if not len(getattr(split, name)):
            raise InputError(
                f"no market has a complete minute for {name} from {iso(minutes.times_s[first])} on: "
                "the records have a gap"
            )
    return split


def origins(minutes: Minutes, train_days: float, test_days: float, number: int) -> list[int]:
    """First minutes of `number` splits: evenly spread, the first as early and the last as late as possible.

    Raises:
        InputError: The history is shorter than one split.
    """
    need = round((train_days + test_days) * _MINUTES_A_DAY) + _GAP
    half_begun = int(np.sort(np.argmax(minutes.has_past, axis=1))[(len(minutes.markets) - 1) // 2])
    latest = len(minutes.times_s) - need - _GAP
    if number < 1:
        raise InputError(f"origins is {number}; at least 1 is needed")
    if latest < half_begun:
        have = (len(minutes.times_s) - half_begun) * MINUTE_S / DAY_S
        raise InputError(
            f"the history has {have:.1f} days in which half of the markets are known; training on {train_days:g} "
            f"and testing on {test_days:g} needs {need / _MINUTES_A_DAY + 1 / 24:.1f}"
        )
    return [int(place) for place in np.linspace(half_begun, latest, number)]
