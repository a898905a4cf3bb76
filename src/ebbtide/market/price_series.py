"""The price of one market: a step function of time, kept as its change points."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Change points in the first block that `next_above` scans; doubled until something is found.
_FIRST_SCAN = 64


def round_start_s(time_s: float, round_s: float) -> float:
    """The start of the first round that does not begin before a time, seconds since 1970."""
    return math.ceil(time_s / round_s) * round_s


class PriceSeries:
    """Change points of one market: `prices[i]` holds from `times_s[i]` until `times_s[i + 1]`.

    Args:
        times_s: Seconds since 1970, strictly rising, shape (n,), n >= 1.
        prices: USD per hour, shape (n,).

    Before the first change point the price is unknown (NaN). The last one holds for ever: the end of the record is
    kept by `PriceHistory`.
    """

    __slots__ = ("__dict__", "prices", "times_s")

    def __init__(self, times_s: Floats, prices: Floats) -> None:
        self.times_s = times_s
        self.prices = prices
        # Length of the rounds at which the prices are known to change alone.
        self._round_s = 0.0

    def __len__(self) -> int:
        return len(self.times_s)

    # For single times, bisect on a list is several times faster than numpy's searchsorted.
    @cached_property
    def _times(self) -> list[float]:
        times: list[float] = self.times_s.tolist()
        return times

    @cached_property
    def _prices(self) -> list[float]:
        prices: list[float] = self.prices.tolist()
        return prices

    def at(self, time_s: float) -> float:
        """The price in force at `time_s`, NaN before the first change point."""
        index = bisect_right(self._times, time_s) - 1
        return self._prices[index] if index >= 0 else math.nan

    def at_each(self, times_s: Floats) -> Floats:
        """The price in force at each of `times_s`, shape (k,); NaN before the first change point."""
        index = np.searchsorted(self.times_s, times_s, side="right") - 1
        return np.where(index >= 0, self.prices[np.maximum(index, 0)], np.nan)

    def next_change(self, time_s: float) -> float:
        """The next change point after `time_s`, seconds since 1970; infinity if there is none."""
        index = bisect_right(self._times, time_s)
        return self._times[index] if index < len(self._times) else math.inf

    def next_above(self, time_s: float, price: float) -> float:
        """The first moment from `time_s` on at which the price exceeds `price`; infinity if never."""
        if price == math.inf:
            return math.inf
        index = bisect_right(self._times, time_s) - 1
        if index >= 0 and self._prices[index] > price:
            return time_s
        low, size = index + 1, _FIRST_SCAN
        while low < len(self):
            above = self.prices[low : low + size] > price
            first = int(above.argmax())
            if above[first]:
                return self._times[low + first]
            low, size = low + size, size * 2
        return math.inf

    def between(self, start_s: float, end_s: float) -> tuple[Floats, Floats]:
        """Change points in [start_s, end_s); the first is the price in force at `start_s`.

        Returns:
            Times and prices, shape (k,) each; empty where the price is unknown throughout.
        """
        first = bisect_right(self._times, start_s) - 1
        last = bisect_left(self._times, end_s)
        if first < 0:
            first = 0
            if last == 0:
                return np.empty(0), np.empty(0)
            return self.times_s[first:last], self.prices[first:last]
        if last <= first:
            last = first + 1
        times = self.times_s[first:last].copy()
        times[0] = start_s
        return times, self.prices[first:last]

    def in_rounds(self, round_s: float) -> PriceSeries:
        """The prices of an auction's rounds: each has for all of it the price in force at its start.

        Before the first whole round of the record, its first price holds.

        Args:
            round_s: Length of a round, seconds; rounds are counted from 1970.
        """
        if self._round_s == round_s:
            return self
        # Every lease of a run asks for them.
        known: dict[float, PriceSeries] = self.__dict__.setdefault("_rounds", {})
        if round_s not in known:
            times = np.ceil(self.times_s / round_s) * round_s
            times[0] = self.times_s[0]
            # Of several changes within a round, the last is in force when the next one begins.
            kept = np.append(np.diff(times) > 0.0, True)
            times, prices = times[kept], self.prices[kept]
            changed = np.append(True, np.diff(prices) != 0.0)
            known[round_s] = PriceSeries(times[changed], prices[changed])
            known[round_s]._round_s = round_s
        return known[round_s]

    def mean(self, start_s: float, end_s: float) -> float:
        """The time-weighted mean price over [start_s, end_s); NaN where it is unknown throughout."""
        first = max(start_s, self._times[0])
        if end_s <= first:
            return math.nan
        return (self._integral_to(end_s) - self._integral_to(first)) / (end_s - first)

    @cached_property
    def _integrals(self) -> list[float]:
        """Integral of the price over time from the first change point to each one, USD/h times s."""
        held_s = np.diff(self.times_s)
        integrals: list[float] = np.append(0.0, np.cumsum(held_s * self.prices[:-1])).tolist()
        return integrals

    def _integral_to(self, time_s: float) -> float:
        index = bisect_right(self._times, time_s) - 1
        return self._integrals[index] + (time_s - self._times[index]) * self._prices[index]

    def share_above(self, start_s: float, end_s: float, price: float) -> float:
        """The share of [start_s, end_s) during which the price exceeds `price`; NaN if unknown throughout."""
        times, prices = self.between(start_s, end_s)
        if not len(times) or end_s <= start_s:
            return math.nan
        held = np.diff(times, append=end_s)
        return float(held[prices > price].sum() / held.sum())
