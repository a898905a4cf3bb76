"""When within the hour a price first exceeds a max price, by what followed on past moments like this one.

A forecast of whether a machine is revoked cannot tell one that dies before it has booted from one that works for
fifty minutes free of charge; the time of the first passage can. It comes from nothing but the past that the view
shows: moments at which the price stood as high as now, and had stood as long, count most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from ebbtide._utc import DAY_S, HOUR_S, MINUTE_S
from ebbtide.forecasts.revocation.first_passages import first_passages, held_since
from ebbtide.forecasts.revocation.minutes import Floats
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory

# The past is read at every so many seconds, and the hour ahead in as many cells.
CELL_S = 5 * MINUTE_S
CELLS = int(HOUR_S / CELL_S)

# Answers kept; older ones are dropped all together.
_MOST_KEPT = 20_000

_Answer = TypeVar("_Answer")


class PricesSoFar(Protocol):
    """A moment, and the prices up to it: what a policy's view shows."""

    @property
    def now_s(self) -> float:
        """Seconds since 1970."""
        ...

    def price(self, market: Market) -> float:
        """Now, USD per hour."""
        ...

    def past_prices(self, market: Market, duration_s: float) -> tuple[Floats, Floats]:
        """Change points of the last `duration_s`, the price in force at their beginning carried in."""
        ...


class Recent(Generic[_Answer]):
    """Answers kept by what they depend on; when there are too many, all are dropped."""

    def __init__(self) -> None:
        self._answers: dict[tuple[object, ...], _Answer] = {}

    def get(self, key: tuple[object, ...], work_out: Callable[[], _Answer]) -> _Answer:
        """The answer of that key, worked out if it is not kept."""
        if key not in self._answers:
            if len(self._answers) >= _MOST_KEPT:
                self._answers.clear()
            self._answers[key] = work_out()
        return self._answers[key]


class Passages(Protocol):
    """Foretells when a price first exceeds a max price."""

    @property
    def name(self) -> str:
        """For tables."""
        ...

    def chances(self, view: PricesSoFar, market: Market, rises: Floats) -> Floats:
        """Of each rise, the chances that the price first exceeds now's by it within each cell of the hour.

        Args:
            view: Now, and the past.
            market: Asked about.
            rises: Shares of the price, shape (n,).

        Returns:
            Shape (n, CELLS + 1); the last column: not within the hour. Rows sum to 1.
        """
        ...


def highest_rises(times_s: Floats, prices: Floats, begins: Floats) -> Floats:
    """How far the price had risen at most by the end of each cell of the hour after each moment.

    Args:
        times_s: Change points, shape (points,).
        prices: Shape (points,).
        begins: Moments `CELL_S` apart, the last an hour before the end of what is known; shape (n,).

    Returns:
        Shares of the price at the moment, shape (n, CELLS); rows rise.
    """
    if not len(begins):
        return np.empty((0, CELLS))
    edges = np.concatenate([begins, begins[-1] + CELL_S * np.arange(1, CELLS + 1)])
    held = prices[np.searchsorted(times_s, edges, side="right") - 1]
    # The highest of each cell: what was in force at its beginning, and what was set in it.
    highest = held[:-1].copy()
    cell = np.searchsorted(edges, times_s, side="right") - 1
    inside = (cell >= 0) & (cell < len(highest))
    np.maximum.at(highest, cell[inside], prices[inside])
    # Cells first: each is one pass over memory that lies together.
    rose = np.empty((CELLS, len(begins)))
    rose[0] = highest[: len(begins)]
    for cell_ahead in range(1, CELLS):
        np.maximum(rose[cell_ahead - 1], highest[cell_ahead : cell_ahead + len(begins)], out=rose[cell_ahead])
    rose /= held[: len(begins)]
    rose -= 1.0
    return rose.T


@dataclass(frozen=True, eq=False)
class SimilarMoments:
    """Past moments by how like now they are.

    Attributes:
        days: How far back.
        level: Prices that differ by this share are alike; twice as far they hardly count.
        stood: The same of how long the price has stood, by its logarithm in minutes.
        all_alike: For so many moments do all of the past, like now or not, count together.
        name: For tables.
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
        # What the answer depends on: asked by many trials at once, it is worked out once.
        key = (market, now_s, len(times_s), *times_s[[0, -1]], *prices[[0, -1]], rises.tobytes())
        return self._kept.get(key, lambda: self._answer(times_s, prices, now_s, rises))

    def _answer(self, times_s: Floats, prices: Floats, now_s: float, rises: Floats) -> Floats:
        begins = np.arange(np.ceil(times_s[0] / CELL_S) * CELL_S, now_s - HOUR_S + 1.0, CELL_S)
        if prices.max() <= prices.min() * (1.0 + float(rises.min())):
            # Nothing ever rose so far, whatever the weights.
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
        # All of the past together counts for `all_alike` moments, Laplace's one more among them.
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
    """What will be: the bound for every forecast, and of no use to anyone who has to decide now.

    Attributes:
        prices: The future included.
        name: For tables.
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
