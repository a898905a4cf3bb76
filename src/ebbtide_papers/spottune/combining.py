"""Forecasts combined, and judged by the refunds that came of what they chose.

A policy takes the offer that looks cheapest, so it takes the offers whose revocation its forecast overrates most
(the winner's curse): one with the better AUC may cost more. The lower of two forecasts overrates less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide.base.utc import MINUTE_S
from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.forecasts import Forecast
from ebbtide.forecasts.revocation.minutes import Floats, Integers, Minutes
from ebbtide.forecasts.revocation.passage import PricesSoFar
from ebbtide.market.markets import Market

# Offers are asked about with a max price this share above the price.
_RISE = 0.001


@dataclass(frozen=True)
class LowestOf:
    """The lowest of several forecasts for each market.

    Attributes:
        forecasts: The forecasts.
        name: Name of the forecast in tables.

    Raises:
        InputError: There is none.
    """

    forecasts: Sequence[Forecast]
    name: str = "lowest-of"

    def __post_init__(self) -> None:
        if not self.forecasts:
            raise InputError("the lowest of no forecasts was asked for")

    def probabilities(self, view: PricesSoFar, markets: Sequence[Market], max_prices: Floats) -> Floats:
        found: Floats = np.min([one.probabilities(view, markets, max_prices) for one in self.forecasts], axis=0)
        return found


@dataclass(frozen=True)
class ChosenOffers:
    """Cost and refunds of the offers that a forecast chose.

    Attributes:
        usd: Mean cost of an hour's work on the offer chosen, by what was charged, over that on the offer that was
            cheapest without any refund; below 1: choosing by the forecast saved money.
        free: Share of the offers chosen that were refunded.
        moments: Number of moments at which an offer was chosen.
    """

    usd: float
    free: float
    moments: int


def chosen_offers(
    forecast: Forecast,
    minutes: Minutes,
    moments: Integers,
    seconds: Mapping[str, float],
    doubt: float,
) -> ChosenOffers:
    """Judge a forecast by the offers that SpotTune (Eq. 1, 2) would have chosen by it.

    Args:
        forecast: The forecast.
        minutes: Minutes of the price history, the hour after each moment included.
        moments: Columns of `minutes` at which to choose, shape (n,).
        seconds: Seconds per step by instance type; markets of other types are left out.
        doubt: Added to the probability of paying, as in `StepCost`.

    Raises:
        InputError: At no moment is a price known of two markets or more.
    """
    rows = [row for row, market in enumerate(minutes.markets) if market.instance_type in seconds]
    each = np.array([seconds[minutes.markets[row].instance_type] for row in rows])
    usd, least_usd, free = [], [], []
    for column in moments.tolist():
        known = minutes.complete[rows, column]
        if np.count_nonzero(known) < 2:
            continue
        able = [row for row, is_known in zip(rows, known, strict=True) if is_known]
        prices = minutes.prices[able, column]
        max_prices = prices * (1.0 + _RISE)
        view = _Moment(minutes, column)
        chances = forecast.probabilities(view, [minutes.markets[row] for row in able], max_prices)
        sure = prices * each[known]
        best = int(np.argmin(sure * (1.0 + doubt - chances)))
        refunded = bool(minutes.highest_next_hour[able[best], column] > max_prices[best])
        usd.append(0.0 if refunded else float(sure[best]))
        least_usd.append(float(sure.min()))
        free.append(refunded)
    if not usd:
        raise InputError("at no moment are the prices of two markets known")
    return ChosenOffers(float(np.sum(usd) / np.sum(least_usd)), float(np.mean(free)), len(usd))


@dataclass(frozen=True)
class _Moment:
    """A minute of a record, and the prices up to it, as a policy's view shows them."""

    minutes: Minutes
    column: int

    @property
    def now_s(self) -> float:
        return float(self.minutes.times_s[self.column])

    def price(self, market: Market) -> float:
        return float(self.minutes.prices[self.minutes.rows([market])[0], self.column])

    def past_prices(self, market: Market, duration_s: float) -> tuple[Floats, Floats]:
        first = max(self.column - round(duration_s / MINUTE_S), 0)
        prices = self.minutes.prices[self.minutes.rows([market])[0], first : self.column + 1]
        changes = np.flatnonzero(np.isfinite(prices) & np.append(True, np.diff(prices) != 0.0))
        return self.minutes.times_s[first + changes], prices[changes]
