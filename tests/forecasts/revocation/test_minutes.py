"""Features and truth, minute by minute; and that features know nothing of what comes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.markets import C3, R3, START_S, history

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.evaluation import fit_latest
from ebbtide.forecasts.revocation.minutes import FEATURES, Minutes, minutes_of
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory


def test_the_six_features_by_hand() -> None:
    # 2015-04-01 is a Wednesday. Two changes, at 00:30 and 00:50:30, and one row that changes nothing.
    prices = history({C3: [(0, 0.10), (1800, 0.40), (2400, 0.40), (3030, 0.20)]}, hours=4)
    laid = minutes_of(prices)
    at = {name: laid.features[0, 60, place] for place, name in enumerate(FEATURES)}
    assert at["price_usd_per_hour"] == pytest.approx(0.20)
    # The 60 records from 00:01 to 01:00: 29 at 0.10, 21 at 0.40, 10 at 0.20.
    assert at["mean_price_usd_per_hour"] == pytest.approx((29 * 0.10 + 21 * 0.40 + 10 * 0.20) / 60)
    assert at["changes"] == 2
    assert at["seconds_since_change"] == 3600 - 3030
    assert (at["workday"], at["hour"]) == (1, 1)
    sunday = minutes_of(history({C3: [(0, 0.1)]}, hours=120)).features[0, 24 * 60 * 4 + 90]
    assert sunday[4:].tolist() == [0, 1]


def test_algorithm_2_by_hand() -> None:
    # In the hour to 01:00 the price moves in 30 of 60 minutes: by 0.01, 29 times, and once by 1.00.
    points = [(0.0, 1.0)] + [(60.0 * n, 1.0 + (n - 30) % 2 * 0.01) for n in range(31, 60)] + [(3600.0, 2.0)]
    laid = minutes_of(history({C3: points}, hours=4))
    moves = sorted(abs(laid.prices[0, n] - laid.prices[0, n - 1]) for n in range(1, 61))
    kept = [moves[i] for i in range(60) if 0.2 * 60 < i < 0.8 * 60]
    assert laid.border[0, 60] == pytest.approx(2.0 + sum(kept) / 36)
    assert laid.border[0, 60] - 2.0 < 0.01


def test_truth_by_hand() -> None:
    # A spike of ten seconds between two minutes counts; one exactly an hour later does, a second after not.
    laid = minutes_of(history({C3: [(0, 0.1), (5000, 0.9), (5010, 0.1), (7200, 0.5)]}, hours=5))
    highest = laid.highest_next_hour[0]
    assert highest[23] == 0.1  # 00:23 to 01:23
    assert highest[24] == 0.9  # 5000 s is 01:23:20
    assert highest[83] == 0.9
    assert highest[84] == 0.5
    assert highest[59] == 0.9
    assert highest[60] == 0.9
    assert math.isnan(highest[-1])


@settings(max_examples=40)
@given(
    gaps=st.lists(st.integers(5, 4000), min_size=1, max_size=60),
    cents=st.lists(st.integers(1, 50), min_size=61, max_size=61),
    minute=st.integers(60, 200),
)
def test_truth_is_the_highest_price_of_the_next_hour(gaps: list[int], cents: list[int], minute: int) -> None:
    times = START_S + np.concatenate([[0], np.cumsum(gaps)]).astype(float)
    series = PriceSeries(times, np.array(cents[: len(times)]) / 100)
    laid = minutes_of(PriceHistory({C3: series}, start_s=START_S, end_s=START_S + 400 * 60))
    at = laid.times_s[minute]
    _, prices = series.between(at, at + 3600.0001)
    assert laid.highest_next_hour[0, minute] == prices.max()


@settings(max_examples=40)
@given(minute=st.integers(70, 500), seed=st.integers(0, 1000))
def test_features_use_nothing_after_their_minute(minute: int, seed: int) -> None:
    """Everything after the minute is replaced; no feature up to it may move."""
    past = eb.generate_prices(days=0.5, seed=seed, kind="auction")
    now_s = float(np.ceil(past.start_s / 60) * 60) + 60 * minute
    random = np.random.default_rng(seed)
    changed = {}
    for market, series in past.items():
        keep = series.times_s <= now_s
        later = np.sort(random.uniform(now_s + 1, past.end_s, 40))
        changed[market] = PriceSeries(
            np.append(series.times_s[keep], later), np.append(series.prices[keep], random.uniform(0.01, 9, 40))
        )
    future = PriceHistory(changed, start_s=past.start_s, end_s=past.end_s)
    one, other = minutes_of(past), minutes_of(future)
    upto = slice(0, minute + 1)
    np.testing.assert_array_equal(one.features[:, upto], other.features[:, upto])
    np.testing.assert_array_equal(one.border[:, upto], other.border[:, upto])
    # The truth does look ahead: it is not a feature.
    assert not np.array_equal(one.highest_next_hour[:, upto], other.highest_next_hour[:, upto], equal_nan=True)


def test_minutes_about_a_hole_are_left_out() -> None:
    days = 86_400.0
    points = [(3600.0 * n, 0.1 + n % 2 / 10) for n in range(25)] + [
        (4 * days + 3600.0 * n, 0.1 + n % 2 / 10) for n in range(25)
    ]
    laid = minutes_of(history({C3: points}, hours=120))
    day = 24 * 60
    assert laid.complete[0, 61 : day - 61].all()
    assert not laid.complete[0, day - 59 : 4 * day + 59].any()
    assert laid.complete[0, 4 * day + 61 : 5 * day - 61].all()
    # A price is vouched for until it is older than any republished one would be.
    assert laid.has_past[0, 2 * day]
    assert not laid.has_past[0, 3 * day]


def test_what_is_not_there_is_told(minutes: Minutes) -> None:
    with pytest.raises(InputError, match="market us-east-1b r3.large is not in the prices"):
        minutes_of(history({C3: [(0, 0.1)]}, hours=5)).rows([R3])
    with pytest.raises(InputError, match="outside the prices"):
        minutes.minute("2012-01-01T00:00:00Z")
    with pytest.raises(InputError, match="the history has 31 minutes; at least 120 are needed"):
        minutes_of(history({C3: [(0, 0.1)]}, hours=0.5))


@pytest.mark.real_traces
def test_the_base_rates_of_2015_are_as_known(auction_2015: eb.PriceHistory) -> None:
    """Share of minutes revoked within the hour: any rise 3 to 69 % by market, +10 % 0 to 30 %."""
    laid = minutes_of(auction_2015)
    any_rise, tenth = [], []
    for row in range(len(laid.markets)):
        own = laid.complete[row]
        ratio = laid.highest_next_hour[row, own] / laid.prices[row, own]
        any_rise.append(float((ratio > 1).mean()))
        tenth.append(float((ratio > 1.1).mean()))
    assert (min(any_rise), max(any_rise)) == (pytest.approx(0.03, abs=0.01), pytest.approx(0.68, abs=0.02))
    assert (min(tenth), max(tenth)) == (pytest.approx(0.0, abs=0.01), pytest.approx(0.29, abs=0.02))


def on_grid(prices: PriceHistory, method: str, folder: Path) -> PriceHistory:
    """The minute grid of some prices, by way of its file as in the pipeline."""
    prices.resample(60, method=method).write(folder / "grid.parquet")
    return PriceHistory.read(folder / "grid.parquet")


def test_features_come_from_the_grid_and_truth_from_the_record(tmp_path: Path) -> None:
    # The price rises at 01:20 from 0.10 to 0.40. A linear grid climbs there from 00:00, minute by minute.
    prices = history({C3: [(0, 0.10), (4800, 0.40)]}, hours=4)
    recorded = minutes_of(prices)
    stepped, linear = (minutes_of(prices, on_grid(prices, method, tmp_path)) for method in ("step", "linear"))
    np.testing.assert_array_equal(stepped.features, recorded.features)
    at = {name: linear.features[0, 60, place] for place, name in enumerate(FEATURES)}
    assert at["price_usd_per_hour"] == pytest.approx(0.10 + 0.30 * 60 / 80)
    assert at["mean_price_usd_per_hour"] == pytest.approx(0.10 + 0.30 * (60 * 61 / 2 / 60) / 80)
    assert (at["changes"], at["seconds_since_change"]) == (60, 0)
    assert recorded.features[0, 60, FEATURES.index("changes")] == 0
    for drawn in (stepped, linear):
        np.testing.assert_array_equal(drawn.highest_next_hour, recorded.highest_next_hour)
        np.testing.assert_array_equal(drawn.complete, recorded.complete)


def test_a_grid_of_other_markets_is_refused() -> None:
    grid = history({R3: [(0, 0.1)]}, hours=5)
    with pytest.raises(InputError, match="lacks .*c3"):
        minutes_of(history({C3: [(0, 0.1)]}, hours=5), grid)


@pytest.mark.long
def test_a_model_is_trained_on_the_grid_and_scored_on_recorded_prices(tmp_path: Path) -> None:
    """A linear grid looks ahead: scores on it would be those of a model that sees the next price coming."""
    prices = eb.generate_prices(days=2, seed=1, kind="auction")
    grid = on_grid(prices, "linear", tmp_path)
    told, plain = (fit_latest(prices, train_days=1, test_days=0.5, stride=120, grid=g) for g in (grid, None))
    np.testing.assert_array_equal(told.minutes.prices, plain.minutes.prices)
    assert told.pooled != plain.pooled
