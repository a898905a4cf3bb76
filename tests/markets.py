"""Small histories and jobs for tests that are worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ebbtide.base.utc import to_epoch_s
from ebbtide.jobs.job import Checkpointing, Job
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory

START_S = to_epoch_s("2015-04-01T00:00:00Z")

C3 = Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")
R3 = Market("aws", "us-east-1", "us-east-1b", "r3.large")


def series(*points: tuple[float, float]) -> PriceSeries:
    """A series from (seconds after START_S, price) pairs."""
    times, prices = zip(*points, strict=True)
    return PriceSeries(START_S + np.array(times, dtype=float), np.array(prices, dtype=float))


def history(points: Mapping[Market, Sequence[tuple[float, float]]], hours: float = 100.0) -> PriceHistory:
    """A history of so many hours from START_S on."""
    markets = {market: series(*rows) for market, rows in points.items()}
    return PriceHistory(markets, start_s=START_S, end_s=START_S + hours * 3600)


def job(
    steps: int = 3600, *, per_hour: float = 3600.0, save_s: float = 10.0, restore_s: float = 20.0, **more
) -> Job:
    """A job of one step a second on c3.xlarge and half that on r3.large."""
    rates = {"c3.xlarge": per_hour, "r3.large": per_hour / 2}
    checkpoint = Checkpointing(save_s=save_s, restore_s=restore_s, interval_s=more.pop("interval_s", None))
    return Job(name="test", steps=steps, steps_per_hour=rates, **({"checkpoint": checkpoint} | more))
