"""RSVD-1 on a real market's later days: the cookbook, Fixed and the oracle."""

from __future__ import annotations

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.price_chain import PriceChain, nearest_level
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.cookbook.bids import Bids
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide_papers.cumulon.cluster_replays import Rules, play_cluster
from ebbtide_papers.cumulon.market import TICK_S, rsvd_workflow
from ebbtide_papers.cumulon.oracle import cheapest_charge, least_costs
from ebbtide_papers.cumulon.study import (
    DEADLINE_H,
    DELAY_TICKS,
    FEW_MISSED,
    MOST,
    SIZES,
    TICKS,
    OnProgress,
    by_the_hour,
    mean_usd,
)


def real_market_study(
    prices: PriceHistory, market: Market, *, every_s: float = 6 * HOUR_S, on_progress: OnProgress | None = None
) -> dict[str, float]:
    """RSVD-1 on a real market's later days, with models of the earlier ones; hourly charges and delays.

    The first three fifths of the record train the chain and select Fixed's size and bid; the rest is for the test.

    Args:
        prices: Price history with the market.
        market: The market to study.
        every_s: Time between starts, seconds.
        on_progress: Called with the current activity.

    Raises:
        InputError: The record is too short for any start.
    """
    report = on_progress or (lambda _: None)
    series, workflow = prices[market], rsvd_workflow()
    split_s = prices.start_s + 0.6 * (prices.end_s - prices.start_s)
    chain = PriceChain.fit(series, prices.start_s, split_s, tick_s=TICK_S)
    room_s = DEADLINE_H * HOUR_S + TICK_S

    def starts(low_s: float, high_s: float) -> np.ndarray:
        first_s = np.ceil(max(low_s, float(series.times_s[0])) / DAY_S) * DAY_S
        return np.arange(first_s, high_s - room_s, every_s)

    def trace(start_s: float) -> np.ndarray:
        times_s = start_s + np.arange(DEADLINE_H * TICKS, dtype=np.float64) * TICK_S
        return nearest_level(chain.prices, series.at_each(times_s)).astype(np.uint16)

    later, earlier = starts(split_s, prices.end_s), starts(prices.start_s, split_s)
    if not len(later) or not len(earlier):
        raise InputError(f"{market}: the record is too short for runs of {DEADLINE_H} h in both its parts")
    report(f"{market}: choosing a fixed size and bid")
    any_book = by_the_hour(chain, workflow, DELAY_TICKS, start_s=float(earlier[0]))
    practice = np.array([trace(start_s) for start_s in earlier])
    best = _best_fixed(any_book, practice, chain.prices)
    report(f"{market}: a cookbook for each hour of the week")
    slots = {float(start_s % (7 * DAY_S)): start_s for start_s in later}
    books = {slot: by_the_hour(chain, workflow, DELAY_TICKS, start_s=start_s) for slot, start_s in slots.items()}
    costs: dict[str, list[float]] = {"dynamic": [], "oracle": [], "fixed": []}
    for start_s in later:
        one, book = trace(start_s)[None], books[float(start_s % (7 * DAY_S))]
        dynamic = play_cluster(book, one, Bids.skyline(book))
        fixed = play_cluster(book, one, Bids.fixed(book, best[1]), Rules(fixed_size=best[0]))
        costs["dynamic"].append(float(dynamic.cost_usd[0]))
        costs["fixed"].append(float(fixed.cost_usd[0]))
        bound = least_costs(workflow, chain.prices, cheapest_charge(one, TICKS), TICK_S, MOST)
        costs["oracle"].append(float(bound[0]))
    return {name: float(np.mean(usd)) for name, usd in costs.items()} | {
        "runs": float(len(later)),
        "fixed_size": float(best[0]),
        "fixed_bid": best[1],
    }


def _best_fixed(book: Cookbook, practice: np.ndarray, prices: np.ndarray) -> tuple[int, float]:
    """The cheapest size and bid that keep the deadline on practice traces."""
    bids = sorted({float(np.quantile(prices, share)) for share in (0.25, 0.5, 0.75, 0.9)})
    found = {
        (size, usd): play_cluster(book, practice, Bids.fixed(book, usd), Rules(fixed_size=size))
        for size in SIZES
        for usd in bids
    }
    kept = {key: mean_usd(one) for key, one in found.items() if one.missed <= FEW_MISSED * len(practice)}
    means = kept or {key: mean_usd(one) for key, one in found.items()}
    return min(means, key=lambda key: means[key])
