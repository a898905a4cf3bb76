"""What price history says of markets for a portfolio (ExoSphere 3.2, 3.3): savings, lifetimes, covariances.

For covariances (Equations 6 and 7), time is cut into windows of five minutes aligned to the clock, and events are
simultaneous if they fall into the same window. So the matrix of revocations is a product of a matrix with its own
transpose, and positive semidefinite; with sliding windows it need not be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

import numpy as np
from scipy.linalg.blas import dsyrk
from scipy.sparse import csr_array

from ebbtide._utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats, PriceSeries

# Markets that begin this soon count as there from the start.
_SETTLING_S = 3 * DAY_S
_SETTLING_SHARE = 0.1

Record = Mapping[Market, PriceSeries]
ListPrice = Callable[[Market], float | None]


@dataclass(frozen=True, eq=False)
class Candidates:
    """What a span of a record says of markets; a value each, shape (n,).

    Attributes:
        markets: Which.
        on_demand_usd: The list price, USD per hour: what is bid, and what savings are measured by.
        is_listed: Whether that price is known; else it is the highest that the market's type had in its region
            within the span. Spot has not been dearer than on demand since 2017: so savings are rather too low.
        mean_usd: E[S], over all time.
        mean_paid_usd: E[S] while the price was at or below the bid: what is really paid.
        watched_s: How long the span is.
        rented_s: Time at or below the bid.
        revocations: How often a machine was taken: once for each time that the price rose above the bid.
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
        """Savings on on demand, over all time (Equation 2)."""
        return 1.0 - self.mean_usd / self.on_demand_usd

    @property
    def returns_paid(self) -> Floats:
        """Savings of who pays no more than the bid."""
        return 1.0 - self.mean_paid_usd / self.on_demand_usd

    @property
    def mttr_s(self) -> Floats:
        """Mean time to revocation: time rented over revocations seen; infinity where none was.

        So the time of those not yet taken at the end counts, though their end is not known (the exponential
        law's estimate).
        """
        found = np.full(len(self.markets), np.inf)
        np.divide(self.rented_s, self.revocations, out=found, where=self.revocations > 0)
        return found

    @property
    def known_mttr_s(self) -> Floats:
        """The same; where no revocation was seen, as long as was watched, and no more."""
        known: Floats = np.where(self.revocations > 0, self.mttr_s, self.rented_s)
        return known

    @property
    def revocations_per_s(self) -> Floats:
        """How often a machine is taken, half a revocation more than were seen counted (Jeffreys' prior)."""
        rates: Floats = (self.revocations + 0.5) / np.maximum(self.rented_s, 1.0)
        return rates

    def where(
        self, wanted: Callable[[Market], bool], *, least_mttr_s: float = 0.0, least_share: float = 0.5
    ) -> Candidates:
        """Those that meet an application's constraints, and live long enough for its jobs.

        Args:
            wanted: The constraints.
            least_mttr_s: At least so long to revocation.
            least_share: To be had for at least so much of the time. What is never to be had is never taken, and
                would look safe.

        Raises:
            InputError: None does.
        """
        kept = [place for place, market in enumerate(self.markets) if wanted(market)]
        known_s = self.known_mttr_s
        share = self.rented_s / self.watched_s
        kept = [place for place in kept if known_s[place] >= least_mttr_s and share[place] >= least_share]
        if not kept:
            lives = f" and live {least_mttr_s / HOUR_S:g} h in the mean" if least_mttr_s else ""
            raise InputError(
                f"of {len(self.markets)} markets none meets the constraints; they must be to be had "
                f"{least_share:.0%} of the time{lives}"
            )
        return self.take(kept)

    def take(self, places: Iterable[int]) -> Candidates:
        """Some of them, by place."""
        chosen = np.array(list(places), dtype=np.int64)
        arrays = (getattr(self, field.name)[chosen] for field in fields(self)[1:])
        return Candidates(tuple(self.markets[place] for place in chosen.tolist()), *arrays)


def settled_s(start_s: float, end_s: float) -> float:
    """From when on a record tells of all markets that it begins with: their first prices come one by one."""
    return start_s + min(_SETTLING_S, _SETTLING_SHARE * (end_s - start_s))


def assess(
    prices: Record,
    list_price: ListPrice,
    start_s: float,
    end_s: float,
    *,
    bids_of: Candidates | None = None,
) -> Candidates:
    """What a span says of every market that has a price from its start on.

    Args:
        prices: The record.
        list_price: The on-demand price of a market, USD per hour, if it is known.
        start_s: The span's start.
        end_s: Its end.
        bids_of: Take their on-demand prices: what was bid before is bid in this span, too.

    Raises:
        InputError: The span is empty, or no market has a price at its start.
    """
    if not start_s < end_s:
        raise InputError("the span that markets are judged by is empty")
    chosen = [market for market, series in prices.items() if series.times_s[0] <= start_s]
    if not chosen:
        raise InputError("no market has a price at the start of the span")
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
    """On-demand prices, and whether they are known."""
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
    """Mean price, mean price at or below the bid, time in all and there, rises above it."""
    times_s, usd = series.between(start_s, end_s)
    lasted_s = np.diff(np.append(times_s, end_s))
    low = usd <= bid
    rented_s = float(lasted_s[low].sum())
    mean = float(usd @ lasted_s) / (end_s - start_s)
    paid = float(usd[low] @ lasted_s[low]) / rented_s if rented_s else bid
    return mean, paid, end_s - start_s, rented_s, int((low[:-1] & ~low[1:]).sum())


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
