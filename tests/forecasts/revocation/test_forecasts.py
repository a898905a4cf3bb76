"""Forecasts: two ways to the same frequency, nothing from the future but where it is the point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.markets import C3, R3, START_S, history

import ebbtide as eb
from ebbtide.forecasts.revocation.forecasts import Foresight, Learnt, Never, PastFrequency, RecentFrequency
from ebbtide.forecasts.revocation.minutes import minutes_of
from ebbtide.forecasts.revocation.models import revpred
from ebbtide.forecasts.revocation.serving import PricesAt
from ebbtide.forecasts.revocation.splits import split_at
from ebbtide.forecasts.revocation.training import TrainingSettings
from ebbtide.market.prices import PriceHistory


@pytest.fixture(scope="module")
def lively_prices() -> PriceHistory:
    return eb.generate_prices(days=12, seed=5, kind="auction")


def test_frequencies_by_hand() -> None:
    """Every four hours a spike of half an hour: 60 of 240 minutes have it within the hour and are not in it."""
    points = [pair for n in range(24) for pair in ((n * 14_400, 0.1), (n * 14_400 + 12_600, 0.3))]
    prices = history({C3: points, R3: [(0, 0.1)]}, hours=96)
    view = PricesAt(prices, START_S + 3 * 86_400)
    asked = np.array([0.2, 0.2])
    found = RecentFrequency(days=2).probabilities(view, [C3, R3], asked)
    assert found[0] == pytest.approx(60 / 240, abs=0.03)  # hours are counted every five minutes
    assert found[1] == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("days_in", [8.0, 9.51, 11.3])
def test_two_ways_to_the_same_frequency(lively_prices: PriceHistory, days_in: float) -> None:
    now_s = lively_prices.start_s + days_in * 86_400
    view, markets = PricesAt(lively_prices, now_s), list(lively_prices.markets)
    for ratio in (1.001, 1.05, 1.5):
        asked = np.array([view.price(market) * ratio for market in markets])
        slow = RecentFrequency().probabilities(view, markets, asked)
        fast = PastFrequency(minutes_of(lively_prices)).probabilities(view, markets, asked)
        np.testing.assert_allclose(fast, slow, atol=0.05)


def test_nothing_later_is_looked_at(lively_prices: PriceHistory) -> None:
    """What comes after now is set to a thousand times as much; no answer changes, but foresight's."""
    now_s = lively_prices.start_s + 8 * 86_400 + 1234.0
    changed = PriceHistory(
        {
            market: type(series)(series.times_s, np.where(series.times_s > now_s, 1000.0, 1.0) * series.prices)
            for market, series in ((market, lively_prices[market]) for market in lively_prices.markets)
        },
        start_s=lively_prices.start_s,
        end_s=lively_prices.end_s,
    )
    minutes, after = minutes_of(lively_prices), minutes_of(changed)
    model = revpred()
    model.training = TrainingSettings(epochs=1)
    split = split_at(minutes, 60, 6, 0.5, stride=60)
    model.fit(minutes, split.train, split.validation)
    markets = list(lively_prices.markets)
    asked = np.array([lively_prices[market].at(now_s) * 1.02 for market in markets])
    for one, other in (
        (PastFrequency(minutes), PastFrequency(after)),
        (Learnt(model, minutes), Learnt(model, after)),
        (RecentFrequency(), RecentFrequency()),
    ):
        np.testing.assert_array_equal(
            one.probabilities(PricesAt(lively_prices, now_s), markets, asked),
            other.probabilities(PricesAt(changed, now_s), markets, asked),
        )
    seen = Foresight(after).probabilities(PricesAt(changed, now_s), markets, asked)
    assert seen.max() == 1.0


def test_a_learnt_forecast_says_what_its_model_says(lively_prices: PriceHistory) -> None:
    minutes = minutes_of(lively_prices)
    model = revpred()
    model.training = TrainingSettings(epochs=1)
    split = split_at(minutes, 60, 6, 0.5, stride=60)
    model.fit(minutes, split.train, split.validation)
    column = 8 * 1440
    view, markets = PricesAt(lively_prices, float(minutes.times_s[column])), list(lively_prices.markets)
    prices = np.array([view.price(market) for market in markets])
    samples = replace(split.test, market=np.arange(len(markets)), minute=np.full(len(markets), column))
    for ratio in (1.003, 1.2):
        direct = model.probabilities(minutes, samples, prices[:, None] * ratio)[:, 0]
        found = Learnt(model, minutes, every_min=1).probabilities(view, markets, prices * ratio)
        # Between the rises that were asked about it is interpolated.
        np.testing.assert_allclose(found, direct, atol=0.03)
    ahead = Learnt(model, minutes)
    ahead.look_ahead(np.array([column, column + 30]))
    np.testing.assert_allclose(
        ahead.probabilities(view, markets, prices * 1.1),
        Learnt(model, minutes).probabilities(view, markets, prices * 1.1),
        rtol=1e-4,
    )


def test_a_max_price_below_the_price_is_certain(lively_prices: PriceHistory) -> None:
    view, markets = PricesAt(lively_prices, lively_prices.start_s + 8 * 86_400), list(lively_prices.markets)
    below = np.array([view.price(market) * 0.9 for market in markets])
    for forecast in (RecentFrequency(), PastFrequency(minutes_of(lively_prices))):
        assert (forecast.probabilities(view, markets, below) == 1.0).all()
    assert (Never().probabilities(view, markets, below) == 0.0).all()
