"""Early warnings, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.base.utc import DAY_S
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.exosphere.candidates import assess
from ebbtide_papers.exosphere.soft_signals import soft_signals

MARKET = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")


def test_leaps_are_not_warned_of_and_ripples_warn_in_vain() -> None:
    points = [
        (0, 0.1),
        (1_000, 0.6),
        (2_000, 2.0),
        (3_000, 0.1),  # told of 1,000 s before
        (4_000, 3.0),
        (5_000, 0.6),
        (6_000, 0.1),  # a leap; on the way down it is no warning
        (7_000, 0.6),
        (8_000, 0.7),
        (9_000, 0.1),  # in vain, once
        (10_000, 0.6),
        (10_060, 2.0),
        (11_000, 0.1),  # later than the notice itself
    ]
    series = PriceSeries(np.array([time_s for time_s, _ in points], float), np.array([usd for _, usd in points]))
    prices = eb.PriceHistory({MARKET: series}, start_s=0.0, end_s=DAY_S)
    candidates = assess(prices, lambda _: 1.0, 0.0, DAY_S)
    found = soft_signals(prices, candidates, levels=(0.5, 0.9))
    assert found["0.5"] == {
        "revocations": 3,
        "warned_of": pytest.approx(1 / 3),
        "median_lead_s": 1_000.0,
        "warnings": 2,
        "in_vain": 0.5,
    }
    assert found["0.9"]["warnings"] == 0
