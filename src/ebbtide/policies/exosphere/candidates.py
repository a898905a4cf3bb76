"""Statistics of markets for a portfolio from price history (ExoSphere 3.2, 3.3): savings, lifetimes, covariances.

For covariances (Equations 6 and 7), time is cut into windows of five minutes aligned to the clock, and events are
simultaneous if they fall into the same window. So the matrix of revocations is a product of a matrix with its own
transpose, and positive semidefinite; with sliding windows it need not be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

import numpy as np
import scipy

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats, PriceSeries

# Markets whose history begins within this time count as present from the start.
_SETTLING_S = 3 * DAY_S
_SETTLING_SHARE = 0.1

Record = Mapping[Market, PriceSeries]
ListPrice = Callable[[Market], float | None]


@dataclass(frozen=True, eq=False)
class Candidates:
    """Statistics of markets over a span of price history; one value per market, shape (n,).

    Attributes:
        markets: The markets, in the order of the arrays.
        on_demand_usd: The list price, USD per hour: the bid, and the base of savings.
        is_listed: Whether that price is known; else it is the highest price of the instance type in its region
            within the span. Spot has not cost more than on demand since 2017, so savings are underestimated.
        mean_usd: E[S], mean price over the whole span, USD per hour.
        mean_paid_usd: E[S] while the price was at or below the bid, USD per hour: what is really paid.
        watched_s: Length of the span, seconds.
        rented_s: Time at or below the bid, seconds.
        revocations: Number of times that the price rose above the bid.
    """

    markets: tuple[Market, ...]
    on_demand_usd: Floats
    is_listed: np.ndarray
    mean_usd: Floats
    mean_paid_usd: Floats
    watched_s: Floats
    rented_s: Floats
    revocations: np.ndarray

    @property
    def returns(self) -> Floats:
        """Savings against on demand, over the whole span (Equation 2), as fractions."""
        return 1.0 - self.mean_usd / self.on_demand_usd

    @property
    def returns_paid(self) -> Floats:
        """Savings while the price is at or below the bid, as fractions."""
        return 1.0 - self.mean_paid_usd / self.on_demand_usd

    @property
    def mttr_s(self) -> Floats:
        """Mean time to revocation, seconds: time rented over revocations observed; infinity where none was.

        This is the estimate for exponential lifetimes; it counts lifetimes that are right-censored at the end.
        """
        found = np.full(len(self.markets), np.inf)
        np.divide(self.rented_s, self.revocations, out=found, where=self.revocations > 0)
        return found

    @property
    def known_mttr_s(self) -> Floats:
        """Mean time to revocation, seconds; where none was observed, the time rented."""
        known: Floats = np.where(self.revocations > 0, self.mttr_s, self.rented_s)
        return known

    @property
    def revocations_per_s(self) -> Floats:
        """Revocation rate per second, with half a revocation added to those observed (Jeffreys' prior)."""
        rates: Floats = (self.revocations + 0.5) / np.maximum(self.rented_s, 1.0)
        return rates

    def where(
        self, wanted: Callable[[Market], bool], *, least_mttr_s: float = 0.0, least_share: float = 0.5
    ) -> Candidates:
        """The markets that meet an application's constraints and live long enough for its jobs.

        Args:
            wanted: Whether a market meets the constraints.
            least_mttr_s: Minimum mean time to revocation, seconds.
            least_share: Minimum share of the time at or below the bid. A market that is never available is never
                revoked, and would look safe.

        Raises:
            InputError: No market does.
        """
        kept = [place for place, market in enumerate(self.markets) if wanted(market)]
        known_s = self.known_mttr_s
        share = self.rented_s / self.watched_s
        kept = [place for place in kept if known_s[place] >= least_mttr_s and share[place] >= least_share]
        if not kept:
            lives = f" and live {least_mttr_s / HOUR_S:g} h in the mean" if least_mttr_s else ""
            raise InputError(
                f"of {len(self.markets)} markets none meets the constraints; they must be available "
                f"{least_share:.0%} of the time{lives}"
            )
        return self.take(kept)

    def take(self, places: Iterable[int]) -> Candidates:
        """Some of the candidates, by index."""
        chosen = np.array(list(places), dtype=np.int64)
        arrays = (getattr(self, field.name)[chosen] for field in fields(self)[1:])
        return Candidates(tuple(self.markets[place] for place in chosen.tolist()), *arrays)


def settled_s(start_s: float, end_s: float) -> float:
    """Time by which all initial markets of a record have a price (first prices arrive one by one), seconds."""
    return start_s + min(_SETTLING_S, _SETTLING_SHARE * (end_s - start_s))


def assess(
    prices: Record,
    list_price: ListPrice,
    start_s: float,
    end_s: float,
    *,
    bids_of: Candidates | None = None,
) -> Candidates:
    """Statistics of every market that has a price at the start of a span.

    Args:
        prices: Price history, by market.
        list_price: Gives the on-demand price of a market, USD per hour, or None.
        start_s: Start of the span, seconds since 1970.
        end_s: End of the span, seconds since 1970.
        bids_of: Use the bids of these candidates, from an earlier span, instead of new ones.

    Raises:
        InputError: The span is empty, or no market has a price at its start.
    """
    if not start_s < end_s:
        raise InputError("the span that markets are judged by is empty")
    chosen = [market for market, series in prices.items() if series.times_s[0] <= start_s]
    if not chosen:
        raise InputError("no market has a price at the start of the span; prices are needed from there on")
    bids = _bids(prices, chosen, list_price, start_s, end_s)
    if bids_of is not None:
        known = zip(bids_of.on_demand_usd.tolist(), bids_of.is_listed.tolist(), strict=True)
        bids |= dict(zip(bids_of.markets, known, strict=True))
    rows = [(*bids[market], *_seen(prices[market], start_s, end_s, bids[market][0])) for market in chosen]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Candidates(tuple(chosen), *columns)


def _bids(
    prices: Record,
    markets: Iterable[Market],
    list_price: ListPrice,
    start_s: float,
    end_s: float,
) -> dict[Market, tuple[float, bool]]:
    """On-demand prices, USD per hour, and whether they are known."""
    highest: dict[tuple[str, str, str], float] = {}
    for market in markets:
        _, seen = prices[market].between(start_s, end_s)
        kind = (market.cloud, market.region, market.instance_type)
        highest[kind] = max(highest.get(kind, 0.0), float(seen.max()))
    found = {}
    for market in markets:
        listed = list_price(market)
        seen_at_most = highest[market.cloud, market.region, market.instance_type]
        found[market] = (seen_at_most, False) if listed is None else (listed, True)
    return found


def _seen(series: PriceSeries, start_s: float, end_s: float, bid: float) -> tuple[float, float, float, float, int]:
    """Mean price, mean price at or below the bid, length of the span, time at or below the bid, rises above it."""
    times_s, usd = series.between(start_s, end_s)
    lasted_s = np.diff(np.append(times_s, end_s))
    low = usd <= bid
    rented_s = float(lasted_s[low].sum())
    mean = float(usd @ lasted_s) / (end_s - start_s)
    paid = float(usd[low] @ lasted_s[low]) / rented_s if rented_s else bid
    return mean, paid, end_s - start_s, rented_s, int((low[:-1] & ~low[1:]).sum())


WINDOW_S = 300.0

# The price that stands for an unavailable machine, as a multiple of on demand: the most that spot may cost.
PENALTY = 10.0

# Windows processed together: memory holds this many prices of every market.
_BLOCK = 2048


@dataclass(frozen=True)
class Windows:
    """Consecutive windows of time, aligned to the clock.

    Attributes:
        start_s: Start of the first window, seconds since 1970.
        count: The number of windows.
    """

    start_s: float
    count: int

    @classmethod
    def within(cls, start_s: float, end_s: float) -> Windows:
        """All windows that lie wholly within a span."""
        first = int(np.ceil(start_s / WINDOW_S))
        return cls(first * WINDOW_S, max(int(end_s // WINDOW_S) - first, 0))

    def blocks(self) -> Iterator[Floats]:
        """Start times of the windows, seconds since 1970, in blocks."""
        for first in range(0, self.count, _BLOCK):
            places: Floats = np.arange(first, min(first + _BLOCK, self.count), dtype=np.float64)
            yield self.start_s + places * WINDOW_S


def price_covariance(prices: Record, candidates: Candidates, windows: Windows) -> Floats:
    """Covariance of prices, as shares of on demand, at the starts of windows (Equation 6); shape (n, n)."""
    return _covariance(prices, candidates, windows, lambda ratio: ratio)


def hybrid_covariance(prices: Record, candidates: Candidates, windows: Windows) -> Floats:
    """Covariance of prices, with ten times on demand where the price is not below the bid; shape (n, n)."""
    return _covariance(prices, candidates, windows, lambda ratio: np.where(ratio < 1.0, ratio, PENALTY))


def revocation_covariance(prices: Record, candidates: Candidates, windows: Windows) -> Floats:
    """Share of windows in which machines of both markets are revoked (Equation 7); shape (n, n)."""
    places = [
        _revoked(prices[market], windows, bid)
        for market, bid in zip(candidates.markets, candidates.on_demand_usd.tolist(), strict=True)
    ]
    starts = np.cumsum([0, *(len(seen) for seen in places)])
    shape = (len(places), windows.count)
    seen = scipy.sparse.csr_array((np.ones(starts[-1]), np.concatenate(places), starts), shape=shape)
    return np.asarray((seen @ seen.T).toarray() / windows.count)


# Each covariance with the weight of a revocation in it.
COVARIANCES: Mapping[str, tuple[Callable[[Record, Candidates, Windows], Floats], float]] = {
    "price": (price_covariance, 1.0),
    "revocation": (revocation_covariance, 1.0),
    "hybrid": (hybrid_covariance, PENALTY),
}


def with_unseen(covariance: Floats, windows: Windows, size: float) -> Floats:
    """The covariance with the variance of half a revocation added to each market.

    No observed revocation does not mean that none can happen: without this, a market whose price never changed has
    no risk, and a portfolio consists of it alone. Half a revocation is Jeffreys' prior for the rate of rare
    events.

    Args:
        covariance: Result of one of the functions above, shape (n, n).
        windows: The windows that it was computed from.
        size: Weight of a revocation in it: 1, or PENALTY.
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
        # Only half of the matrix; LAPACK sees a block's rows as columns.
        squares = scipy.linalg.blas.dsyrk(1.0, block.T, beta=1.0, c=squares, trans=1, lower=1, overwrite_c=1)
    squares /= windows.count
    found: Floats = np.tril(squares)
    found += np.tril(squares, -1).T
    return found


def _revoked(series: PriceSeries, windows: Windows, bid: float) -> np.ndarray:
    """Indices of the windows in which the price rises above the bid."""
    times_s, usd = series.between(windows.start_s, windows.start_s + windows.count * WINDOW_S)
    rises = np.flatnonzero((usd[:-1] <= bid) & (usd[1:] > bid)) + 1
    return np.unique(((times_s[rises] - windows.start_s) // WINDOW_S).astype(np.int64))
