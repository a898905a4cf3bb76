"""A trained revocation model as a forecast for policies: it answers from a view's past prices alone.

The same code serves backtests and live runs, since both show a policy the same past prices. The features of the
past hour are those of `minutes.minutes_of`, computed for the one minute that is asked about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ebbtide.base.compiling import compiled
from ebbtide.base.utc import HOUR_S, MINUTE_S
from ebbtide.forecasts.revocation.minutes import (
    FEATURES,
    LONGEST_STAND_S,
    MAX_GAP_S,
    WINDOW,
    Bools,
    Floats,
    Floats32,
    Minutes,
    calendar_features,
)
from ebbtide.forecasts.revocation.passage import PricesSoFar, Recent
from ebbtide.forecasts.revocation.splits import Samples
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory

if TYPE_CHECKING:
    from ebbtide.forecasts.revocation.predictor import RevocationModel

# Rises that the model is asked about at once, as shares of the price; answers between them are interpolated.
RISES = np.geomspace(1e-4, 30.0, 24)

# The first feature of the hour needs the prices of the hour before it, and how long that price has held.
_PAST_S = 2 * HOUR_S + LONGEST_STAND_S

# Change points within this time tell one answer from another; older ones change a single feature.
_FINGERPRINT_S, _POINTS = 2 * HOUR_S, 8


@compiled
def price_features(times_s: Floats, prices: Floats, minute_s: float, features: Floats32, at: Floats) -> bool:
    """Fill the four features of prices for the last `WINDOW` minutes of one market.

    Args:
        times_s: Change points, seconds since 1970, shape (points,).
        prices: Price from each change point on, USD per hour, shape (points,).
        minute_s: The last whole minute of the window, seconds since 1970.
        features: Where the features go, shape (WINDOW, 6); the last two columns are left alone.
        at: Where the prices at the minutes go, USD per hour, shape (2 * WINDOW - 1,); the last is at `minute_s`.

    Returns:
        Whether the market has its past hour without a gap; if not, what is filled has no meaning.
    """
    minutes = 2 * WINDOW - 1
    if not len(times_s) or times_s[0] > minute_s - HOUR_S:
        return False
    # The point in force at the first minute; of an earlier one nothing is asked but when it was set.
    point = 0
    changed_s = times_s[0]
    # Times of the changes within the hour before each minute, oldest first, in a queue of their indices.
    oldest = 0
    changes = np.empty(len(times_s))
    known = 0
    changes[0] = times_s[0]
    known = 1
    total = 0.0
    for number in range(minutes):
        now_s = minute_s - MINUTE_S * (minutes - 1 - number)
        while point + 1 < len(times_s) and times_s[point + 1] <= now_s:
            point += 1
            if prices[point] != prices[point - 1]:
                changed_s = times_s[point]
                changes[known] = changed_s
                known += 1
        while oldest < known and changes[oldest] <= now_s - HOUR_S:
            oldest += 1
        at[number] = prices[point] if times_s[0] <= now_s else 0.0
        total += at[number]
        if number >= WINDOW:
            total -= at[number - WINDOW]
        row = number - WINDOW + 1
        if row >= 0:
            features[row, 0] = at[number]
            features[row, 1] = total / WINDOW if times_s[0] <= now_s - HOUR_S + MINUTE_S else np.nan
            features[row, 2] = known - oldest
            features[row, 3] = min(now_s - changed_s, LONGEST_STAND_S)
    # A gap in the record: how long the price before it held is not known.
    last_s = times_s[point]
    if minute_s - last_s > MAX_GAP_S:
        return False
    while point > 0 and times_s[point] > minute_s - HOUR_S:
        if times_s[point] - times_s[point - 1] > MAX_GAP_S:
            return False
        point -= 1
    return True


@dataclass(frozen=True)
class PricesAt:
    """A moment of a price history, as a policy's view shows it.

    Attributes:
        history: Prices of all markets; those after the moment are not shown.
        now_s: The moment, seconds since 1970.
    """

    history: PriceHistory
    now_s: float

    def price(self, market: Market) -> float:
        return self.history[market].at(self.now_s)

    def past_prices(self, market: Market, duration_s: float) -> tuple[Floats, Floats]:
        return self.history[market].between(self.now_s - duration_s, math.nextafter(self.now_s, math.inf))


@dataclass(frozen=True, eq=False)
class Served:
    """A trained model, asked about all of its markets at once every few minutes.

    Attributes:
        model: Fitted revocation model; the data that it was trained on must end before the moments asked about.
        every_min: Minutes between two predictions; in between, the last one holds.
        name: Name of the forecast in tables.
    """

    model: RevocationModel
    every_min: int = 10
    name: str = "revpred"
    _kept: Recent[Floats32 | None] = field(default_factory=Recent, repr=False)

    def probabilities(self, view: PricesSoFar, markets: Sequence[Market], max_prices: Floats) -> Floats:
        """The probability that each market's price exceeds the max price within the hour from now, shape (n,).

        A market that the model does not know, or that has no prices for the past hour, gets 0, as no refund can be
        expected there; a max price below the price gets 1.

        Args:
            view: The present moment and the prices up to it.
            markets: Markets asked about, shape (n,).
            max_prices: Max price in each market, USD per hour, shape (n,).
        """
        now = np.array([view.price(market) for market in markets])
        tables = self._tables(view, markets)
        log_rise = np.log(np.maximum(max_prices / now - 1.0, RISES[0]))
        at = np.clip(np.interp(log_rise, np.log(RISES), np.arange(len(RISES))), 0, len(RISES) - 1)
        low = np.minimum(at.astype(int), len(RISES) - 2)
        share = at - low
        found = np.zeros(len(markets))
        for place, table in enumerate(tables):
            if table is not None:
                found[place] = (1 - share[place]) * table[low[place]] + share[place] * table[low[place] + 1]
        return np.where(now > max_prices, 1.0, found)

    def answers(self, view: PricesSoFar, markets: Sequence[Market]) -> dict[Market, Floats32]:
        """The model's answers for `RISES` by market, shape (24,) each; those it cannot answer for are left out."""
        pairs = zip(markets, self._tables(view, markets), strict=True)
        return {market: table for market, table in pairs if table is not None}

    def _tables(self, view: PricesSoFar, markets: Sequence[Market]) -> list[Floats32 | None]:
        every_s = self.every_min * MINUTE_S
        minute_s = view.now_s // every_s * every_s
        keys = [self._key(view, market, minute_s) for market in markets]
        kept = {key: self._kept.get(key, lambda: None) for key in keys if key in self._kept}
        if len(kept) < len(keys):
            kept |= self._asked(view, markets, [key for key in keys if key not in kept], minute_s)
        return [kept[key] for key in keys]

    @staticmethod
    def _key(view: PricesSoFar, market: Market, minute_s: float) -> tuple[object, ...]:
        """Cache key of an answer, different for another price history at the same minute."""
        times_s, prices = view.past_prices(market, view.now_s - minute_s + _FINGERPRINT_S)
        known = int(np.searchsorted(times_s, minute_s, side="right"))
        few = slice(max(known - _POINTS, 0), known)
        return market, minute_s, known, prices[few].tobytes(), times_s[1:known][-_POINTS:].tobytes()

    def _asked(
        self, view: PricesSoFar, markets: Sequence[Market], keys: Sequence[tuple[object, ...]], minute_s: float
    ) -> dict[tuple[object, ...], Floats32 | None]:
        """The model's answers for the markets of these keys, in one batch; they are kept."""
        wanted = {key[0] for key in keys} & set(self.model.markets)
        asked = [market for market in markets if market in wanted]
        minutes, has_past = past_hour(view, asked, minute_s)
        rows = np.flatnonzero(has_past)
        tables: dict[object, Floats32] = {}
        if len(rows):
            last = Samples(rows, np.full(len(rows), WINDOW - 1))
            max_prices = minutes.prices[rows, -1][:, None] * (1.0 + RISES)
            answers = self.model.probabilities(minutes, last, max_prices).astype(np.float32)
            tables = {asked[row]: answer for row, answer in zip(rows.tolist(), answers, strict=True)}
        found = {key: tables.get(key[0]) for key in keys}
        for key, table in found.items():
            self._kept.put(key, table)
        return found


