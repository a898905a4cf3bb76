"""Spot prices relative to list prices (DeepSpotCloud II-A, Fig. 1 and 2, Eq. 1), by market and by type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.market.prices import PriceHistory


@dataclass(frozen=True)
class Standing:
    """Prices of a market relative to the list price.

    Attributes:
        market: The market that is described.
        gpu: Whether its machines have accelerators.
        available: Share of time below the list price.
        paid: Mean price, capped at the list price, over the list price (Eq. 1).
        interrupts_per_day: Number of rises above the list price per day.
    """

    market: Market
    gpu: bool
    available: float
    paid: float
    interrupts_per_day: float


def standings(prices: PriceHistory, catalogue: Catalogue) -> tuple[Standing, ...]:
    """The standing of every market with a known list price and a price for some time."""
    found = []
    for market, series in prices.items():
        listed = catalogue.on_demand_usd_per_hour(market, prices.start_s)
        if listed is None or series.times_s[0] >= prices.end_s:
            continue
        first_s = max(prices.start_s, float(series.times_s[0]))
        held_s = np.diff(np.append(series.times_s, prices.end_s))
        above = series.prices > listed
        rises = int((above[1:] & ~above[:-1]).sum())
        found.append(
            Standing(
                market,
                catalogue.instance_type(market.cloud, market.instance_type).accelerator_count > 0,
                float(held_s[series.prices < listed].sum() / held_s.sum()),
                float((np.minimum(series.prices, listed) * held_s).sum() / held_s.sum() / listed),
                rises / ((prices.end_s - first_s) / DAY_S),
            )
        )
    return tuple(found)


def by_type(found: Sequence[Standing]) -> dict[str, dict[str, float | list[float]]]:
    """Means over a type's markets, and the five numbers of Fig. 1's boxes."""
    table: dict[str, dict[str, float | list[float]]] = {}
    for name in sorted({standing.market.instance_type for standing in found}):
        own = [standing for standing in found if standing.market.instance_type == name]
        interrupts = [standing.interrupts_per_day for standing in own]
        table[name] = {
            "markets": len(own),
            "gpu": float(own[0].gpu),
            "available": float(np.mean([standing.available for standing in own])),
            "paid": float(np.mean([standing.paid for standing in own])),
            "interrupts_per_day": np.quantile(interrupts, [0.0, 0.25, 0.5, 0.75, 1.0]).tolist(),
        }
    return table


def hourly_ratio(prices: PriceHistory, market: Market, listed: float) -> tuple[Floats, Floats]:
    """Fig. 2: days since the start of the record, and the price paid over the list price, hourly (Eq. 1)."""
    times_s = np.arange(prices.start_s, prices.end_s, HOUR_S)
    return (times_s - prices.start_s) / DAY_S, np.minimum(prices[market].at_each(times_s), listed) / listed
