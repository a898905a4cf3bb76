"""Portfolios of markets: weights by risk aversion, rival selections, and portfolios built from a view
(ExoSphere 3.3, 5, 6.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.jobs.job import Job
from ebbtide.market.catalogue import InstanceType
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats, PriceSeries
from ebbtide.policies.api.view import View
from ebbtide.policies.exosphere.applications import PortfolioMttr, PortfolioRequest
from ebbtide.policies.exosphere.candidates import (
    COVARIANCES,
    PENALTY,
    WINDOW_S,
    Candidates,
    Windows,
    assess,
    price_covariance,
    with_unseen,
)
from ebbtide.policies.exosphere.solving import solve_portfolio
from ebbtide.policies.risk import LOSSES_TOGETHER, SHORTAGES_TOGETHER, MarketRisk, together

# Time from the request for a server to work on it, seconds.
_START_S = 120.0

# A market with a smaller weight gets no machine in a cluster of a thousand (6.2).
_LEAST_WEIGHT = 1e-3


@dataclass(frozen=True, eq=False)
class Portfolio:
    """The distribution of a cluster over markets.

    Attributes:
        markets: The candidate markets, in the order of the weights.
        weights: Share of the resources in each market, shape (n,).
        saving: Expected saving, as a fraction of the on-demand price.
        risk: x' V x, in the units of the covariance.
    """

    markets: tuple[Market, ...]
    weights: Floats
    saving: float
    risk: float

    @property
    def used(self) -> dict[Market, float]:
        """Weights of the markets that get a machine in a cluster of a thousand, the largest first."""
        return _used(self.markets, self.weights)

    @property
    def shares(self) -> dict[Market, float]:
        """Weights of the used markets, scaled to sum to 1."""
        return shares_of(self.markets, self.weights)

    def mttr_s(self, candidates: Candidates) -> float:
        """Mean time to revocation of a machine, seconds: rates add up by weight; infinity if none was observed."""
        shares = self.shares
        weights = np.array([shares.get(market, 0.0) for market in candidates.markets])
        rate = float(weights @ (1.0 / candidates.mttr_s))
        return 1.0 / rate if rate else float("inf")


def shares_of(markets: tuple[Market, ...], weights: Floats) -> dict[Market, float]:
    """Weights of the markets that get a machine in a cluster of a thousand, scaled to sum to 1, largest first."""
    used = _used(markets, weights)
    total = sum(used.values())
    return {market: weight / total for market, weight in used.items()}


def _used(markets: tuple[Market, ...], weights: Floats) -> dict[Market, float]:
    chosen = np.flatnonzero(weights >= min(_LEAST_WEIGHT, float(weights.max())))
    order = chosen[np.argsort(-weights[chosen], kind="stable")]
    return {markets[place]: float(weights[place]) for place in order.tolist()}


def weighted(candidates: Candidates, covariance: Floats, weights: Floats) -> Portfolio:
    """The portfolio with given weights, shape (n,)."""
    saving, risk = float(candidates.returns @ weights), float(weights @ covariance @ weights)
    return Portfolio(candidates.markets, weights, saving, risk)


def best_portfolio(candidates: Candidates, covariance: Floats, alpha: float) -> Portfolio:
    """The best portfolio for a risk aversion (Equation 5)."""
    return weighted(candidates, covariance, solve_portfolio(candidates.returns, covariance, alpha))


def frontier(candidates: Candidates, covariance: Floats, alphas: Sequence[float]) -> list[Portfolio]:
    """The best portfolio for each risk aversion (Figure 3)."""
    return [best_portfolio(candidates, covariance, alpha) for alpha in alphas]


def greedy_portfolio(candidates: Candidates, covariance: Floats, count: int) -> Portfolio:
    """The `count` markets that save most, in equal parts (6.1); one: Spot Fleet's lowest cost; all: diversified.

    Raises:
        InputError: The count is not between 1 and the number of markets.
    """
    if not 1 <= count <= len(candidates.markets):
        raise InputError(f"{count} of {len(candidates.markets)} markets; from 1 to all of them are possible")
    weights = np.zeros(len(candidates.markets))
    weights[np.argsort(-candidates.returns, kind="stable")[:count]] = 1.0 / count
    return weighted(candidates, covariance, weights)


@dataclass(eq=False)
class PortfolioCache:
    """A cache of solved portfolios: without constraints, construction is a look-up (5).

    Attributes:
        candidates: The markets of all the portfolios.
        covariance: Covariance of the markets, shape (n, n).
    """

    candidates: Candidates
    covariance: Floats
    _known: dict[float, Portfolio] = field(default_factory=dict)

    def get(self, alpha: float) -> Portfolio:
        """The best portfolio for a risk aversion."""
        if alpha not in self._known:
            self._known[alpha] = best_portfolio(self.candidates, self.covariance, alpha)
        return self._known[alpha]


class Selection(StrEnum):
    """The rule that selects markets for a cluster: ExoSphere's portfolios, or a rival (ExoSphere 6.1)."""

    PORTFOLIO = "portfolio"
    LOWEST_COST = "lowest-cost"  # Spot Fleet: the market with the lowest price per core now
    DIVERSIFIED = "diversified"  # Spot Fleet: all markets in equal parts
    CHEAPEST = "cheapest"  # the market that saved most while at or below the bid
    GREEDY = "greedy"  # the ten markets that saved most, in equal parts


