"""A generator of GPU spot prices as since 2017: they move slowly below on-demand, and half of them not at all.

EC2 has smoothed its spot prices since November 2017: a price changes every few hours by a fraction of a per cent,
and machines are revoked because capacity runs out, not because of the price. The figures here are set from 92 GPU
markets of eight regions in the winter of 2019 to 2020: 48 % never changed and stood at 0.3 of the list price; the
others changed twice a day, mostly between 0.30 and 0.42 of the list price.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

from ebbtide._utc import DAY_S, HOUR_S, Time, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory

GPU_TYPES = ("p2.xlarge", "p2.8xlarge", "p3.2xlarge", "p3.8xlarge")
GPU_ZONES = ("us-east-1a", "us-east-1b", "us-east-1c", "us-west-2a", "us-west-2b")

# The lowest price, as a share of the list price; a price that never moves stands there.
FLOOR_RATIO = 0.3

_SHARE_STILL = 0.48
_CHANGE_INTERVAL_S = 6 * HOUR_S
_CHANCE_OF_CHANGE = 0.5  # at each interval, in a market that moves
_STEP = 0.006  # standard deviation of a change of the log price
_PULL = 0.01  # towards the market's own level
_HIGHEST_RATIO = 0.95


def gpu_markets() -> tuple[Market, ...]:
    """Machines with one or more K80s or V100s, in five zones of two regions."""
    return tuple(Market("aws", zone[:-1], zone, name) for name in GPU_TYPES for zone in GPU_ZONES)


def generate_smooth_prices(
    *,
    start: Time = "2020-01-01T00:00:00Z",
    days: float = 60.0,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> PriceHistory:
    """Generate a price history of GPU machines in the style of the years since 2017.

    Args:
        start: When the record begins, as text or seconds since 1970.
        days: Length of the record in days.
        seed: Random seed; the same seed gives the same prices.
        on_progress: Called after each market with the number done and the number of markets.

    Raises:
        InputError: `days` is not positive.
    """
    if not days > 0:
        raise InputError(f"days is {days}; it must be positive")
    start_s = to_epoch_s(start)
    end_s = start_s + days * DAY_S
    markets = gpu_markets()
    series = {}
    for market in markets:
        list_usd_per_hour = default_catalogue().on_demand_usd_per_hour(market, start_s)
        assert list_usd_per_hour is not None, market
        series[market] = _generate(market, list_usd_per_hour, start_s, end_s, seed)
        if on_progress:
            on_progress(len(series), len(markets))
    return PriceHistory(series, start_s=start_s, end_s=end_s)


def _generate(market: Market, list_usd_per_hour: float, start_s: float, end_s: float, seed: int) -> PriceSeries:
    random = np.random.default_rng([seed, zlib.crc32(repr(market).encode())])
    if random.random() < _SHARE_STILL:
        return PriceSeries(np.array([start_s]), np.array([round(FLOOR_RATIO * list_usd_per_hour, 4)]))
    level = FLOOR_RATIO * float(np.exp(abs(random.normal(0.0, 0.2))))
    offset_s = random.uniform(0.0, _CHANGE_INTERVAL_S)
    times_s = np.append(start_s, np.arange(start_s + offset_s + 1.0, end_s, _CHANGE_INTERVAL_S))
    moves = random.normal(0.0, _STEP, len(times_s)) * (random.random(len(times_s)) < _CHANCE_OF_CHANGE)
    ratio = np.empty(len(times_s))
    now = np.log(level)
    for place, move in enumerate(moves.tolist()):
        now += move + (_PULL * (np.log(level) - now) if move else 0.0)
        ratio[place] = np.exp(now)
    prices = np.round(np.clip(ratio, FLOOR_RATIO, _HIGHEST_RATIO) * list_usd_per_hour, 4)
    moved = np.append(True, np.diff(prices) != 0)
    return PriceSeries(np.round(times_s[moved]), prices[moved])
