"""Portfolios of candidates: weights by aversion to risk, their frontier, a cache of them (ExoSphere 3.3, 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ebbtide.errors import InputError
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.policies.exosphere.candidates import Candidates
from ebbtide.policies.exosphere.solving import solve_portfolio

# A market with less of the weight gets no machine of a cluster of a thousand (6.2).
_LEAST_WEIGHT = 1e-3


@dataclass(frozen=True, eq=False)
class Portfolio:
    """How a cluster is spread over markets.

    Attributes:
        markets: Which.
        weights: Share of the resources in each, shape (n,).
        saving: Expected, of the on-demand price.
        risk: x' V x, in the units of the covariance.
    """

    markets: tuple[Market, ...]
    weights: Floats
    saving: float
    risk: float

    @property
    def used(self) -> dict[Market, float]:
        """The markets that get a machine of a cluster of a thousand, the largest first."""
        return _used(self.markets, self.weights)

    @property
    def shares(self) -> dict[Market, float]:
        """The weights of the markets used, summing to 1."""
        return shares_of(self.markets, self.weights)

    def mttr_s(self, candidates: Candidates) -> float:
        """Of a machine of it: revocations add up, by weight; infinity if none was seen."""
        shares = self.shares
        weights = np.array([shares.get(market, 0.0) for market in candidates.markets])
        rate = float(weights @ (1.0 / candidates.mttr_s))
        return 1.0 / rate if rate else float("inf")


def shares_of(markets: tuple[Market, ...], weights: Floats) -> dict[Market, float]:
    """Weights of the markets that get a machine of a cluster of a thousand, summing to 1, the largest first."""
    used = _used(markets, weights)
    total = sum(used.values())
    return {market: weight / total for market, weight in used.items()}


def _used(markets: tuple[Market, ...], weights: Floats) -> dict[Market, float]:
    chosen = np.flatnonzero(weights >= min(_LEAST_WEIGHT, float(weights.max())))
    order = chosen[np.argsort(-weights[chosen], kind="stable")]
    return {markets[place]: float(weights[place]) for place in order.tolist()}


def weighted(candidates: Candidates, covariance: Floats, weights: Floats) -> Portfolio:
    """A portfolio of given weights, whoever chose them."""
    saving, risk = float(candidates.returns @ weights), float(weights @ covariance @ weights)
    return Portfolio(candidates.markets, weights, saving, risk)


def best_portfolio(candidates: Candidates, covariance: Floats, alpha: float) -> Portfolio:
    """The best for an aversion to risk (Equation 5)."""
    return weighted(candidates, covariance, solve_portfolio(candidates.returns, covariance, alpha))


def frontier(candidates: Candidates, covariance: Floats, alphas: Sequence[float]) -> list[Portfolio]:
    """The best for each of several (Figure 3)."""
    return [best_portfolio(candidates, covariance, alpha) for alpha in alphas]


def greedy_portfolio(candidates: Candidates, covariance: Floats, count: int) -> Portfolio:
    """So many of those that save most, in equal parts (6.1); one: Spot Fleet's lowest cost; all: its diversified.

    Raises:
        InputError: There are not so many.
    """
    if not 1 <= count <= len(candidates.markets):
        raise InputError(f"{count} of {len(candidates.markets)} markets; from 1 to all of them are possible")
    weights = np.zeros(len(candidates.markets))
    weights[np.argsort(-candidates.returns, kind="stable")[:count]] = 1.0 / count
    return weighted(candidates, covariance, weights)


@dataclass(eq=False)
class PortfolioCache:
    """Portfolios solved before: construction is a look-up where nothing constrains it (5).

    Attributes:
        candidates: Of all of them.
        covariance: Theirs.
    """

    candidates: Candidates
    covariance: Floats
    _known: dict[float, Portfolio] = field(default_factory=dict)

    def get(self, alpha: float) -> Portfolio:
        """The best for an aversion to risk."""
        if alpha not in self._known:
            self._known[alpha] = best_portfolio(self.candidates, self.covariance, alpha)
        return self._known[alpha]