# Number of markets of the greedy selection (6.1 tries several; Figure 7a).
_GREEDY_COUNT = 10


def rival_weights(
    selection: Selection,
    found: Candidates,
    price: Callable[[Market], float],
    machine: Callable[[Market], InstanceType],
) -> Floats:
    """The weights that a rival selection gives to markets.

    Args:
        selection: Any selection but `PORTFOLIO`.
        found: Candidate markets, n of them.
        price: Gives the current price of a market, USD per hour.
        machine: Gives the instance type of a market.

    Returns:
        Weights, shape (n,); they sum to 1.
    """
    by_core: Floats = np.array([price(market) / machine(market).vcpus for market in found.markets])
    orders: Mapping[Selection, tuple[Floats, int]] = {
        Selection.LOWEST_COST: (by_core, 1),
        Selection.DIVERSIFIED: (by_core, len(by_core)),
        Selection.GREEDY: (-found.returns, _GREEDY_COUNT),
        Selection.CHEAPEST: (-found.returns_paid, 1),
    }
    values, count = orders[selection]
    chosen = np.argsort(values, kind="stable")[:count]
    weights = np.zeros(len(values))
    weights[chosen] = 1.0 / len(chosen)
    return weights


# Markets whose history begins within this share of the past count as known for all of it.
_SETTLING_SHARE = 0.1

# A candidate is available for this share of the time, unless no market is.
_LEAST_SHARES = (0.5, 0.0)


@dataclass(frozen=True)
class Holding:
    """Market in a portfolio, with its share and bid.

    Attributes:
        market: The market to rent in.
        share: Share of the cluster's resources, 0 to 1.
        bid_usd_per_hour: The on-demand price, or the highest observed price of the type where that is unknown.
    """

    market: Market
    share: float
    bid_usd_per_hour: float


