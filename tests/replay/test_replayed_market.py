"""The order in which a replayed market tells what happens at one moment."""

from __future__ import annotations

import math

import numpy as np

from ebbtide.market.billing import billing_preset
from ebbtide.market.leases import Lease
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.events import Wake
from ebbtide.replay.replayed_market import ReplayedMarket
from ebbtide.replay.start_delay import StartDelay

FIRST, SECOND = (Market("aws", "us-east-1", f"us-east-1{zone}", "c3.xlarge") for zone in "ab")


def test_prices_of_one_moment_come_in_the_order_of_markets_and_before_the_notices() -> None:
    # The second market has changed last, so its next change has been on the calendar for longest.
    prices = PriceHistory(
        {
            FIRST: PriceSeries(np.array([0.0, 50.0, 100.0]), np.array([0.1, 0.2, 0.9])),
            SECOND: PriceSeries(np.array([0.0, 100.0]), np.array([0.1, 0.3])),
        },
        end_s=1000.0,
    )
    market = ReplayedMarket(prices, 0.0, billing_preset("ec2-second"), delay=StartDelay(0.0, 0.0))
    market.watch_prices()
    market.launch(Lease(0, FIRST, 0.5, False, 0.0))
    told = []
    while market.next_time_s < math.inf and market.now_s <= 100.0:
        event = market.advance()
        if event is not None and event.time_s == 100.0:
            told.append((event.wake, event.market))
    assert told == [(Wake.PRICE, FIRST), (Wake.PRICE, SECOND), (Wake.NOTICE, None)]


def test_a_machine_whose_revocation_is_asked_for_gets_its_notice_at_any_price() -> None:
    prices = PriceHistory({FIRST: PriceSeries(np.array([0.0]), np.array([0.1]))}, end_s=1000.0)
    market = ReplayedMarket(prices, 0.0, billing_preset("gcp-spot"), delay=StartDelay(5.0, 5.0))
    lease = Lease(0, FIRST, 0.5, False, 0.0)
    market.launch(lease)
    market.interrupt(lease)  # it does not run yet, so there is nothing to revoke
    told = []
    while market.next_time_s < 900.0:
        event = market.advance()
        if event is not None:
            told.append((event.time_s, event.wake, event.detail))
            if event.wake is Wake.RUNNING:
                market.interrupt(lease)
    assert told == [(10.0, Wake.RUNNING, ""), (10.0, Wake.NOTICE, "asked for"), (40.0, Wake.ENDED, "revoked")]
