"""Portfolios made from what a view shows of the past (ExoSphere 3.3, 5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide._utc import HOUR_S
from ebbtide.jobs.job import Job
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.api.view import View
from ebbtide.policies.exosphere.candidates import Candidates, assess
from ebbtide.policies.exosphere.interface import PortfolioMttr, PortfolioRequest
from ebbtide.policies.exosphere.portfolio import shares_of
from ebbtide.policies.exosphere.risk import COVARIANCES, Windows, with_unseen
from ebbtide.policies.exosphere.selection import Selection, rival_weights
from ebbtide.policies.exosphere.solving import solve_portfolio

# Markets whose record begins within this part of the past count as known for all of it.
_SETTLING_SHARE = 0.1

# A candidate is to be had for so much of the time, unless none is.
_LEAST_SHARES = (0.5, 0.0)


@dataclass(frozen=True)
class Holding:
    """A market of a portfolio.

    Attributes:
        market: Which.
        share: Of the resources.
        bid_usd_per_hour: The on-demand price; the highest that was seen of the type where that is not known.
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
) -> tuple[Holding, ...]:
    """The best portfolio of the markets that can be rented now; none if there is none.

    Where no market lives as long as the request wants, those that live longest are taken.

    Args:
        view: Now and the past.
        job: What is to run.
        request: What the application wants.
        history_s: How much of the past is looked at.
        covariance: One of `COVARIANCES`.
        selection: Who chooses: a portfolio, or a rival.
        without: Markets that are not to be had.
    """
    avoided = set(without)
    suitable = [market for market in view.markets if market not in avoided and _suits(view, job, request, market)]
    series, start_s = _past(view, suitable, history_s)
    if not series:
        return ()
    known = assess(series, view.on_demand_price, start_s, view.now_s)
    bids = dict(zip(known.markets, known.on_demand_usd.tolist(), strict=True))
    places = [
        place
        for place, market in enumerate(known.markets)
        if view.price(market) <= request.price_threshold * bids[market]
    ]
    if not places:
        return ()
    found = _living(known.take(places), request.least_mttr_s)
    if selection is not Selection.PORTFOLIO:
        weights = rival_weights(selection, found, view.price, view.machine)
    elif request.alpha == 0.0:
        weights = solve_portfolio(found.returns, np.zeros((len(found.markets),) * 2), 0.0)
    else:
        measure, size = COVARIANCES[covariance]
        windows = Windows.within(start_s, view.now_s)
        matrix = with_unseen(measure(series, found, windows), windows, size)
        weights = solve_portfolio(found.returns, matrix, request.alpha)
    shares = shares_of(found.markets, weights)
    return tuple(Holding(market, share, bids[market]) for market, share in shares.items())


def time_to_revocation(view: View, holdings: Sequence[Holding], history_s: float) -> PortfolioMttr:
    """Of a portfolio and of its markets, as the past has them now."""
    bids = {holding.market: holding.bid_usd_per_hour for holding in holdings}
    series, start_s = _past(view, list(bids), history_s)
    found = assess(series, bids.get, start_s, view.now_s)
    rates = dict(zip(found.markets, found.revocations_per_s.tolist(), strict=True))
    known = [holding for holding in holdings if holding.market in rates]
    total = sum(holding.share for holding in known)
    rate = sum(holding.share * rates[holding.market] for holding in known) / total
    return PortfolioMttr(1.0 / rate, {market: 1.0 / rate for market, rate in rates.items()})


def _suits(view: View, job: Job, request: PortfolioRequest, market: Market) -> bool:
    if request.instance_types and market.instance_type not in request.instance_types:
        return False
    return view.steps_per_s(job, market) > 0.0


def _past(view: View, markets: Sequence[Market], history_s: float) -> tuple[dict[Market, PriceSeries], float]:
    """Prices of the past by market, and from when on all of them are known."""
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
        # Next to no past: as if the first price known had stood for an hour.
        start_s = view.now_s - HOUR_S
        for market, one in series.items():
            times_s = one.times_s.copy()
            times_s[0] = min(times_s[0], start_s)
            series[market] = PriceSeries(times_s, one.prices)
    return series, start_s


def _living(candidates: Candidates, least_mttr_s: float) -> Candidates:
    """Those that are mostly to be had and live as long as is wanted, or else longest."""
    share = candidates.rented_s / candidates.watched_s
    for least in _LEAST_SHARES:
        places = np.flatnonzero(share >= least)
        if len(places):
            break
    had = candidates.take(places.tolist())
    lives_s = had.known_mttr_s
    return had.take(np.flatnonzero(lives_s >= min(least_mttr_s, float(lives_s.max()))).tolist())
