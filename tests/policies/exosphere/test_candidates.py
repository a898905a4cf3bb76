"""Candidates and what goes together, worked out by hand and against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ebbtide as eb
from ebbtide.base.utc import DAY_S, HOUR_S, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.exosphere import solve_portfolio
from ebbtide.policies.exosphere.candidates import (
    Candidates,
    Windows,
    assess,
    hybrid_covariance,
    price_covariance,
    revocation_covariance,
)

START_S = to_epoch_s("2015-06-01T00:00:00Z")
C3 = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")
M3 = eb.Market("aws", "us-east-1", "us-east-1a", "m3.medium")
ODD = eb.Market("aws", "us-east-1", "us-east-1b", "x9.huge")
LISTED = {C3: 0.21, M3: 0.067}


def history(**points: tuple[eb.Market, list[tuple[float, float]]]) -> eb.PriceHistory:
    series = {}
    for market, steps in points.values():
        hours, usd = zip(*steps, strict=True)
        series[market] = PriceSeries(START_S + np.array(hours) * HOUR_S, np.array(usd))
    return eb.PriceHistory(series, start_s=START_S, end_s=START_S + DAY_S)


def candidates(prices: eb.PriceHistory) -> Candidates:
    return assess(prices, eb.default_catalogue().list_prices(START_S), START_S, START_S + DAY_S)


def test_both_mean_prices_and_revocations_once_a_lease() -> None:
    # Six hours at 0.05, two above the bid (with two prices: one revocation), eight at 0.05, and at the bid to the end.
    found = candidates(history(a=(C3, [(0, 0.05), (6, 0.30), (7, 0.50), (8, 0.05), (16, 0.21)])))
    assert found.on_demand_usd.tolist() == [0.21]
    assert found.is_listed.tolist() == [True]
    assert found.mean_usd[0] == pytest.approx((14 * 0.05 + 0.3 + 0.5 + 8 * 0.21) / 24)
    assert found.mean_paid_usd[0] == pytest.approx((14 * 0.05 + 8 * 0.21) / 22)
    assert found.returns_paid[0] == pytest.approx(1 - found.mean_paid_usd[0] / 0.21)
    assert found.revocations.tolist() == [1]
    # The eight hours and the eight more whose end is not seen count as lived.
    assert found.mttr_s[0] == pytest.approx(22 * HOUR_S)


def test_where_the_list_price_is_not_known_the_highest_seen_stands_for_it() -> None:
    found = candidates(history(a=(ODD, [(0, 1.0), (3, 2.5), (5, 0.5)])))
    assert found.is_listed.tolist() == [False]
    assert found.on_demand_usd.tolist() == [2.5]
    assert np.isinf(found.mttr_s[0])


def test_constraints_leave_those_that_live_long_enough() -> None:
    found = candidates(history(a=(C3, [(0, 0.05), (6, 0.30), (7, 0.05)]), b=(M3, [(0, 0.01)])))
    assert found.where(lambda market: market.instance_type == "c3.xlarge").markets == (C3,)
    assert found.where(lambda _: True, least_mttr_s=23.5 * HOUR_S).markets == (M3,)
    # What is more expensive than on demand nearly always is never taken, and no candidate.
    expensive = candidates(history(a=(C3, [(0, 0.05), (6, 0.30)]), b=(M3, [(0, 0.01)])))
    assert expensive.where(lambda _: True).markets == (M3,)
    # No revocation was seen, but no longer than a day was watched.
    with pytest.raises(InputError, match="none meets the constraints.* and live 25 h"):
        found.where(lambda _: True, least_mttr_s=25 * HOUR_S)
    with pytest.raises(InputError, match="span that markets are judged by is empty"):
        assess(history(a=(M3, [(0, 0.01)])), eb.default_catalogue().list_prices(START_S), START_S, START_S)


def test_revocations_in_one_window_are_simultaneous() -> None:
    """Windows of five minutes on the clock: 06:00:00 and 06:04:59 are in one, 06:05:00 is in the next."""
    minute = 1 / 60
    low, high = 0.01, 9.0
    prices = history(
        a=(C3, [(0, low), (6, high), (7, low), (12, high)]),
        b=(M3, [(0, low), (6 + 4.98 * minute, high), (7, low), (12 + 5 * minute, high)]),
    )
    found = candidates(prices)
    windows = Windows.within(START_S, START_S + DAY_S)
    assert windows.count == 288
    matrix = revocation_covariance(prices, found, windows) * 288
    assert matrix == pytest.approx(np.array([[2.0, 1.0], [1.0, 2.0]]))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 6000))
def test_covariances_are_numpys_and_semidefinite(seed: int, count: int, windows: int) -> None:
    draws = np.random.default_rng(seed)
    markets = [eb.Market("aws", "us-east-1", f"us-east-1{zone}", "c3.xlarge") for zone in "abcdefghijkl"[:count]]
    end_s = START_S + windows * 300.0
    series = {
        market: PriceSeries(
            np.append(START_S, np.unique(START_S + draws.uniform(1, windows * 300.0, 40))),
            draws.lognormal(np.log(0.15), 0.8, 1 + 40),
        )
        for market in markets
    }
    prices = eb.PriceHistory(series, start_s=START_S, end_s=end_s)
    found = assess(prices, eb.default_catalogue().list_prices(START_S), START_S, end_s)
    cut = Windows.within(START_S, end_s)
    times_s = START_S + np.arange(windows) * 300.0
    ratio = np.array([series[market].at_each(times_s) for market in markets]) / 0.21
    assert cut.count == windows
    plain = np.cov(ratio, bias=True).reshape(count, count)
    assert price_covariance(prices, found, cut) == pytest.approx(plain, abs=1e-10)
    changed = np.cov(np.where(ratio < 1.0, ratio, 10.0), bias=True).reshape(count, count)
    assert hybrid_covariance(prices, found, cut) == pytest.approx(changed, abs=1e-9)
    for matrix in (price_covariance(prices, found, cut), revocation_covariance(prices, found, cut)):
        assert np.linalg.eigvalsh(matrix)[0] > -1e-9
        assert solve_portfolio(found.returns, matrix, 3.0).sum() == pytest.approx(1.0)
