"""ExoSphere's evaluation of portfolios (6.1): the frontier and its rivals, in sample and on later days."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.price_series import Floats
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.exosphere.candidates import (
    COVARIANCES,
    Candidates,
    Windows,
    assess,
    settled_s,
    with_unseen,
)
from ebbtide.policies.exosphere.portfolio import (
    Portfolio,
    best_portfolio,
    greedy_portfolio,
    weighted,
)
from ebbtide.policies.exosphere.solving import solve_portfolio

# Largest difference of savings, as a share of the on-demand price, at which portfolios count as equally cheap.
ABOUT = 0.01

ALPHAS = tuple(float(alpha) for alpha in np.round(np.logspace(-4, 4, 33), 10))

# The default risk aversion of an application.
MEDIUM_ALPHA = 1.0

_FIT_SHARE = 0.6

# Risks below this are rounding errors.
_NO_RISK = 1e-15


@dataclass(frozen=True, eq=False)
class Judged:
    """Markets and their covariance over a span of a record."""

    candidates: Candidates
    covariance: Floats

    def judge(self, weights: Floats) -> Portfolio:
        """The portfolio with these weights, by this span's figures."""
        return weighted(self.candidates, self.covariance, weights)


@dataclass(frozen=True, eq=False)
class PortfolioStudy:
    """Portfolios fitted on a record's first part.

    Attributes:
        fitted: Markets by the first part, with half a revocation added to those observed.
        later: The same markets by the later part.
        split_s: Start of the later part, seconds since 1970.
        frontier: Best portfolio by risk aversion.
        greedy: Greedy portfolio by number of markets.
        lowest_cost: Spot Fleet's lowest price: everything in the market with the cheapest cores at the time of the
            request, averaged over request times; its weights are the shares of times each market is chosen.
        lowest_cost_later: The same selection in the later part.
    """

    fitted: Judged
    later: Judged
    split_s: float
    frontier: Mapping[float, Portfolio]
    greedy: Mapping[int, Portfolio]
    lowest_cost: Portfolio
    lowest_cost_later: Portfolio

    @property
    def medium(self) -> Portfolio:
        """The portfolio of medium risk aversion."""
        return self.frontier[MEDIUM_ALPHA]

    def as_cheap_as(self, rival: Portfolio) -> Portfolio:
        """The portfolio of lowest risk that saves about as much as a rival; at worst only the best market."""
        low, high = 0.0, 1e6
        found = best_portfolio(self.fitted.candidates, self.fitted.covariance, low)
        for _ in range(60):
            alpha = np.sqrt(max(low, 1e-9) * high)
            portfolio = best_portfolio(self.fitted.candidates, self.fitted.covariance, float(alpha))
            if portfolio.saving >= rival.saving - ABOUT:
                found, low = portfolio, float(alpha)
            else:
                high = float(alpha)
            if high / max(low, 1e-9) < 1.001:
                break
        return found

    def against(self, rival: Portfolio) -> tuple[float, float]:
        """Ratio of risks to a rival with about the same saving, in the fitted part and later; NaN: it has none."""
        ours = self.as_cheap_as(rival)
        later, of_rival = self.later.judge(ours.weights), self.later.judge(rival.weights)
        return _ratio(ours.risk, rival.risk), _ratio(later.risk, of_rival.risk)

    def against_lowest_cost(self) -> tuple[float, float]:
        """Ratio of risks to Spot Fleet's lowest price, in the fitted and in the later part."""
        ours = self.as_cheap_as(self.lowest_cost)
        later = self.later.judge(ours.weights)
        return _ratio(ours.risk, self.lowest_cost.risk), _ratio(later.risk, self.lowest_cost_later.risk)

    def best_greedy(self) -> Portfolio:
        """The greedy portfolio, of one market or of many, that portfolios improve on least."""

        def improved(rival: Portfolio) -> float:
            over = self.against(rival)[0]
            # Nothing improves on a rival without risk.
            return math.inf if math.isnan(over) else over

        return max(self.greedy.values(), key=improved)


