"""What every predictor is, and what holds of all of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.minutes import Floats, Integers, Minutes
from ebbtide.forecasts.revocation.splits import Samples
from ebbtide.market.markets import Market

# With fewer training minutes after which the price rose at all, there is nothing to learn from.
MIN_RISES = 10

# Samples laid out at once: a window of each takes some 1.4 KB.
BATCH = 8192


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


def certain(probability: Floats, ratio: Floats) -> Floats:
    """1 where the max price is below the price: such a lease is revoked, or refused, at once."""
    return np.where(ratio < 1.0, 1.0, probability)