def construct(
    view: View,
    job: Job,
    request: PortfolioRequest,
    *,
    history_s: float,
    covariance: str,
    selection: Selection = Selection.PORTFOLIO,
    without: Iterable[Market] = (),
    risk: MarketRisk | None = None,
) -> tuple[Holding, ...]:
    """The best portfolio of the markets that can be rented now; empty if there is none.

    If no market lives as long as the request wants, those that live longest are used. Losses for capacity count in
    how long markets live only for a job without checkpoints; for others they cost time, which counts in what
    markets save.

    Args:
        view: Current and past prices.
        job: The job to run.
        request: The portfolio request of the application.
        history_s: Length of the price history used, seconds.
        covariance: Name of a covariance in `COVARIANCES`.
        selection: The rule that selects markets.
        without: Markets that are not available.
        risk: Risk of losing machines for capacity; None: prices alone, as published.
    """
    avoided = set(without)
    suitable = [market for market in view.markets if market not in avoided and _suits(view, job, request, market)]
    series, start_s = _past(view, suitable, history_s)
    found = _candidates(view, request, series, start_s, None if job.checkpoint else risk)
    if found is None:
        return ()
    if risk is not None:
        found = _with_losses(found, job, risk)
    if selection is not Selection.PORTFOLIO:
        weights = rival_weights(selection, found, view.price, view.machine)
    elif request.alpha == 0.0:
        weights = solve_portfolio(found.returns, np.zeros((len(found.markets),) * 2), 0.0)
    else:
        matrix = _covariance(covariance, series, found, start_s, view.now_s, risk)
        weights = solve_portfolio(found.returns, matrix, request.alpha)
    bids = dict(zip(found.markets, found.on_demand_usd.tolist(), strict=True))
    shares = shares_of(found.markets, weights)
    return tuple(Holding(market, share, bids[market]) for market, share in shares.items())


@dataclass(frozen=True, eq=False)
class Assessed:
    """A portfolio with what is known of its markets.

    Attributes:
        portfolio: The best portfolio for a request.
        candidates: Statistics of the markets, in the order of its weights.
        prices: Covariance of prices as shares of the on-demand price, shape (n, n).
    """

    portfolio: Portfolio
    candidates: Candidates
    prices: Floats


def assessed(view: View, job: Job, request: PortfolioRequest, *, history_s: float, covariance: str) -> Assessed:
    """The portfolio that `construct` makes, with the statistics that it is made from.

    Args:
        view: Current and past prices.
        job: The job to run.
        request: The portfolio request of the application.
        history_s: Length of the price history used, seconds.
        covariance: Name of a covariance in `COVARIANCES`.

    Raises:
        InputError: No market that the job can run in can be rented now.
    """
    suitable = [market for market in view.markets if _suits(view, job, request, market)]
    series, start_s = _past(view, suitable, history_s)
    found = _candidates(view, request, series, start_s)
    if found is None:
        raise InputError(f"no market in which job {job.name} can run can be rented at the on-demand price now")
    matrix = _covariance(covariance, series, found, start_s, view.now_s)
    windows = Windows.within(start_s, view.now_s)
    return Assessed(best_portfolio(found, matrix, request.alpha), found, price_covariance(series, found, windows))


def _candidates(
    view: View,
    request: PortfolioRequest,
    series: Mapping[Market, PriceSeries],
    start_s: float,
    risk: MarketRisk | None = None,
) -> Candidates | None:
    """Markets that can be rented now and live long enough; None: there is none."""
    if not series:
        return None
    known = assess(series, view.on_demand_price, start_s, view.now_s)
    bids = dict(zip(known.markets, known.on_demand_usd.tolist(), strict=True))
    places = [
        place
        for place, market in enumerate(known.markets)
        if view.price(market) <= request.price_threshold * bids[market]
    ]
    return _living(known.take(places), request.least_mttr_s, risk) if places else None


def _covariance(
    name: str,
    series: Mapping[Market, PriceSeries],
    found: Candidates,
    start_s: float,
    end_s: float,
    risk: MarketRisk | None = None,
) -> Floats:
    """A covariance of `COVARIANCES`, with revocations that were not seen; shape (n, n)."""
    measure, size = COVARIANCES[name]
    windows = Windows.within(start_s, end_s)
    matrix = with_unseen(measure(series, found, windows), windows, size)
    return matrix if risk is None else matrix + _of_capacity(name, found, risk)


def _with_losses(found: Candidates, job: Job, risk: MarketRisk) -> Candidates:
    """The candidates at the prices of hours that train: losses of machines take time, too."""
    factors = 1.0 + np.array([risk.overhead(job, market, _START_S, is_saved=True) for market in found.markets])
    return replace(found, mean_usd=found.mean_usd * factors, mean_paid_usd=found.mean_paid_usd * factors)


