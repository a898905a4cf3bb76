"""Asking a fitted model about the present: one call for all markets, each answered by its own network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide._utc import HOUR_S, MINUTE_S, Time, iso
from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.minutes import MAX_GAP_S, Floats, Minutes, minutes_of
from ebbtide.forecasts.revocation.predictions import RevocationModel
from ebbtide.forecasts.revocation.splits import Samples
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory


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
