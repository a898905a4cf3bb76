"""Prices and billing of a replay in compiled code.

It repeats what `PriceSeries` and `Billing` do, for replays by the ten thousand; tests hold the two together. What
a compiled function needs is laid into a few arrays of records: each further argument costs time to compile.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ebbtide._compiling import compiled, inner
from ebbtide.market.billing import Billing, Charged, Refund
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.prices import PriceHistory

_US = 1_000_000.0
_HOUR_S = 3600.0

NO_MARKET = -1

# A change point: when, how much, the place of the first from here on above the list price, and, of all markets by
# time, which change point comes when and when its market's price had been set before.
POINT = np.dtype(
    [("time_s", "f8"), ("price", "f8"), ("above", "i8"), ("by_time_s", "f8"), ("set_before_s", "f8")], align=True
)

# A market: its change points are `points[first:last]`. What the job does there, and what it costs to bring data.
MARKET = np.dtype(
    [
        ("first", "i8"),
        ("last", "i8"),
        ("listed", "f8"),
        ("steps_per_s", "f8"),
        ("save_s", "f8"),
        ("restore_s", "f8"),
        ("place", "i8"),
        ("cloud", "i8"),
        ("dataset_usd", "f8"),
    ],
    align=True,
)

# From when on which market is the cheapest.
CHEAPEST = np.dtype([("time_s", "f8"), ("market", "i8")], align=True)


class Tape(NamedTuple):
    """Prices of many markets.

    Attributes:
        points: `POINT` records, market by market.
        markets: `MARKET` records, in order.
    """

    points: Any
    markets: Any


def tape_of(prices: PriceHistory, catalogue: Catalogue) -> Tape:
    """All markets of a history, in its order, with the list prices of its start."""
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
    before_s = np.roll(points["time_s"], 1)
    before_s[markets["first"]] = -math.inf
    order = np.lexsort((before_s, points["time_s"]))
    points["by_time_s"], points["set_before_s"] = points["time_s"][order], before_s[order]
    return Tape(points, markets)


def charging_of(billing: Billing) -> dict[str, float]:
    """The rule in plain numbers, by the names that `bill_usd` has for them."""
    return {
        "period_us": round(billing.period_s * _US),
        "minimum_us": round(billing.minimum_s * _US),
        "at_lease_start": billing.charged is Charged.AT_LEASE_START,
        "refund_first_hour": billing.refund is Refund.WITHIN_FIRST_HOUR,
        "refund_partial": billing.refund is Refund.LAST_PARTIAL_PERIOD,
        "notice_s": billing.notice_s,
        "price_revokes": billing.price_revokes,
        "max_lifetime_s": billing.max_lifetime_s,
    }


@compiled
def _mark_above(points: Any, markets: Any) -> None:
    for market in markets:
        above = market.last
        for place in range(market.last - 1, market.first - 1, -1):
            if points[place].price > market.listed:
                above = place
            points[place].above = above


@inner
def first_after(times_s: Any, low: int, high: int, time_s: float) -> int:
    """The first of `times_s[low:high]` after a time; `high`: there is none."""
    while low < high:
        middle = (low + high) // 2
        if times_s[middle] <= time_s:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def place_at(points: Any, market: Any, time_s: float) -> int:
    """The change point in force, or the one before the market's first where there is none."""
    return first_after(points["time_s"], market.first, market.last, time_s) - 1


@inner
def price_at(points: Any, market: Any, time_s: float) -> float:
    """The price in force; NaN before the first."""
    place = place_at(points, market, time_s)
    return points[place].price if place >= market.first else math.nan


@inner
def first_above(points: Any, market: Any, time_s: float, price: float) -> float:
    """The first moment from `time_s` on at which the price exceeds `price`; infinity: never."""
    place = max(place_at(points, market, time_s), market.first)
    if price == market.listed:
        place = points[place].above
    while place < market.last and not points[place].price > price:
        place += 1
    return max(points[place].time_s, time_s) if place < market.last else math.inf


@inner
def bill_usd(points: Any, market: Any, rule: Any, start_s: float, end_s: float, revoked: bool) -> float:
    """What a lease costs, refunds taken off (`Billing.bill`)."""
    start_us = np.int64(np.rint(start_s * _US))
    used_us = np.int64(np.rint(end_s * _US)) - start_us
    periods = -(-max(used_us, rule.minimum_us) // rule.period_us)
    if periods == 0 or (revoked and rule.refund_first_hour and used_us < _HOUR_S * _US):
        return 0.0
    place = place_at(points, market, start_us / _US)
    price, paid, usd = points[place].price, np.int64(0), 0.0
    if not rule.at_lease_start:
        for later in range(place + 1, market.last):
            offset_us = np.int64(np.rint(points[later].time_s * _US)) - start_us
            # Period k begins at k * period_us; the first at or after the change has its price.
            begun = -(-offset_us // rule.period_us)
            if begun >= periods:
                break
            usd += price * ((begun - paid) * rule.period_us / _US) / _HOUR_S
            price, paid = points[later].price, begun
    usd += price * ((periods - paid) * rule.period_us / _US) / _HOUR_S
    if revoked and rule.refund_partial and used_us % rule.period_us:
        usd -= price * (rule.period_us / _US) / _HOUR_S
    return usd


def cheapest_of(tape: Tape) -> Any:
    """Where a step costs least at every time, of the markets whose price is not above the list price.

    Returns:
        `CHEAPEST` records, rising in time; `NO_MARKET` where there is none.
    """
    order = np.argsort(tape.points["time_s"], kind="stable")
    lengths = tape.markets["last"] - tape.markets["first"]
    owner = np.repeat(np.arange(len(tape.markets)), lengths)
    cheapest = np.zeros(len(order), dtype=CHEAPEST)
    return cheapest[: _find_cheapest(tape.points, tape.markets, order, owner, cheapest)]


@compiled
def _find_cheapest(points: Any, markets: Any, order: Any, owner: Any, cheapest: Any) -> int:
    cost = np.full(len(markets), math.inf)
    found, current = 0, NO_MARKET
    for n in range(len(order)):
        point, market = points[order[n]], markets[owner[order[n]]]
        usable = market.steps_per_s > 0.0 and not point.price > market.listed
        cost[owner[order[n]]] = point.price / _HOUR_S / market.steps_per_s if usable else math.inf
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
