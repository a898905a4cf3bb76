"""What goes together: covariances of prices, of revocations, and of both (ExoSphere 3.3, Equations 6 and 7).

Time is cut into windows of five minutes on the clock. Simultaneous is what is in one window: so the matrix is one
of products of a thing with itself, and positive semidefinite, as one of sliding windows need not be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.linalg.blas import dsyrk
from scipy.sparse import csr_array

from ebbtide.market.price_series import Floats, PriceSeries
from ebbtide.policies.exosphere.candidates import Candidates, Record

WINDOW_S = 300.0

# What a machine that cannot be had counts as, of the on-demand price: the most that spot may cost.
PENALTY = 10.0

# Windows looked at together: what is in memory is so many prices of every market.
_BLOCK = 2048


@dataclass(frozen=True)
class Windows:
    """Windows on the clock.

    Attributes:
        start_s: Where the first begins.
        count: How many.
    """

    start_s: float
    count: int

    @classmethod
    def within(cls, start_s: float, end_s: float) -> Windows:
        """All that are wholly within a span."""
        first = int(np.ceil(start_s / WINDOW_S))
        return cls(first * WINDOW_S, max(int(end_s // WINDOW_S) - first, 0))

    def blocks(self) -> Iterator[Floats]:
        """The times at which they begin, some at a time."""
        for first in range(0, self.count, _BLOCK):
            places: Floats = np.arange(first, min(first + _BLOCK, self.count), dtype=np.float64)
            yield self.start_s + places * WINDOW_S


def price_covariance(prices: Record, candidates: Candidates, windows: Windows) -> Floats:
    """Of prices over on-demand prices at the beginnings of windows (Equation 6); shape (n, n)."""
    return _covariance(prices, candidates, windows, lambda ratio: ratio)


def hybrid_covariance(prices: Record, candidates: Candidates, windows: Windows) -> Floats:
    """The same, with ten times the on-demand price wherever the price is not below it, the bid."""
    return _covariance(prices, candidates, windows, lambda ratio: np.where(ratio < 1.0, ratio, PENALTY))


def revocation_covariance(prices: Record, candidates: Candidates, windows: Windows) -> Floats:
    """Shares of windows in which machines of both markets are taken (Equation 7); shape (n, n)."""
    places = [
        _revoked(prices[market], windows, bid)
        for market, bid in zip(candidates.markets, candidates.on_demand_usd.tolist(), strict=True)
    ]
    starts = np.cumsum([0, *(len(seen) for seen in places)])
    shape = (len(places), windows.count)
    seen = csr_array((np.ones(starts[-1]), np.concatenate(places), starts), shape=shape)
    return np.asarray((seen @ seen.T).toarray() / windows.count)


# Each with what a revocation counts for in it.
COVARIANCES: Mapping[str, tuple[Callable[[Record, Candidates, Windows], Floats], float]] = {
    "price": (price_covariance, 1.0),
    "revocation": (revocation_covariance, 1.0),
    "hybrid": (hybrid_covariance, PENALTY),
}


def with_unseen(covariance: Floats, windows: Windows, size: float) -> Floats:
    """The same, and of each market alone the variance of half a revocation more in all that time.

    That none was seen does not mean that there is none: without this, a market whose price stood still is without
    risk, and a portfolio puts all on it. Half a one is Jeffreys' prior for how often a rare thing happens.

    Args:
        covariance: Of one of the functions above.
        windows: That it was made from.
        size: Of a revocation there: 1, or PENALTY.
    """
    found: Floats = covariance + np.diag(np.full(len(covariance), 0.5 * size**2 / max(windows.count, 1)))
    return found


def _covariance(
    prices: Record, candidates: Candidates, windows: Windows, change: Callable[[Floats], Floats]
) -> Floats:
    size = len(candidates.markets)
    listed = candidates.on_demand_usd
    series = [prices[market] for market in candidates.markets]

    def blocks() -> Iterator[Floats]:
        for times_s in windows.blocks():
            found = np.empty((size, len(times_s)))
            for row, one in enumerate(series):
                found[row] = one.at_each(times_s)
            yield change(found / listed[:, None])

    sums = np.zeros(size)
    for block in blocks():
        sums += block.sum(axis=1)
    means = sums / windows.count
    squares = np.zeros((size, size), order="F")
    for block in blocks():
        block -= means[:, None]
        # Half of the matrix; a block's rows are the columns of what LAPACK sees.
        squares = dsyrk(1.0, block.T, beta=1.0, c=squares, trans=1, lower=1, overwrite_c=1)
    squares /= windows.count
    found: Floats = np.tril(squares)
    found += np.tril(squares, -1).T
    return found


def _revoked(series: PriceSeries, windows: Windows, bid: float) -> np.ndarray:
    """The windows in which the price rises above the bid."""
    times_s, usd = series.between(windows.start_s, windows.start_s + windows.count * WINDOW_S)
    rises = np.flatnonzero((usd[:-1] <= bid) & (usd[1:] > bid)) + 1
    return np.unique(((times_s[rises] - windows.start_s) // WINDOW_S).astype(np.int64))
