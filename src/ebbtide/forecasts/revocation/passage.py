"""Time within the hour at which a price first exceeds a max price, estimated from similar past moments.

A forecast of whether a machine is revoked cannot distinguish one revoked before it has booted from one that works
for fifty minutes free of charge; the time of the first passage can. It is estimated from the view's past prices
alone: moments with a similar price that had held for a similar time count most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from ebbtide.base.compiling import compiled, inner
from ebbtide.base.utc import DAY_S, HOUR_S, MINUTE_S
from ebbtide.forecasts.revocation.minutes import Floats
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory


@compiled
def held_since(times_s: Floats, prices: Floats, begins: Floats) -> tuple[Floats, Floats]:
    """The price at each moment, and the time of its last change.

    Args:
        times_s: Change points, seconds since 1970, shape (points,).
        prices: Price from each change point on, USD per hour, shape (points,).
        begins: Moments in order, none before the first change point, seconds since 1970, shape (n,).

    Returns:
        Prices and times, each of shape (n,).
    """
    held = np.empty(len(begins))
    since_s = np.empty(len(begins))
    at, changed_s = 0, times_s[0]
    for number in range(len(begins)):
        while at + 1 < len(times_s) and times_s[at + 1] <= begins[number]:
            at += 1
            if prices[at] != prices[at - 1]:
                changed_s = times_s[at]
        held[number] = prices[at]
        since_s[number] = changed_s
    return held, since_s


@inner
def _highest_of_cells(times_s: Floats, prices: Floats, begins: Floats, cell_s: float, cells: int) -> Floats:
    """The highest price of each cell: the one in force when it begins, and those set within it.

    Returns:
        Of the cells that begin at `begins` and of `cells - 1` more, USD per hour.
    """
    total = len(begins) + cells - 1
    highest = np.empty(total)
    at = 0
    for cell in range(total):
        begin_s = begins[cell] if cell < len(begins) else begins[-1] + cell_s * (cell - len(begins) + 1)
        end_s = begin_s + cell_s
        while at + 1 < len(times_s) and times_s[at + 1] <= begin_s:
            at += 1
        most = prices[at]
        ahead = at + 1
        while ahead < len(times_s) and times_s[ahead] < end_s:
            most = max(most, prices[ahead])
            ahead += 1
        highest[cell] = most
    return highest


@compiled
def highest_rises(times_s: Floats, prices: Floats, begins: Floats, cell_s: float, cells: int) -> Floats:
    """The highest rise of the price by the end of each cell after each moment.

    Args:
        times_s: Change points, seconds since 1970, shape (points,).
        prices: Price from each change point on, USD per hour, shape (points,).
        begins: Moments `cell_s` apart, none before the first change point, seconds since 1970, shape (n,).
        cell_s: Length of a cell, seconds.
        cells: Number of cells after each moment.

    Returns:
        Rises as shares of the price at the moment, shape (n, cells); rows never fall.
    """
    rose = np.empty((len(begins), cells))
    if not len(begins):
        return rose
    highest = _highest_of_cells(times_s, prices, begins, cell_s, cells)
    at = 0
    for number in range(len(begins)):
        while at + 1 < len(times_s) and times_s[at + 1] <= begins[number]:
            at += 1
        most = 0.0
        for cell in range(cells):
            most = max(most, highest[number + cell])
            rose[number, cell] = most / prices[at] - 1.0
    return rose


@compiled
def first_passages(
    times_s: Floats,
    prices: Floats,
    begins: Floats,
    held: Floats,
    weights: Floats,
    rises: Floats,
    cell_s: float,
    cells: int,
) -> Floats:
    """For each rise and cell, the total weight of moments after which the price first rose by it in that cell.

    Args:
        times_s: Change points, seconds since 1970, shape (points,).
        prices: Price from each change point on, USD per hour, shape (points,).
        begins: Moments `cell_s` apart, seconds since 1970, shape (n,).
        held: The price at each moment, USD per hour, shape (n,).
        weights: Weight of each moment, shape (n,).
        rises: Rises as shares of the price, in rising order, shape (k,).
        cell_s: Length of a cell, seconds.
        cells: Number of cells after each moment.

    Returns:
        Weights, shape (k, cells); moments without such a rise count in no cell.
    """
    highest = _highest_of_cells(times_s, prices, begins, cell_s, cells)
    counted = np.zeros((len(rises), cells))
    for number in range(len(begins)):
        most = 0.0
        rise = 0
        for cell in range(cells):
            if highest[number + cell] <= most:
                continue
            most = highest[number + cell]
            rose = most / held[number] - 1.0
            while rise < len(rises) and rose > rises[rise]:
                counted[rise, cell] += weights[number]
                rise += 1
            if rise == len(rises):
                break
    return counted


# Seconds between past moments, and length of the cells into which the hour ahead is divided.
CELL_S = 5 * MINUTE_S
CELLS = int(HOUR_S / CELL_S)

# Answers kept in a cache; when it is full, all are dropped.
_MAX_KEPT = 20_000

_Answer = TypeVar("_Answer")


class PricesSoFar(Protocol):
    """A moment, and the prices up to it: what a policy's view shows."""

    @property
    def now_s(self) -> float:
        """Seconds since 1970."""
        ...

    def price(self, market: Market) -> float:
        """The market's price now, USD per hour."""
        ...

    def past_prices(self, market: Market, duration_s: float) -> tuple[Floats, Floats]:
        """Change points of the last `duration_s`, beginning with the price in force at their start.

        Returns:
            Times (seconds since 1970) and prices (USD per hour), shape (points,) each.
        """
        ...


