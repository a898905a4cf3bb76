"""Forecasts that policies ask while they run: will a market revoke within the hour, at this max price?

None uses prices after the moment it is asked about, except `Foresight`, the upper bound for every forecast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S, MINUTE_S
from ebbtide.forecasts.revocation.minutes import Floats, Floats32, Integers, Minutes
from ebbtide.forecasts.revocation.passage import CELL_S, CELLS, PricesSoFar, Recent, highest_rises
from ebbtide.forecasts.revocation.splits import Samples
from ebbtide.market.markets import Market

if TYPE_CHECKING:
    # It imports PyTorch, which takes seconds to load and which most policies never need.
    from ebbtide.forecasts.revocation.network_model import NetworkModel

# Rises that `Learnt` asks its model about, as shares of the price; it interpolates between them.
_RISES = np.geomspace(1e-4, 30.0, 24)

_HOUR_MIN = 60
_QUARTER_S = 15 * MINUTE_S


class Forecast(Protocol):
    """Predicts revocations."""

    @property
    def name(self) -> str:
        """Name of the forecast in tables."""
        ...

    def probabilities(self, view: PricesSoFar, markets: Sequence[Market], max_prices: Floats) -> Floats:
        """The probability that each market's price exceeds the max price within the hour from now, shape (n,).

        Args:
            view: The present moment and the prices up to it.
            markets: Markets asked about, shape (n,).
            max_prices: Max price in each market, USD per hour, shape (n,).
        """
        ...


@dataclass(frozen=True)
class Never:
    """Nothing is ever revoked."""

    name: str = "never"

    def probabilities(self, view: PricesSoFar, markets: Sequence[Market], max_prices: Floats) -> Floats:  # noqa: ARG002
        return np.zeros(len(markets))


@dataclass(frozen=True, eq=False)
class RecentFrequency:
    """Revocation forecast by how often the price recently rose above the max price's margin within an hour.

    It uses only the prices in the view, so that it works live and on any history; `PastFrequency` is the same
    for many runs on one history.

    Attributes:
        days: How far it looks back, days.
        name: Name of the forecast in tables.
    """

    days: float = 7.0
    name: str = "recent-frequency"
    _kept: Recent[Floats] = field(default_factory=Recent, repr=False)

    def probabilities(self, view: PricesSoFar, markets: Sequence[Market], max_prices: Floats) -> Floats:
        found = np.empty(len(markets))
        for place, market in enumerate(markets):
            rises = self._sorted_rises(view, market)
            now = view.price(market)
            above = len(rises) - int(np.searchsorted(rises, max_prices[place] / now - 1.0, side="right"))
            # Laplace's rule: an event without an example is not impossible.
            found[place] = 1.0 if now > max_prices[place] else (above + 1.0) / (len(rises) + 2.0)
        return found

    def _sorted_rises(self, view: PricesSoFar, market: Market) -> Floats:
        """Rises of the past hours, sorted, as of the last quarter of an hour: within it they hardly change."""
        now_s = view.now_s // _QUARTER_S * _QUARTER_S
        times_s, prices = view.past_prices(market, self.days * DAY_S)
        if not len(times_s) or times_s[0] >= now_s - HOUR_S:
            return np.empty(0)

        def work_out() -> Floats:
            begins = np.arange(max(times_s[0], now_s - self.days * DAY_S), now_s - HOUR_S, CELL_S)
            return np.sort(highest_rises(times_s, prices, begins, CELL_S, CELLS)[:, -1])

        return self._kept.get((market, now_s, times_s[0], prices[0]), work_out)


@dataclass(frozen=True, eq=False)
class PastFrequency:
    """Revocation forecast as `RecentFrequency`, from the minutes of one price history.

    Attributes:
        minutes: Minutes of the price history; only hours that ended before the moment asked about are used.
        days: How far it looks back, days.
        stride: Minutes between the hours counted.
        name: Name of the forecast in tables.
    """

    minutes: Minutes
    days: float = 7.0
    stride: int = 5
    name: str = "past-frequency"
    _rises: dict[tuple[int, int], Floats] = field(default_factory=dict, repr=False)

    def probabilities(self, view: PricesSoFar, markets: Sequence[Market], max_prices: Floats) -> Floats:
        minute = _minute(self.minutes, view.now_s)
        found = np.zeros(len(markets))
        now = _now(view, markets)
        for place, row in enumerate(self.minutes.rows(markets)):
            rises = self._sorted_rises(int(row), minute)
            above = len(rises) - int(np.searchsorted(rises, max_prices[place] / now[place] - 1.0, side="right"))
            # Laplace's rule: an event without an example is not impossible.
            found[place] = (above + 1.0) / (len(rises) + 2.0)
        return np.where(now > max_prices, 1.0, found)

    def _sorted_rises(self, row: int, minute: int) -> Floats:
        """Rises of the past hours, sorted, as of the last quarter of an hour: within it they hardly change."""
        quarter = minute // 15
        key = row, quarter
        if key not in self._rises:
            # Only hours that had ended by minute 15 q.
            last = quarter * 15 - _HOUR_MIN
            first = max(last - round(self.days * 24 * 60), 0)
            part = slice(first, max(last, 0), self.stride)
            price, highest = self.minutes.prices[row, part], self.minutes.highest_next_hour[row, part]
            rise = highest / price - 1.0
            self._rises[key] = np.sort(rise[np.isfinite(rise)])
        return self._rises[key]


@dataclass(frozen=True, eq=False)
class Learnt:
    """A trained model, asked about all of its markets at once every few minutes.

    Attributes:
        model: Fitted revocation model; its data must end before the moments it is asked about.
        minutes: Minutes of the price history.
        every_min: Minutes between two predictions.
        name: Name of the forecast in tables.
    """

    model: NetworkModel
    minutes: Minutes
    every_min: int = 10
    name: str = "revpred"
    _looks: dict[int, tuple[Integers, Floats32]] = field(default_factory=dict, repr=False)

    def probabilities(self, view: PricesSoFar, markets: Sequence[Market], max_prices: Floats) -> Floats:
        minute = _minute(self.minutes, view.now_s)
        place, table = self._look(minute // self.every_min * self.every_min)
        rows = self.minutes.rows(markets)
        now = _now(view, markets)
        log_rise = np.log(np.maximum(max_prices / now - 1.0, _RISES[0]))
        at = np.clip(np.interp(log_rise, np.log(_RISES), np.arange(len(_RISES))), 0, len(_RISES) - 1)
        low = np.minimum(at.astype(int), len(_RISES) - 2)
        share = at - low
        known = place[rows] >= 0
        answers = table[place[rows]]
        each = np.arange(len(rows))
        found = (1 - share) * answers[each, low] + share * answers[each, low + 1]
        # A market unknown to the model, or without an hour of past prices, gets 0: no refund is expected there.
        return np.where(now > max_prices, 1.0, np.where(known, found, 0.0))

    def look_ahead(self, minutes: Integers) -> None:
        """Ask the model about many moments in one batch, which is faster than one by one.

        Args:
            minutes: Columns of `self.minutes` to predict from, shape (n,).
        """
        looks = np.unique(minutes // self.every_min * self.every_min)
        looks = looks[[int(look) not in self._looks for look in looks]]
        if not len(looks):
            return
        rows = np.array([row for row, market in enumerate(self.minutes.markets) if market in self.model.markets])
        able = self.minutes.has_past[np.ix_(rows, looks)]
        row, column = np.nonzero(able)
        samples = Samples(rows[row], looks[column])
        asked = self.minutes.prices[samples.market, samples.minute][:, None] * (1.0 + _RISES)
        answers = self.model.probabilities(self.minutes, samples, asked).astype(np.float32)
        for number, look in enumerate(looks):
            own = np.flatnonzero(column == number)
            place = np.full(len(self.minutes.markets), -1, dtype=np.int64)
            place[samples.market[own]] = np.arange(len(own))
            self._looks[int(look)] = (
                place,
                np.concatenate([answers[own], np.zeros((1, len(_RISES)), np.float32)]),
            )

    def _look(self, minute: int) -> tuple[Integers, Floats32]:
        if minute not in self._looks:
            self.look_ahead(np.array([minute]))
        return self._looks[minute]


@dataclass(frozen=True, eq=False)
class Foresight:
    """Perfect forecast from future prices: the upper bound for every forecast, available in backtests only.

    Attributes:
        minutes: Minutes of the price history, the future included.
        name: Name of the forecast in tables.
    """

    minutes: Minutes
    name: str = "foresight"

    def probabilities(self, view: PricesSoFar, markets: Sequence[Market], max_prices: Floats) -> Floats:
        rows, minute = self.minutes.rows(markets), _minute(self.minutes, view.now_s)
        return np.asarray(self.minutes.highest_next_hour[rows, minute] > max_prices, dtype=float)


def _now(view: PricesSoFar, markets: Sequence[Market]) -> Floats:
    """Prices at the present moment, shape (n,): a price may have changed since the last whole minute."""
    return np.array([view.price(market) for market in markets])


def _minute(minutes: Minutes, time_s: float) -> int:
    """The last whole minute at or before a time."""
    place = int((time_s - minutes.times_s[0]) // MINUTE_S)
    return min(max(place, 0), len(minutes.times_s) - 1)