def portfolio_study(
    prices: PriceHistory,
    catalogue: Catalogue,
    *,
    covariance: str = "hybrid",
    alphas: Sequence[float] = ALPHAS,
    counts: Sequence[int] | None = None,
) -> PortfolioStudy:
    """Portfolios of all risk aversions and rivals, fitted on three fifths of a record and tested on the rest.

    Args:
        prices: Price history of the markets.
        catalogue: Instance types and their list prices.
        covariance: Name of a covariance in `COVARIANCES`.
        alphas: Risk aversions; the medium one is always added.
        counts: Numbers of markets of greedy rivals; by default all up to ten, then doubling.

    Raises:
        InputError: The record is too short.
    """
    start_s = settled_s(prices.start_s, prices.end_s)
    split_s = start_s + _FIT_SHARE * (prices.end_s - start_s)
    if split_s - start_s < DAY_S:
        raise InputError("the record is too short to fit portfolios on; some days are needed")
    fitted = _judged(prices, catalogue, start_s, split_s, covariance)
    same = prices.select(fitted.candidates.markets)
    later = _judged(same, catalogue, split_s, prices.end_s, covariance, bids=fitted.candidates)
    count = len(fitted.candidates.markets)
    doublings = [10 * 2**n for n in range(1, 12)]
    taken = counts or [*range(1, 11), *doublings, count]
    return PortfolioStudy(
        fitted,
        later,
        split_s,
        {
            alpha: best_portfolio(fitted.candidates, fitted.covariance, alpha)
            for alpha in sorted({*alphas, MEDIUM_ALPHA})
        },
        {
            number: greedy_portfolio(fitted.candidates, fitted.covariance, number)
            for number in sorted(set(taken))
            if number <= count
        },
        _lowest_cost(prices, fitted, catalogue, np.arange(start_s, split_s, HOUR_S)),
        _lowest_cost(prices, later, catalogue, np.arange(split_s, prices.end_s, HOUR_S)),
    )


def correlated(covariance: Floats, share: float = 0.9) -> Floats:
    """A covariance with the same variances and one correlation for all pairs of markets (Figure 7b)."""
    deviations = np.sqrt(np.maximum(covariance.diagonal(), 0.0))
    together = share * np.outer(deviations, deviations)
    found: Floats = together + np.diag((1.0 - share) * deviations**2)
    return found


def solving_seconds(count: int = 2_500, *, seed: int = 0, alpha: float = 5.0, rounds: int = 3) -> float:
    """Shortest time to solve a portfolio of `count` markets with a dense random covariance, seconds."""
    draws = np.random.default_rng(seed)
    loads = draws.normal(size=(count, 20))
    covariance = loads @ loads.T / 20 + np.diag(draws.uniform(0.01, 1.0, count))
    returns = draws.uniform(0.5, 0.9, count)
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        solve_portfolio(returns, covariance, alpha)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _lowest_cost(prices: PriceHistory, judged: Judged, catalogue: Catalogue, times_s: Floats) -> Portfolio:
    """The mean of Spot Fleet's lowest-price selections, one market each, at these times."""
    found = judged.candidates
    by_core = np.array(
        [prices[market].at_each(times_s) / catalogue.machine_of(market).vcpus for market in found.markets]
    )
    chosen = np.argmin(np.where(np.isnan(by_core), np.inf, by_core), axis=0)
    shares: Floats = np.bincount(chosen, minlength=len(found.markets)) / len(times_s)
    alone = judged.covariance.diagonal()
    return Portfolio(found.markets, shares, float(shares @ found.returns), float(shares @ alone))


def _judged(
    prices: PriceHistory,
    catalogue: Catalogue,
    start_s: float,
    end_s: float,
    covariance: str,
    bids: Candidates | None = None,
) -> Judged:
    candidates = assess(prices, catalogue.list_prices(end_s), start_s, end_s, bids_of=bids)
    if bids is None:
        candidates = candidates.where(lambda _: True)
    measure, size = COVARIANCES[covariance]
    windows = Windows.within(start_s, end_s)
    matrix = measure(prices, candidates, windows)
    return Judged(candidates, matrix if bids else with_unseen(matrix, windows, size))


def _ratio(ours: float, theirs: float) -> float:
    """The ratio of two risks; NaN over a rival without any."""
    return ours / theirs if theirs > _NO_RISK else math.nan
