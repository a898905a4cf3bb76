from __future__ import annotations

import pytest

import ebbtide as eb
from ebbtide.forecasts.revocation.minutes import Minutes, minutes_of
from ebbtide.forecasts.revocation.splits import Split, split_at
from ebbtide.market.generator import MarketProfile, demo_markets, generate_auction_prices


@pytest.fixture(scope="session")
def lively() -> eb.PriceHistory:
    """Three generated markets of eight days that spike often."""
    profile = MarketProfile(spikes_per_day=6.0, change_interval_min=5.0)
    return generate_auction_prices(demo_markets()[:3], days=8, seed=3, profile=profile)


@pytest.fixture(scope="session")
def minutes(lively: eb.PriceHistory) -> Minutes:
    return minutes_of(lively)


@pytest.fixture(scope="session")
def split(minutes: Minutes) -> Split:
    return split_at(minutes, 60, 5, 1, stride=20, test_stride=10)
