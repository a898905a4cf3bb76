"""Markets minute by minute: the features of a prediction, and the highest price of the next hour to predict.

The six features are those of SpotTune III-B, computed for all markets and minutes at once. `features` at a minute
use nothing later than it; `highest_next_hour` uses only what is later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ebbtide.base.utc import DAY_S, HOUR_S, MINUTE_S, Time, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory

FEATURES = (
    "price_usd_per_hour",
    "mean_price_usd_per_hour",  # of the past hour
    "changes",  # of the price in the past hour
    "seconds_since_change",
    "workday",  # 1 from Monday to Friday, UTC
    "hour",  # of the day, UTC
)

# Minutes of input to a prediction: the 59 before it and its own.
WINDOW = 60
HORIZON_S = HOUR_S

# A market without a row for longer than this has a gap in its record: EC2 republishes prices about daily.
MAX_GAP_S = 36 * HOUR_S

# The longest time since a change that is told apart from longer ones.
LONGEST_STAND_S = 7 * DAY_S

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Minutes:
    """Features of every market at every whole minute of a history.

    Attributes:
        markets: Markets of the rows of the arrays below.
        times_s: Whole minutes, seconds since 1970, shape (minutes,).
        prices: Prices, USD per hour, shape (markets, minutes); NaN before a market's first.
        features: In the order of `FEATURES`, shape (markets, minutes, 6); NaN before a market's first price.
        highest_next_hour: The highest price of the hour after each minute, shape (markets, minutes); NaN where
            the record ends first.
        border: Algorithm 2's max price: price plus the trimmed mean of its moves in the past hour, same shape.
        complete: Whether a minute has both its past and its next hour without a gap, same shape.
        has_past: Whether a minute has its past hour: enough to predict, not to score; same shape.
    """

    markets: tuple[Market, ...]
    times_s: Floats
    prices: Floats
    features: Floats32
    highest_next_hour: Floats
    border: Floats
    complete: Bools
    has_past: Bools

    def rows(self, markets: Sequence[Market]) -> Integers:
        """The rows of some markets, shape (n,).

        Raises:
            InputError: A market is not in the prices.
        """
        row_of = {market: row for row, market in enumerate(self.markets)}
        try:
            return np.array([row_of[market] for market in markets], dtype=np.int64)
        except KeyError as error:
            names = ", ".join(map(str, self.markets))
            raise InputError(f"market {error.args[0]} is not in the prices; known: {names}") from None

    def minute(self, time: Time) -> int:
        """The column of the last whole minute at or before `time`.

        Raises:
            InputError: The time is outside the record.
        """
        at = int(np.searchsorted(self.times_s, to_epoch_s(time), side="right")) - 1
        if at < 0 or to_epoch_s(time) >= self.times_s[-1] + MINUTE_S:
            raise InputError(f"{time} is outside the prices")
        return at


def minutes_of(history: PriceHistory, grid: PriceHistory | None = None) -> Minutes:
    """Features and targets of every minute of a history.

    Args:
        history: The recorded prices.
        grid: The same markets on an even grid (SpotTune IV-A), from which prices and features are taken. A linear
            one looks ahead, so that only training may use it. Targets are always those of the recorded prices.

    Raises:
        InputError: The history is shorter than a prediction's past and horizon together; the grid lacks a market.
    """
    drawn = history if grid is None else grid
    if absent := [str(market) for market in history if market not in drawn]:
        raise InputError(f"the grid of prices lacks {', '.join(absent)}; make it from the same prices")
    times_s = np.arange(np.ceil(history.start_s / MINUTE_S), np.floor(history.end_s / MINUTE_S) + 1) * MINUTE_S
    if len(times_s) < 2 * WINDOW:
        raise InputError(f"the history has {len(times_s)} minutes; at least {2 * WINDOW} are needed")
    shape = (len(history), len(times_s))
    features = np.empty((*shape, len(FEATURES)), dtype=np.float32)
    features[:, :, 4:] = calendar_features(times_s)
    prices, highest, border = np.empty(shape), np.empty(shape), np.empty(shape)
    complete, has_past = np.empty(shape, dtype=bool), np.empty(shape, dtype=bool)
    for row, series in enumerate(history.values()):
        sampled = drawn[history.markets[row]]
        prices[row] = sampled.at_each(times_s)
        features[row, :, :4] = _price_features(sampled, prices[row], times_s)
        highest[row] = _highest_next_hour(series, series.at_each(times_s), times_s)
        border[row] = prices[row] + _trimmed_mean_move(prices[row])
        has_past[row], complete[row] = _covered(series, times_s, history.end_s)
    return Minutes(history.markets, times_s, prices, features, highest, border, complete, has_past)


def calendar_features(times_s: Floats) -> Floats:
    """Workday flag and hour of the day (UTC) at each of `times_s`; shape (minutes, 2)."""
    return np.stack([(times_s // DAY_S + 3) % 7 < 5, times_s // HOUR_S % 24], axis=1)


def _price_features(series: PriceSeries, prices: Floats, times_s: Floats) -> Floats:
    """Price, its mean and its changes in the past hour, seconds since the last change; shape (minutes, 4)."""
    moved = np.append(True, np.diff(series.prices) != 0)
    changes_s = series.times_s[moved]
    done = np.searchsorted(changes_s, times_s, side="right")
    before = np.searchsorted(changes_s, times_s - HOUR_S, side="right")
    known = np.nan_to_num(prices)
    summed = np.concatenate([[0.0], np.cumsum(known)])
    mean = np.full(len(prices), np.nan)
    mean[WINDOW - 1 :] = (summed[WINDOW:] - summed[:-WINDOW]) / WINDOW
    # Without the whole hour there is no mean of it.
    mean[: np.searchsorted(times_s, series.times_s[0]) + WINDOW - 1] = np.nan
    stood_s = np.where(done > 0, times_s - changes_s[np.maximum(done - 1, 0)], np.nan)
    return np.stack([prices, mean, done - before, np.minimum(stood_s, LONGEST_STAND_S)], axis=1)


def _highest_next_hour(series: PriceSeries, prices: Floats, times_s: Floats) -> Floats:
    """The highest price in (t, t + 1 h], change points between whole minutes included; the price at t counts."""
    from scipy.ndimage import maximum_filter1d

    within = np.fmax(prices, np.append(prices[1:], prices[-1:]))
    minute = np.searchsorted(times_s, series.times_s, side="left") - 1
    inside = (minute >= 0) & (minute < len(times_s))
    np.fmax.at(within, minute[inside], series.prices[inside])
    horizon = int(HORIZON_S / MINUTE_S)
    highest = maximum_filter1d(np.nan_to_num(within, nan=-np.inf), horizon, origin=-(horizon // 2), mode="nearest")
    highest[~np.isfinite(highest)] = np.nan
    highest[len(highest) - horizon :] = np.nan
    return np.asarray(highest, dtype=np.float64)


def _trimmed_mean_move(prices: Floats) -> Floats:
    """SpotTune's Algorithm 2: trimmed mean of the past hour's one-minute moves, a fifth cut off at either end."""
    moves = np.abs(np.diff(prices, prepend=prices[:1]))
    sorted_moves = np.sort(np.lib.stride_tricks.sliding_window_view(moves, WINDOW), axis=1)
    low, high = int(0.2 * WINDOW) + 1, int(np.ceil(0.8 * WINDOW))
    mean = np.full(len(prices), np.nan)
    mean[WINDOW - 1 :] = sorted_moves[:, low:high].sum(axis=1) / (0.6 * WINDOW)
    return mean


def _covered(series: PriceSeries, times_s: Floats, end_s: float) -> tuple[Bools, Bools]:
    """Return whether each minute has its past hour, and whether also its next, without a gap in the record."""
    past = times_s >= series.times_s[0] + HOUR_S
    both = past & (times_s + HORIZON_S <= end_s)
    rows_s = np.append(series.times_s, end_s)
    for gap in np.flatnonzero(np.diff(rows_s) > MAX_GAP_S):
        begins_s, ends_s = rows_s[gap], rows_s[gap + 1]
        # How long the price before a gap held is unknown: minutes whose next hour reaches it are not complete.
        past &= ~((times_s > begins_s + MAX_GAP_S) & (times_s < ends_s + HOUR_S))
        both &= ~((times_s > begins_s - HORIZON_S) & (times_s < ends_s + HOUR_S))
    return past, both & past