def past_hour(view: PricesSoFar, markets: Sequence[Market], minute_s: float) -> tuple[Minutes, Bools]:
    """The `WINDOW` minutes of some markets up to one minute, and which of the markets have prices for all of them.

    Args:
        view: The present moment and the prices up to it.
        markets: Markets of the rows.
        minute_s: The last whole minute of the window, not after now, seconds since 1970.
    """
    number = len(markets)
    features = np.full((number, WINDOW, len(FEATURES)), np.nan, dtype=np.float32)
    times_s = np.asarray(minute_s + MINUTE_S * np.arange(1 - WINDOW, 1), dtype=np.float64)
    features[:, :, 4:] = calendar_features(times_s)
    at = np.zeros((number, 2 * WINDOW - 1))
    has_past = np.zeros(number, dtype=bool)
    back_s = view.now_s - minute_s + _PAST_S
    for row, market in enumerate(markets):
        has_past[row] = price_features(*view.past_prices(market, back_s), minute_s, features[row], at[row])
    unknown, never = np.full((number, WINDOW), np.nan), np.zeros((number, WINDOW), dtype=bool)
    past = never.copy()
    past[:, -1] = has_past
    return Minutes(tuple(markets), times_s, at[:, -WINDOW:], features, unknown, unknown, never, past), has_past
