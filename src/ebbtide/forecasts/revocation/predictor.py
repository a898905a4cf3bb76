"""The protocol of every revocation model, and asking a fitted one about the present."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ebbtide._utc import HOUR_S, MINUTE_S, Time, iso
from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.minutes import MAX_GAP_S, Floats, Integers, Minutes, minutes_of
from ebbtide.forecasts.revocation.splits import Samples
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory

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


@dataclass(frozen=True)
class Predictor:
    """A model and the prices that it predicts from.

    Attributes:
        model: A fitted revocation model.
        minutes: Minutes of the prices, with the hour before each question.
    """

    model: RevocationModel
    minutes: Minutes

    @classmethod
    def on(cls, model: RevocationModel, prices: PriceHistory) -> Predictor:
        """A predictor over a price history.

        Raises:
            InputError: The history is shorter than two hours.
        """
        return cls(model, minutes_of(prices))

    def revocation_probability(self, market: Market, time: Time, max_price: float) -> float:
        """The probability that the market's price exceeds `max_price` within the hour after `time`.

        It is 1 if the price is above `max_price` already: such a lease is refused or revoked at once.

        Raises:
            InputError: The market is unknown to the prices or the model, the time is outside the prices, or the
                market has no price for the hour before it.
        """
        return float(self.revocation_probabilities([market], time, np.array([max_price]))[0])

    def revocation_probabilities(self, markets: Sequence[Market], time: Time, max_prices: Floats) -> Floats:
        """The same for several markets in one call, shape (n,).

        Args:
            markets: Markets asked about, shape (n,).
            time: The moment asked about, for all markets.
            max_prices: Max price in each market, USD per hour, shape (n,).
        """
        if not (np.asarray(max_prices) > 0).all():
            raise InputError("a max price must be positive")
        minute = self.minutes.minute(time)
        rows = self.minutes.rows(markets)
        for row in rows:
            if not self.minutes.has_past[row, minute]:
                raise InputError(
                    f"market {self.minutes.markets[row]} has no prices for the hour before "
                    f"{iso(self.minutes.times_s[minute])}: its record begins later or has a gap of over "
                    f"{MAX_GAP_S / HOUR_S:.0f} h"
                )
        samples = Samples(rows, np.full(len(rows), minute))
        return self.model.probabilities(self.minutes, samples, np.asarray(max_prices, dtype=float)[:, None])[:, 0]


def recent(prices: PriceHistory, time_s: float) -> PriceHistory:
    """The last hours up to `time_s` (seconds since 1970): enough history for one prediction of a live loop."""
    start_s = max(prices.start_s, time_s - 4 * HOUR_S)
    return prices.window(start_s, min(time_s + MINUTE_S, prices.end_s))
