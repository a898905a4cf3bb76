"""The protocol of every revocation model, and what its implementations share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.minutes import Floats, Integers, Minutes
from ebbtide.forecasts.revocation.splits import Samples
from ebbtide.market.markets import Market

# The fewest training minutes followed by a rise of the price from which a model is fitted.
MIN_RISES = 10

# Samples converted to inputs at once: the window of each takes some 1.4 KB.
BATCH = 8192


class RevocationModel(Protocol):
    """Predicts whether a price will exceed a max price within the hour."""

    name: str

    @property
    def markets(self) -> Sequence[Market]:
        """Markets that it was fitted on."""
        ...

    def fit(self, minutes: Minutes, training: Samples, validation: Samples) -> None:
        """Learn from `training`; stop early and calibrate on `validation`, which is later."""
        ...

    def probabilities(self, minutes: Minutes, samples: Samples, max_prices: Floats) -> Floats:
        """The probability of revocation for each sample and max price, shape (n, k).

        It is 1 where the price is already above the max price.

        Args:
            minutes: Minutes of the price history.
            samples: Minutes and markets asked about, n of them.
            max_prices: Max prices for each sample, USD per hour, shape (n, k).

        Raises:
            InputError: A market was not there when the model was fitted.
        """
        ...


def places(known: Sequence[Market], markets: Sequence[Market], needed: Integers) -> Integers:
    """For each of `markets`, its index in `known`; those not in `needed` may be unknown (and get 0).

    Raises:
        InputError: A needed market is unknown.
    """
    at = {market: place for place, market in enumerate(known)}
    for row in needed:
        if markets[row] not in at:
            names = ", ".join(map(str, known))
            raise InputError(f"market {markets[row]} is unknown to the model, which was fitted on {names}")
    return np.array([at.get(market, 0) for market in markets], dtype=np.int64)


def certain(probability: Floats, ratio: Floats) -> Floats:
    """The probability, or 1 where the max price is below the price: such a lease is refused or revoked at once."""
    return np.where(ratio < 1.0, 1.0, probability)
