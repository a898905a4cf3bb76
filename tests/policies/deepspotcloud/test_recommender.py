"""The recommender against trying every market."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ebbtide as eb
from ebbtide.policies.api.quotes import KnownQuotes
from ebbtide.policies.deepspotcloud.policy import ranked, recommend, usd_per_step

MARKETS = [
    eb.Market("aws", "us-east-1", f"us-east-1{zone}", name)
    for zone in "abc"
    for name in ("p2.xlarge", "p3.2xlarge", "m3.medium")
]
JOB = eb.Job(name="g", steps=100, steps_per_hour={"p2.xlarge": 100.0, "p3.2xlarge": 960.0})


@given(st.lists(st.sampled_from([0.1, 0.5, 0.89, 0.91, 2.0, 3.05, 3.1]), min_size=9, max_size=9))
def test_it_names_the_cheapest_step_below_the_list_price(prices: list[float]) -> None:
    quotes = KnownQuotes(dict(zip(MARKETS, prices, strict=True)), eb.default_catalogue(), 1.5e9)
    best = recommend(quotes, JOB)
    able = [
        (price / JOB.steps_per_hour[market.instance_type], market)
        for market, price in zip(MARKETS, prices, strict=True)
        if market.instance_type in JOB.steps_per_hour
        and price <= {"p2.xlarge": 0.9, "p3.2xlarge": 3.06}[market.instance_type]
    ]
    assert [market for _, market in sorted(able)] == ranked(quotes, JOB)
    assert best == (min(able)[1] if able else None)
    if best is not None:
        assert usd_per_step(quotes, JOB, best) == pytest.approx(min(able)[0])
