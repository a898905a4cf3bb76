import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.markets import START_S, series

from ebbtide.market.price_series import PriceSeries


@st.composite
def any_series(draw: st.DrawFn) -> PriceSeries:
    gaps = draw(st.lists(st.integers(1, 400), min_size=1, max_size=200))
    prices = draw(st.lists(st.integers(1, 20), min_size=len(gaps), max_size=len(gaps)))
    return PriceSeries(np.cumsum(np.array(gaps, dtype=float)), np.array(prices) / 100)


def by_walking(price_series: PriceSeries, time_s: float) -> float:
    """The price at a time, found the slow way."""
    price = math.nan
    for at, value in zip(price_series.times_s, price_series.prices, strict=True):
        if at <= time_s:
            price = float(value)
    return price


def test_a_price_holds_from_its_time_until_the_next() -> None:
    prices = series((0, 0.1), (60, 0.2))
    assert [prices.at(START_S + t) for t in (0, 59.9, 60, 1e6)] == [0.1, 0.1, 0.2, 0.2]
    assert math.isnan(prices.at(START_S - 0.1))
    assert prices.next_change(START_S) == START_S + 60
    assert prices.next_change(START_S + 60) == math.inf


def test_next_above_is_the_first_moment_of_a_higher_price() -> None:
    prices = series((0, 0.1), (60, 0.3), (120, 0.1), (180, 0.5))
    assert prices.next_above(START_S, 0.2) == START_S + 60
    assert prices.next_above(START_S + 70, 0.2) == START_S + 70  # already above
    assert prices.next_above(START_S + 120, 0.2) == START_S + 180
    assert prices.next_above(START_S, 0.3) == START_S + 180  # equal is not above
    assert prices.next_above(START_S, 0.5) == math.inf
    assert prices.next_above(START_S, math.inf) == math.inf
    assert prices.next_above(START_S - 10, 0.05) == START_S


def test_means_and_shares_are_weighted_by_time() -> None:
    prices = series((0, 0.1), (60, 0.4))
    assert prices.mean(START_S, START_S + 180) == pytest.approx((60 * 0.1 + 120 * 0.4) / 180)
    assert prices.share_above(START_S, START_S + 180, 0.2) == pytest.approx(2 / 3)
    assert math.isnan(prices.mean(START_S - 60, START_S))


@given(any_series(), st.floats(-100, 100_000), st.floats(1, 50_000))
def test_look_ups_agree_with_walking_along_the_series(
    prices: PriceSeries, start_s: float, length_s: float
) -> None:
    assert prices.at(start_s) == pytest.approx(by_walking(prices, start_s), nan_ok=True)
    assert prices.at_each(np.array([start_s]))[0] == pytest.approx(by_walking(prices, start_s), nan_ok=True)
    times, values = prices.between(start_s, start_s + length_s)
    for at, value in zip(times, values, strict=True):
        assert start_s <= at < start_s + length_s
        assert value == by_walking(prices, at)


@given(any_series(), st.floats(-100, 100_000), st.integers(0, 21))
def test_next_above_agrees_with_walking_along_the_series(prices: PriceSeries, start_s: float, cents: int) -> None:
    limit = cents / 100
    moments = [start_s, *(at for at in prices.times_s if at > start_s)]
    expected = next((at for at in moments if by_walking(prices, at) > limit), math.inf)
    assert prices.next_above(start_s, limit) == expected


@given(
    st.lists(st.tuples(st.integers(1, 5_000), st.floats(0.001, 50.0)), min_size=1, max_size=30),
    st.integers(0, 60_000),
    st.integers(1, 60_000),
)
def test_the_mean_is_that_of_its_seconds(rows: list[tuple[int, float]], first: int, length: int) -> None:
    times = np.cumsum([step for step, _ in rows]).astype(float)
    prices = PriceSeries(START_S + times, np.array([price for _, price in rows]))
    known = prices.at_each(START_S + np.arange(first, first + length, dtype=float))
    known = known[np.isfinite(known)]
    mean = prices.mean(START_S + first, START_S + first + length)
    assert math.isnan(mean) if not len(known) else mean == pytest.approx(known.mean(), rel=1e-9)
