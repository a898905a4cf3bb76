"""Asking a fitted model about markets now: one call for all of them, each answered by its own network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide._utc import HOUR_S, MINUTE_S, Time, iso
from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.minutes import HOLE_S, Floats, Minutes, minutes_of
from ebbtide.forecasts.revocation.predictions import RevocationModel
from ebbtide.forecasts.revocation.splits import Samples
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory


@dataclass(frozen=True)
class Predictor:
    """A model and the prices that it looks at.

    Attributes:
        model: Fitted.
        minutes: Of the prices, the hour before each question included.
    """

    model: RevocationModel
    minutes: Minutes

    @classmethod
    def on(cls, model: RevocationModel, prices: PriceHistory) -> Predictor:
        """A predictor over a price history.

        Raises:
            InputError: The history is too short to have an hour's past.
        """
        return cls(model, minutes_of(prices))

    def revocation_probability(self, market: Market, time: Time, max_price: float) -> float:
        """The probability that the market's price exceeds `max_price` within the hour after `time`.

        1 if it does already: such a lease is refused or revoked at once.

        Raises:
            InputError: The market is unknown to the prices or the model, the time is outside the prices, or the
                market has no price for the hour before it.
        """
        return float(self.revocation_probabilities([market], time, np.array([max_price]))[0])

    def revocation_probabilities(self, markets: Sequence[Market], time: Time, max_prices: Floats) -> Floats:
        """The same for several markets, a max price for each, in one call.

        Args:
            markets: Shape (n,).
            time: Of all of them.
            max_prices: USD per hour, shape (n,).
        """
        if not (np.asarray(max_prices) > 0).all():
            raise InputError("a max price must be positive")
        minute = self.minutes.minute(time)
        rows = self.minutes.rows(markets)
        for row in rows:
            if not self.minutes.has_past[row, minute]:
                raise InputError(
                    f"market {self.minutes.markets[row]} has no prices for the hour before "
                    f"{iso(self.minutes.times_s[minute])}: its record begins later or has a hole of over "
                    f"{HOLE_S / HOUR_S:.0f} h"
                )
        samples = Samples(rows, np.full(len(rows), minute))
        return self.model.probabilities(self.minutes, samples, np.asarray(max_prices, dtype=float)[:, None])[:, 0]


def recent(prices: PriceHistory, time_s: float) -> PriceHistory:
    """The last hours up to `time_s`, enough to answer about it: what a live loop lays out anew each time."""
    start_s = max(prices.start_s, time_s - 4 * HOUR_S)
    return prices.window(start_s, min(time_s + MINUTE_S, prices.end_s))
