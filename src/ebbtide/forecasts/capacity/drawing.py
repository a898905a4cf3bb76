"""Random capacity drawn from spell models, for backtests where none is recorded."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from ebbtide.forecasts.capacity.models import SpellModels, default_spell_models
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.prices import PriceHistory

# Share of ticks in which the zones of a region have a random number in common: with it they lose some 0.15 of
# their capacity together (`shared_ends`), as recorded zones do.
SHARED_TICKS = 0.35


def drawn_availability(
    prices: PriceHistory,
    models: SpellModels,
    machines: int,
    seed: int,
    tick_s: float = 600.0,
    shared: float = SHARED_TICKS,
) -> Availability:
    """Random capacity drawn from spell models over the time of a price history: none, or `machines` at once.

    Each market's spells are as its model has them. In a share of ticks all zones of a region with the same machine
    have one random number in common, so that a shortage comes to all of them.

    Args:
        prices: Price history that gives the markets and the time.
        models: Spell models of the markets.
        machines: Machines of a market while it has any.
        seed: Seed of the random numbers.
        tick_s: Time between two ticks, seconds.
        shared: Share of ticks in which a region has a random number in common, from 0 (independent zones) to 1.
    """
    ticks = math.ceil((prices.end_s - prices.start_s) / tick_s) + 1
    times_s = prices.start_s + np.arange(ticks, dtype=np.float64) * tick_s
    groups = Counter((market.cloud, market.region, market.instance_type) for market in prices)
    common = {}
    for place, (name, zones) in enumerate(sorted(groups.items())):
        if zones > 1 and shared > 0.0:
            random = np.random.default_rng([seed, place, 1])
            common[name] = np.where(random.random(ticks) < shared, random.random(ticks), np.nan)
    end_s = float(times_s[-1]) + tick_s
    found = {}
    for place, market in enumerate(sorted(prices)):
        own = np.random.default_rng([seed, place])
        numbers = common.get((market.cloud, market.region, market.instance_type))
        up = models.of(market).drawn(ticks, tick_s, own, numbers)
        found[market] = CapacitySeries(times_s, up.astype(np.int64) * machines, end_s)
    return Availability(found)


def typed_models(prices: PriceHistory, seed: int) -> SpellModels:
    """The default models, with one of the types of recorded zones drawn for each market."""
    base = default_spell_models()
    if base.types is None:
        return base
    random = np.random.default_rng([seed, 2])
    weights = np.array(base.types.weights) / sum(base.types.weights)
    kinds = random.choice(len(weights), size=len(prices), p=weights)
    markets = sorted(prices)
    by_market = {str(market): base.types.models[kind] for market, kind in zip(markets, kinds, strict=True)}
    return SpellModels(base.otherwise, by_market)
