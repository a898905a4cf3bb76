"""Prices and billing of a replay in compiled code.

It repeats what `PriceSeries` and `Billing` do, for replays by the ten thousand; tests compare the two. What a
compiled function needs is put into a few arrays of records, since each further argument takes time to compile.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ebbtide.base.compiled_records import CHEAPEST, MARKET, NO_MARKET, POINT, Tape
from ebbtide.base.compiling import compiled, inner
from ebbtide.base.utc import HOUR_S
from ebbtide.market.billing import Billing, Charged, Refund
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.prices import PriceHistory

_US = 1_000_000.0


def tape_of(prices: PriceHistory, catalogue: Catalogue) -> Tape:
    """The markets of a price history in its order, with their list prices at its start."""
    markets = np.zeros(len(prices), dtype=MARKET)
    lengths = [len(series) for series in prices.values()]
    markets["last"] = np.cumsum(lengths)
    markets["first"] = markets["last"] - lengths
    found = (catalogue.on_demand_usd_per_hour(market, prices.start_s) for market in prices)
    markets["listed"] = [math.nan if price is None else price for price in found]
    points = np.zeros(sum(lengths), dtype=POINT)
    points["time_s"] = np.concatenate([series.times_s for series in prices.values()])
    points["price"] = np.concatenate([series.prices for series in prices.values()])
    _mark_above(points, markets)
    points["by_time_s"] = np.sort(points["time_s"])
    return Tape(points, markets)


def charging_of(billing: Billing) -> dict[str, float]:
    """A billing rule as plain numbers, under the names of the fields of `RULE`."""
    return {
        "period_us": round(billing.period_s * _US),
        "minimum_us": round(billing.minimum_s * _US),
        "at_lease_start": billing.charged is Charged.AT_LEASE_START,
        "refund_first_hour": billing.refund is Refund.WITHIN_FIRST_HOUR,
        "refund_partial": billing.refund is Refund.LAST_PARTIAL_PERIOD,
        "notice_s": billing.notice_s,
        "price_revokes": billing.price_revokes,
        "max_lifetime_s": billing.max_lifetime_s,
        "round_s": billing.round_s,
    }


@compiled
def _mark_above(points: Any, markets: Any) -> None:
    """Fill in `above` of all change points."""
    for market in markets:
        above = market.last
        for place in range(market.last - 1, market.first - 1, -1):
            if points[place].price > market.listed:
                above = place
            points[place].above = above


@inner
def first_after(times_s: Any, low: int, high: int, time_s: float) -> int:
    """The index of the first of `times_s[low:high]` after a time; `high` if there is none."""
    while low < high:
        middle = (low + high) // 2
        if times_s[middle] <= time_s:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def place_at(points: Any, market: Any, time_s: float) -> int:
    """The index of the change point in force; before the market's first one, that index less one."""
    return first_after(points["time_s"], market.first, market.last, time_s) - 1


@inner
def price_at(points: Any, market: Any, time_s: float) -> float:
    """The price in force, USD per hour; NaN before the market's first change point."""
    place = place_at(points, market, time_s)
    return points[place].price if place >= market.first else math.nan


@inner
def first_above(points: Any, market: Any, time_s: float, price: float) -> float:
    """The first time from `time_s` on at which the price is above `price`, seconds; infinity if there is none."""
    place = max(place_at(points, market, time_s), market.first)
    if price == market.listed:
        place = points[place].above
    while place < market.last and not points[place].price > price:
        place += 1
    return max(points[place].time_s, time_s) if place < market.last else math.inf


@inner
def bill_usd(points: Any, market: Any, rule: Any, start_s: float, end_s: float, revoked: bool) -> float:
    """The cost of a lease after refunds, USD, as `Billing.bill` has it."""
    start_us = np.int64(np.rint(start_s * _US))
    used_us = np.int64(np.rint(end_s * _US)) - start_us
    periods = -(-max(used_us, rule.minimum_us) // rule.period_us)
    if periods == 0 or (revoked and rule.refund_first_hour and used_us < HOUR_S * _US):
        return 0.0
    place = place_at(points, market, start_us / _US)
    price, paid, usd = points[place].price, np.int64(0), 0.0
    if not rule.at_lease_start:
        for later in range(place + 1, market.last):
            offset_us = np.int64(np.rint(points[later].time_s * _US)) - start_us
            # Period k begins at k * period_us; the first one at or after the change is charged at the new price.
            begun = -(-offset_us // rule.period_us)
            if begun >= periods:
                break
            usd += price * ((begun - paid) * rule.period_us / _US) / HOUR_S
            price, paid = points[later].price, begun
    usd += price * ((periods - paid) * rule.period_us / _US) / HOUR_S
    if revoked and rule.refund_partial and used_us % rule.period_us:
        usd -= price * (rule.period_us / _US) / HOUR_S
    return usd


def cheapest_of(tape: Tape) -> Any:
    """The market with the least cost of a step at every time, among markets not above their list price.

    Returns:
        `CHEAPEST` records in order of time; `NO_MARKET` where all markets are above their list price.
    """
    order = np.argsort(tape.points["time_s"], kind="stable")
    lengths = tape.markets["last"] - tape.markets["first"]
    owner = np.repeat(np.arange(len(tape.markets)), lengths)
    cheapest = np.zeros(len(order), dtype=CHEAPEST)
    return cheapest[: _find_cheapest(tape.points, tape.markets, order, owner, cheapest)]


@compiled
def _find_cheapest(points: Any, markets: Any, order: Any, owner: Any, cheapest: Any) -> int:
    """Fill in `cheapest` from points in order of time, and their markets; returns the number of records."""
    cost = np.full(len(markets), math.inf)
    found, current = 0, NO_MARKET
    for n in range(len(order)):
        point, market = points[order[n]], markets[owner[order[n]]]
        usable = market.steps_per_s > 0.0 and not point.price > market.listed
        cost[owner[order[n]]] = point.price / HOUR_S / market.steps_per_s if usable else math.inf
        if n + 1 < len(order) and points[order[n + 1]].time_s == point.time_s:
            continue
        least, there = math.inf, NO_MARKET
        for other in range(len(cost)):
            if cost[other] < least:
                least, there = cost[other], other
        if there != current:
            cheapest[found].time_s, cheapest[found].market = point.time_s, there
            found, current = found + 1, there
    return found
