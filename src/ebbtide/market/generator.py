"""Generators of spot prices, for demonstrations and tests that may not ship real ones.

Auction-era markets (`generate_auction_prices`) move between three regimes: calm (a low price that drifts), spiky
(short excursions far above on-demand) and stuck (above on-demand for hours or days). Price changes are more
frequent at busy hours of the day and week. Markets are independent except for a small part of the drift that
zones of one type share. The default `MarketProfile` is set from the 13 markets of us-east-1 in 2015. `profile_of`
measures any history in the same terms, and the tests compare generated prices with what it measures.

GPU markets as since 2017 (`generate_smooth_prices`) move slowly below on-demand, half of them not at all. EC2 has
smoothed its spot prices since November 2017: a price changes every few hours by a fraction of a per cent, and
machines are revoked because capacity runs out, not because of the price. The figures are set from 92 GPU markets
of eight regions in the winter of 2019 to 2020: 48 % never changed and stood at 0.3 of the list price; the others
changed twice a day, mostly between 0.30 and 0.42 of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S, MINUTE_S, Time, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats, PriceSeries
from ebbtide.market.prices import PriceHistory


@dataclass(frozen=True)
class MarketProfile:
    """Measurable properties of a market's price.

    Attributes:
        ratio: The time-weighted median price, as a share of on-demand.
        change_interval_min: Median minutes between changes of price.
        spikes_per_day: Spikes a day: excursions above on-demand shorter than `SPIKE_LIMIT_S`.
        spike_length_min: Median length of a spike, minutes.
        spike_height: Median price of a spike, as a multiple of on-demand.
        share_stuck: The share of time in excursions of `SPIKE_LIMIT_S` or more.
    """

    ratio: float = 0.12
    change_interval_min: float = 7.0
    spikes_per_day: float = 0.75
    spike_length_min: float = 7.0
    spike_height: float = 2.6
    share_stuck: float = 0.02


# An excursion above on-demand shorter than this is a spike; in a longer one the market is stuck.
SPIKE_LIMIT_S = 6 * HOUR_S

# Log-normal spread of single markets around the profile, measured on the same 13 markets.
_SPREAD = {
    "ratio": 0.2,
    "change_interval_min": 0.5,
    "spikes_per_day": 1.0,
    "spike_length_min": 0.5,
    "spike_height": 0.3,
    "share_stuck": 0.8,
}

_SPIKY_SHARE = 0.2  # share of the time not stuck
_SPIKY_BOOST = 3.0  # rate of spikes in the spiky regime over the average rate
_REGIME_DAYS = {"calm": 4.0, "spiky": 1.0, "stuck": 0.8}
_DRIFT = 0.12  # standard deviation of the log price when calm
_SHARED_DRIFT = 0.1  # the share of the drift's variance common to the zones of a type
_FLOOR_OF_RATIO = 0.68  # the price never falls below this share of the usual one
_MAX_HEIGHT = 10.0  # EC2 capped bids at ten times on-demand

_MAX_DAYS = 3_660

# When generated prices begin, unless told otherwise.
AUCTION_FROM, SMOOTH_FROM = "2015-04-01T00:00:00Z", "2020-01-01T00:00:00Z"

DEMO_TYPES = ("c3.xlarge", "g2.2xlarge", "m3.medium", "r3.large")
DEMO_ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")


def demo_markets() -> tuple[Market, ...]:
    """The markets of the embedded default: four types in three zones."""
    return tuple(Market("aws", "us-east-1", zone, name) for name in DEMO_TYPES for zone in DEMO_ZONES)


def generate_auction_prices(
    markets: Iterable[Market] | None = None,
    *,
    start: Time = AUCTION_FROM,
    days: float = 60.0,
    seed: int = 0,
    catalogue: Catalogue | None = None,
    profile: MarketProfile | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> PriceHistory:
    """Generate a price history.

    Args:
        markets: Markets to generate, each with a known on-demand price; the demo markets by default.
        start: When the record begins, as text or seconds since 1970.
        days: Length of the record in days.
        seed: Random seed; a market's prices depend on its name and the seed alone.
        catalogue: Instance types and list prices; by default those that ship with Ebbtide.
        profile: Properties of the markets; those of us-east-1 in 2015 by default.
        on_progress: Called after each market with the number done and the number of markets.

    Raises:
        InputError: `days` is not positive or above ten years, or a market's on-demand price is unknown.
    """
    start_s, end_s = _span(start, days)
    profile = profile or MarketProfile()
    known = catalogue or default_catalogue()
    chosen = tuple(markets) if markets is not None else demo_markets()
    series = {}
    for market in chosen:
        listed = _list_price(known, market, start_s)
        series[market] = _auction_series(market, listed, start_s, end_s, seed, profile)
        if on_progress:
            on_progress(len(series), len(chosen))
    return PriceHistory(series, start_s=start_s, end_s=end_s)


def _span(start: Time, days: float) -> tuple[float, float]:
    if not days > 0:
        raise InputError(f"days is {days}; it must be positive")
    if days > _MAX_DAYS:
        raise InputError(f"days is {days:g}; at most {_MAX_DAYS:,} are generated")
    start_s = to_epoch_s(start)
    return start_s, start_s + days * DAY_S


def _list_price(catalogue: Catalogue, market: Market, time_s: float) -> float:
    found = catalogue.on_demand_usd_per_hour(market, time_s)
    if found is None:
        raise InputError(f"on-demand price of {market} is not known, so no price can be generated from it")
    return found


def _auction_series(
    market: Market, list_price: float, start_s: float, end_s: float, seed: int, profile: MarketProfile
) -> PriceSeries:
    random = np.random.default_rng([seed, zlib.crc32(repr(market).encode())])
    shared = np.random.default_rng([seed, zlib.crc32(f"{market.region} {market.instance_type}".encode())])
    own = {name: getattr(profile, name) * float(np.exp(random.normal(0, s))) for name, s in _SPREAD.items()}
    regimes = _regimes(random, start_s, end_s, min(own["share_stuck"], 0.5))
    changes = _change_times(random, start_s, end_s, own["change_interval_min"] * MINUTE_S)
    spikes = _spikes(random, regimes, own, end_s)
    edges = [edge for start, end, _ in spikes for edge in (start, end)]
    edges += [start for start, _, _ in regimes]
    times = np.unique(np.round(np.concatenate([[start_s], changes, edges])))
    times = times[(times >= start_s) & (times < end_s)]
    ratio = own["ratio"] * np.exp(_drift(random, shared, times, start_s, end_s))
    ratio = np.maximum(ratio, profile.ratio * _FLOOR_OF_RATIO)
    for start, end, regime in regimes:
        if regime == "stuck":
            stuck = (times >= round(start)) & (times < round(end))
            level = 1.0 + random.gamma(2.0, 0.25)
            ratio[stuck] = np.maximum(level * np.exp(random.normal(0, 0.1, int(stuck.sum()))), 1.001)
    for start, end, height in spikes:
        ratio[(times >= round(start)) & (times < round(end))] = height
    prices = np.maximum(np.round(ratio * list_price, 4), 0.0001)
    moved = np.append(True, np.diff(prices) != 0)
    return PriceSeries(times[moved], prices[moved])


def _regimes(
    random: np.random.Generator, start_s: float, end_s: float, share_stuck: float
) -> list[tuple[float, float, str]]:
    """Regimes as (start, end, name): exponential lengths, drawn so that the shares of time come out right."""
    shares = {"stuck": share_stuck, "spiky": (1 - share_stuck) * _SPIKY_SHARE}
    shares["calm"] = 1 - sum(shares.values())
    names = list(shares)
    visits = np.array([shares[name] / _REGIME_DAYS[name] for name in names])
    spells, now = [], start_s
    while now < end_s:
        name = names[int(random.choice(len(names), p=visits / visits.sum()))]
        length = random.exponential(_REGIME_DAYS[name]) * DAY_S
        # A stuck spell is by definition longer than a spike.
        length = max(length, SPIKE_LIMIT_S * 1.05) if name == "stuck" else length
        spells.append((now, min(now + length, end_s), name))
        now += length
    return spells


def _rhythm(times_s: Floats) -> Floats:
    """Relative rate of changes at each time: highest in the US afternoon, lower at weekends, mean about 1."""
    hour = times_s / HOUR_S % 24
    weekday = (times_s // DAY_S + 3) % 7
    pace: Floats = (1 + 0.2 * np.sin(2 * np.pi * (hour - 13) / 24)) * np.where(weekday >= 5, 0.85, 1.06)
    return pace


def _change_times(random: np.random.Generator, start_s: float, end_s: float, median_s: float) -> Floats:
    """A renewal process with log-normal intervals, thinned to follow the rhythm of day and week."""
    peak = 1.2 * 1.06
    size = int((end_s - start_s) / median_s * 1.5 * peak) + 16
    # Thinning lengthens the median by less than the peak, because short intervals come in runs.
    gaps = np.maximum(random.lognormal(np.log(median_s / 1.15), 0.8, size), 30.0)
    times = start_s + np.cumsum(gaps)
    while times[-1] < end_s:
        times = np.append(times, times[-1] + np.cumsum(random.choice(gaps, size)))
    times = times[times < end_s]
    kept: Floats = times[random.random(len(times)) * peak < _rhythm(times)]
    return kept


def _spikes(
    random: np.random.Generator,
    regimes: list[tuple[float, float, str]],
    own: dict[str, float],
    end_s: float,
) -> list[tuple[float, float, float]]:
    """Spikes as (start, end, ratio to on-demand), in order and not overlapping."""
    calm_rate = (1 - _SPIKY_SHARE * _SPIKY_BOOST) / (1 - _SPIKY_SHARE)
    rates = {"calm": calm_rate, "spiky": _SPIKY_BOOST, "stuck": 0.0}
    spikes: list[tuple[float, float, float]] = []
    free_s = 0.0
    for start, end, regime in regimes:
        number = random.poisson(own["spikes_per_day"] * rates[regime] * (end - start) / DAY_S)
        for at in np.sort(random.uniform(start, end, number)):
            if random.random() * 1.3 > _rhythm(np.array([at]))[0] or at < free_s:
                continue
            length = random.lognormal(np.log(own["spike_length_min"]), 1.0) * MINUTE_S
            until = min(at + float(np.clip(length, 60.0, SPIKE_LIMIT_S * 0.9)), end, end_s)
            height = random.lognormal(np.log(max(own["spike_height"], 1.05)), 0.5)
            spikes.append((float(at), until, float(np.clip(height, 1.02, _MAX_HEIGHT))))
            free_s = until + 2 * MINUTE_S
    return spikes


def _drift(
    random: np.random.Generator, shared: np.random.Generator, times: Floats, start_s: float, end_s: float
) -> Floats:
    """A mean-reverting deviation of the log price at `times`, partly common to the zones of a type."""
    hours = np.arange(start_s, end_s + 2 * HOUR_S, HOUR_S)
    persistence = 0.9

    def walk(source: np.random.Generator) -> Floats:
        noise = source.normal(0, np.sqrt(1 - persistence**2), len(hours))
        noise[0] = source.normal()
        values = np.empty(len(hours))
        value = 0.0
        for index, step in enumerate(noise):
            value = persistence * value + step
            values[index] = value
        return values

    slow = np.sqrt(1 - _SHARED_DRIFT) * walk(random) + np.sqrt(_SHARED_DRIFT) * walk(shared)
    quick = random.normal(0, 0.25, len(times))
    drift: Floats = _DRIFT * (np.interp(times, hours, slow) + quick)
    return drift


def profile_of(series: PriceSeries, list_price_usd_per_hour: float, end_s: float) -> MarketProfile:
    """Measure the properties of a market's prices, from its first price to `end_s` (seconds since 1970).

    Where there is no spike, the length and height of spikes are NaN.
    """
    ratio = series.prices / list_price_usd_per_hour
    edges = np.append(series.times_s, end_s)
    held = np.diff(edges)
    changed = np.flatnonzero(np.diff(ratio)) + 1
    above = np.flatnonzero(np.diff((ratio > 1).astype(np.int8), prepend=0, append=0))
    starts, ends = above[::2], above[1::2]
    lengths = edges[ends] - edges[starts]
    short = lengths < SPIKE_LIMIT_S
    heights = [float(ratio[low:high].max()) for low, high in zip(starts[short], ends[short], strict=True)]
    order = np.argsort(ratio, kind="stable")
    middle = np.searchsorted(np.cumsum(held[order]), held.sum() / 2)
    intervals = np.diff(series.times_s[changed])
    return MarketProfile(
        ratio=float(ratio[order][min(middle, len(ratio) - 1)]),
        change_interval_min=float(np.median(intervals)) / MINUTE_S if len(intervals) else float("nan"),
        spikes_per_day=float(short.sum() / (held.sum() / DAY_S)),
        spike_length_min=float(np.median(lengths[short])) / MINUTE_S if short.any() else float("nan"),
        spike_height=float(np.median(heights)) if heights else float("nan"),
        share_stuck=float(lengths[~short].sum() / held.sum()),
    )


GPU_TYPES = ("p2.xlarge", "p2.8xlarge", "p3.2xlarge", "p3.8xlarge")
GPU_ZONES = ("us-east-1a", "us-east-1b", "us-east-1c", "us-west-2a", "us-west-2b")

# The lowest price, as a share of the list price; a price that never moves stands there.
FLOOR_RATIO = 0.3

_SHARE_STILL = 0.48
_CHANGE_INTERVAL_S = 6 * HOUR_S
_CHANCE_OF_CHANGE = 0.5  # probability of a change at each interval, in a market that moves
_STEP = 0.006  # standard deviation of a change of the log price
_PULL = 0.01  # mean reversion per change towards the market's own level
_HIGHEST_RATIO = 0.95


def gpu_markets() -> tuple[Market, ...]:
    """Machines with one or more K80s or V100s, in five zones of two regions."""
    return tuple(Market("aws", zone[:-1], zone, name) for name in GPU_TYPES for zone in GPU_ZONES)


def generate_smooth_prices(
    markets: Iterable[Market] | None = None,
    *,
    start: Time = SMOOTH_FROM,
    days: float = 60.0,
    seed: int = 0,
    catalogue: Catalogue | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> PriceHistory:
    """Generate a price history of GPU machines in the style of the years since 2017.

    Args:
        markets: Markets to generate, each with a known on-demand price; `gpu_markets` by default.
        start: When the record begins, as text or seconds since 1970.
        days: Length of the record in days.
        seed: Random seed; the same seed gives the same prices.
        catalogue: Instance types and list prices; by default those that ship with Ebbtide.
        on_progress: Called after each market with the number done and the number of markets.

    Raises:
        InputError: `days` is not positive or above ten years, or a market's on-demand price is unknown.
    """
    start_s, end_s = _span(start, days)
    known = catalogue or default_catalogue()
    chosen = tuple(markets) if markets is not None else gpu_markets()
    series = {}
    for market in chosen:
        series[market] = smooth_series(market, _list_price(known, market, start_s), start_s, end_s, seed)
        if on_progress:
            on_progress(len(series), len(chosen))
    return PriceHistory(series, start_s=start_s, end_s=end_s)


def smooth_series(
    market: Market, list_usd_per_hour: float, start_s: float, end_s: float, seed: int
) -> PriceSeries:
    """The price of a machine as EC2 has smoothed it since 2017, from its list price."""
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