class Recent(Generic[_Answer]):
    """A cache of answers by what they depend on; when it is full, all are dropped."""

    def __init__(self) -> None:
        self._answers: dict[tuple[object, ...], _Answer] = {}

    def __contains__(self, key: tuple[object, ...]) -> bool:
        return key in self._answers

    def __reduce__(self) -> tuple[type, tuple[()]]:
        # Another process computes its own answers: they would take longer to send.
        return type(self), ()

    def get(self, key: tuple[object, ...], work_out: Callable[[], _Answer]) -> _Answer:
        """The answer for that key, computed if it is not in the cache."""
        if key not in self._answers:
            self.put(key, work_out())
        return self._answers[key]

    def put(self, key: tuple[object, ...], answer: _Answer) -> None:
        """Keep an answer."""
        if len(self._answers) >= _MAX_KEPT:
            self._answers.clear()
        self._answers[key] = answer


class Passages(Protocol):
    """Predicts when a price first exceeds a max price."""

    @property
    def name(self) -> str:
        """Name of the forecast in tables."""
        ...

    def chances(self, view: PricesSoFar, market: Market, rises: Floats) -> Floats:
        """For each rise, the probability that the price first rises by it within each cell of the hour.

        Args:
            view: The present moment and the prices up to it.
            market: The market asked about.
            rises: Rises as shares of the present price, shape (n,).

        Returns:
            Probabilities, shape (n, CELLS + 1); the last column is for no such rise. Rows sum to 1.
        """
        ...


@dataclass(frozen=True, eq=False)
class SimilarMoments:
    """Past moments, weighted by their similarity to now.

    Attributes:
        days: How far it looks back, days.
        level: Width of the Gaussian weight in the log price; 0.05 is about 5 % of the price.
        stood: Width of the Gaussian weight in the log of the minutes for which the price has held.
        all_alike: Weight of all past moments together, whether similar or not, in moments.
        name: Name of the forecast in tables.
    """

    days: float = 7.0
    level: float = 0.05
    stood: float = 0.5
    all_alike: float = 20.0
    name: str = "similar-moments"
    _kept: Recent[Floats] = field(default_factory=Recent, repr=False)

    def chances(self, view: PricesSoFar, market: Market, rises: Floats) -> Floats:
        times_s, prices = view.past_prices(market, self.days * DAY_S)
        if not len(times_s):
            return np.tile(np.append(np.zeros(CELLS), 1.0), (len(rises), 1))
        now_s = view.now_s // CELL_S * CELL_S
        # Many trials ask the same question at once: it is answered once.
        key = (market, now_s, len(times_s), *times_s[[0, -1]], *prices[[0, -1]], rises.tobytes())
        return self._kept.get(key, lambda: self._answer(times_s, prices, now_s, rises))

    def _answer(self, times_s: Floats, prices: Floats, now_s: float, rises: Floats) -> Floats:
        begins = np.arange(np.ceil(times_s[0] / CELL_S) * CELL_S, now_s - HOUR_S + 1.0, CELL_S)
        if prices.max() <= prices.min() * (1.0 + float(rises.min())):
            # The price never rose by that much, whatever the weights.
            return np.tile(np.append(np.zeros(CELLS), 1.0), (len(rises), 1))
        if not len(begins):
            return np.tile(np.append(np.zeros(CELLS), 1.0), (len(rises), 1))
        held, since_s = held_since(times_s, prices, begins)
        changes = np.flatnonzero(np.diff(prices))
        changed_s = times_s[changes[-1] + 1] if len(changes) else times_s[0]
        apart = np.log(held / prices[-1]) / self.level
        stood_now = _log_minutes(np.array([max(now_s - changed_s, 0.0)]))
        older = (_log_minutes(begins - since_s) - stood_now) / self.stood
        alike = np.exp(-0.5 * (apart**2 + older**2))
        # All past moments together count as `all_alike` moments, including one more by Laplace's rule.
        share = self.all_alike / (len(begins) + 1.0)
        weights = alike + share
        order = np.argsort(rises, kind="stable")
        counted = first_passages(times_s, prices, begins, held, weights, rises[order], CELL_S, CELLS)
        chances = np.empty((len(rises), CELLS + 1))
        chances[order, :-1] = counted / (weights.sum() + share)
        chances[:, -1] = 1.0 - chances[:, :-1].sum(axis=1)
        return chances


@dataclass(frozen=True, eq=False)
class ForeseenPassages:
    """Perfect forecast from future prices: the upper bound for every forecast, available in backtests only.

    Attributes:
        prices: The whole price history, the future included.
        name: Name of the forecast in tables.
    """

    prices: PriceHistory
    name: str = "foreseen-passages"

    def chances(self, view: PricesSoFar, market: Market, rises: Floats) -> Floats:
        found = np.zeros((len(rises), CELLS + 1))
        for row, rise in enumerate(rises.tolist()):
            above_s = self.prices[market].next_above(view.now_s, view.price(market) * (1.0 + rise))
            found[row, int(min(above_s - view.now_s, HOUR_S) // CELL_S)] = 1.0
        return found


def _log_minutes(duration_s: Floats) -> Floats:
    return np.log1p(duration_s / MINUTE_S)
