"""Costs of a stand-in's machines, computed independently of the run's ledger."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ebbtide.market.billing import ON_DEMAND, Billing, LeaseEnding
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.testing.stand_in.machines import StandInMachine


def until_now(prices: PriceHistory, now_s: float) -> PriceHistory:
    """Shift prices in time, so that they end now."""
    later_s = now_s - prices.end_s
    series = {market: PriceSeries(one.times_s + later_s, one.prices) for market, one in prices.items()}
    return PriceHistory(series, start_s=prices.start_s + later_s, end_s=now_s)


def billed(machines: Iterable[StandInMachine], prices: PriceHistory, billing: Billing) -> float:
    """Compute the cost of machines, USD, independently of the ledger, from each machine's start and end.

    Args:
        machines: The machines, which have ended.
        prices: Spot prices of their markets.
        billing: Billing rule of spot machines, which names the rule of on-demand machines.
    """
    usd = 0.0
    for machine in machines:
        rented = machine.rented
        if rented.is_spot:
            ending = LeaseEnding.REVOKED if machine.taken else LeaseEnding.RELEASED
            usd += (
                billing.of(rented.market.cloud)
                .bill(prices[rented.market], rented.began_s, machine.ended_s, ending)
                .usd
            )
            continue
        listed = default_catalogue().on_demand_usd_per_hour(rented.market, rented.began_s)
        assert listed is not None
        constant = PriceSeries(np.array([rented.began_s]), np.array([listed]))
        usd += (
            (billing.on_demand or ON_DEMAND)
            .bill(constant, rented.began_s, machine.ended_s, LeaseEnding.RELEASED)
            .usd
        )
    return usd
