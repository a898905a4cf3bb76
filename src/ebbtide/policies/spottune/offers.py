"""Offers: what a step of a trial is expected to cost in each market, and who reckons it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ebbtide._utc import HOUR_S
from ebbtide.forecasts.revocation.forecasts import Forecast, RecentFrequency
from ebbtide.market.billing import Refund
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View

# Delta as published (Algorithm 1, line 4), USD per hour.
PUBLISHED_DELTA_USD = (0.00001, 0.2)


@dataclass(frozen=True, slots=True)
class Offer:
    """A market, at a max price, for one trial.

    Attributes:
        market: What to rent.
        max_price_usd_per_hour: What to ask for.
        usd_per_step: Expected.
        revoked: Chance that it is taken within the hour; NaN: not asked, since whatever it is, others are better.
        seconds_per_step: Of the trial there.
    """

    market: Market
    max_price_usd_per_hour: float
    usd_per_step: float
    revoked: float
    seconds_per_step: float


class Provisioner(Protocol):
    """Reckons offers."""

    def offers(
        self, view: View, job: JobView, steps_left: float, markets: Sequence[Market], seconds: Floats
    ) -> list[Offer]:
        """One for each market.

        Args:
            view: Now, and the past.
            job: The trial.
            steps_left: Until it leaves its machine by itself.
            markets: Where it can run, shape (n,).
            seconds: Per step, shape (n,).
        """
        ...

    def staying(self, view: View, place: int, markets: Sequence[Market], seconds: Floats) -> float:
        """USD per step of staying in one of the markets, on a machine that is paid for whatever comes."""
        ...


@dataclass(frozen=True)
class StepCost:
    """SpotTune's `getBestInst`: `M x (1 - p) x` mean price of the last hour (Eq. 1, 2).

    Attributes:
        forecast: Foretells revocations.
        delta: How far the max price is above the price: a share of it, drawn evenly from this interval; None: as
            published, 0.00001 to 0.2 USD per hour.
        doubt: Added to the probability of paying: a forecast that is all but sure may still be wrong, and on a
            dear machine that is what the hour costs. 0 is Eq. 1.
    """

    forecast: Forecast = field(default_factory=RecentFrequency)
    delta: tuple[float, float] | None = (0.05, 0.1)
    doubt: float = 0.3

    def offers(
        self,
        view: View,
        job: JobView,
        steps_left: float,
        markets: Sequence[Market],
        seconds: Floats,
    ) -> list[Offer]:
        mean = np.array([view.mean_price(market, HOUR_S) for market in markets])
        sure = seconds * (1.0 + self.doubt) * mean / HOUR_S
        p = np.zeros(len(markets))
        if view.billing.refund is Refund.WITHIN_FIRST_HOUR and job.job.checkpoint is not None:
            max_prices = self._max_prices(view, markets)
            # Who would be dearer than another's sure price even if it were surely free need not be asked about.
            able = np.flatnonzero(sure * self.doubt <= sure.min() * (1.0 + self.doubt))
            p[:] = math.nan
            asked = [markets[place] for place in able.tolist()]
            p[able] = self.forecast.probabilities(view, asked, max_prices[able])
        else:
            # Nothing is gained by being revoked; without checkpoints, all is lost by it.
            max_prices = np.full(len(markets), math.inf)
        # A trial that is done before the hour is over leaves less time to be revoked in, and then it pays.
        p = p * np.minimum(steps_left * seconds / HOUR_S, 1.0)
        usd = sure - np.nan_to_num(p) * seconds * mean / HOUR_S
        columns = (max_prices.tolist(), usd.tolist(), p.tolist(), seconds.tolist())
        return [Offer(*row) for row in zip(markets, *columns, strict=True)]

    def staying(self, view: View, place: int, markets: Sequence[Market], seconds: Floats) -> float:
        return float(seconds[place] * view.mean_price(markets[place], HOUR_S) / HOUR_S)

    def _max_prices(self, view: View, markets: Sequence[Market]) -> Floats:
        prices = np.array([view.price(market) for market in markets])
        if self.delta is None:
            return np.asarray(prices + view.random.uniform(*PUBLISHED_DELTA_USD, len(markets)))
        return np.asarray(prices * (1.0 + view.random.uniform(*self.delta, len(markets))))