def _of_capacity(name: str, found: Candidates, risk: MarketRisk) -> Floats:
    """The part of a covariance that is due to capacity; shape (n, n).

    Of revocations, the share of windows in which machines of both markets are lost; of the hybrid covariance, ten
    times on demand while a market has no machine.
    """
    markets = found.markets
    if name == "revocation":
        rates = np.array([risk.losses(market) for market in markets]) * WINDOW_S / HOUR_S
        return together(markets, np.sqrt(rates), LOSSES_TOGETHER)
    if name == "hybrid":
        down = np.array([risk.share_down(market) for market in markets])
        return together(markets, PENALTY * np.sqrt(down * (1.0 - down)), SHORTAGES_TOGETHER)
    return np.zeros((len(markets), len(markets)))


def time_to_revocation(
    view: View, holdings: Sequence[Holding], history_s: float, risk: MarketRisk | None = None
) -> PortfolioMttr:
    """Mean time to revocation of a portfolio and of its markets.

    Args:
        view: Current and past prices.
        holdings: The portfolio.
        history_s: Length of the price history used, seconds.
        risk: Risk of losing machines for capacity, whose losses in the next hour count; None: prices alone.
    """
    bids = {holding.market: holding.bid_usd_per_hour for holding in holdings}
    series, start_s = _past(view, list(bids), history_s)
    found = assess(series, bids.get, start_s, view.now_s)
    rates = dict(zip(found.markets, found.revocations_per_s.tolist(), strict=True))
    if risk is not None:
        rates = {market: rate + risk.losses(market) / HOUR_S for market, rate in rates.items()}
    known = [holding for holding in holdings if holding.market in rates]
    total = sum(holding.share for holding in known)
    rate = sum(holding.share * rates[holding.market] for holding in known) / total
    return PortfolioMttr(1.0 / rate, {market: 1.0 / rate for market, rate in rates.items()})


def _suits(view: View, job: Job, request: PortfolioRequest, market: Market) -> bool:
    if request.instance_types and market.instance_type not in request.instance_types:
        return False
    return view.steps_per_s(job, market) > 0.0


def _past(view: View, markets: Sequence[Market], history_s: float) -> tuple[dict[Market, PriceSeries], float]:
    """Past prices by market, and the time since which all of them are known."""
    series = {}
    for market in markets:
        times_s, usd = view.past_prices(market, history_s)
        if len(times_s):
            series[market] = PriceSeries(times_s, usd)
    if not series:
        return {}, view.now_s
    begun = np.array([float(one.times_s[0]) for one in series.values()])
    settled_s = begun.min() + _SETTLING_SHARE * (view.now_s - begun.min())
    start_s = float(begun[begun <= settled_s].max())
    if view.now_s - start_s < HOUR_S:
        # Almost no history: assume that the first known price held for an hour.
        start_s = view.now_s - HOUR_S
        for market, one in series.items():
            times_s = one.times_s.copy()
            times_s[0] = min(times_s[0], start_s)
            series[market] = PriceSeries(times_s, one.prices)
    return series, start_s


def _living(candidates: Candidates, least_mttr_s: float, risk: MarketRisk | None) -> Candidates:
    """The candidates that are mostly available and live as long as wanted, or else longest."""
    share = candidates.rented_s / candidates.watched_s
    for least in _LEAST_SHARES:
        places = np.flatnonzero(share >= least)
        if len(places):
            break
    had = candidates.take(places.tolist())
    lives_s = had.known_mttr_s
    if risk is not None:
        lives_s = 1.0 / (1.0 / lives_s + 1.0 / np.array([risk.life_s(market) for market in had.markets]))
    return had.take(np.flatnonzero(lives_s >= min(least_mttr_s, float(lives_s.max()))).tolist())
