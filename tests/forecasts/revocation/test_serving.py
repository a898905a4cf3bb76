"""Served forecasts: the features of the whole record at each minute, from past prices alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.markets import C3, R3, START_S, history

import ebbtide as eb
from ebbtide.forecasts.revocation import passage
from ebbtide.forecasts.revocation.forecasts import Learnt
from ebbtide.forecasts.revocation.minutes import WINDOW, minutes_of
from ebbtide.forecasts.revocation.models import MODELS
from ebbtide.forecasts.revocation.predictor import RevocationModel
from ebbtide.forecasts.revocation.serving import PricesAt, Served, past_hour
from ebbtide.forecasts.revocation.splits import split_at
from ebbtide.forecasts.revocation.training import TrainingSettings
from ebbtide.market.prices import PriceHistory


@pytest.fixture(scope="module")
def lively() -> PriceHistory:
    return eb.generate_prices(days=12, seed=5, kind="auction")


@pytest.fixture(scope="module")
def models(lively: PriceHistory) -> dict[str, RevocationModel]:
    minutes = minutes_of(lively)
    split = split_at(minutes, 60, 6, 0.5, stride=60)
    found = {}
    for name in ("revpred", "tributary", "logistic", "base-rate"):
        model = MODELS[name](0)
        if hasattr(model, "training"):
            model.training = TrainingSettings(epochs=1)
        model.fit(minutes, split.train, split.validation)
        found[name] = model
    return found


def same_as_of_the_whole_record(prices: PriceHistory, minute: int, late_s: float) -> None:
    minutes = minutes_of(prices)
    minute_s = float(minutes.times_s[minute])
    view = PricesAt(prices, minute_s + late_s)
    found, has_past = past_hour(view, list(prices), minute_s)
    np.testing.assert_array_equal(has_past, minutes.has_past[:, minute])
    hour = slice(minute - WINDOW + 1, minute + 1)
    for row in np.flatnonzero(has_past):
        np.testing.assert_allclose(found.features[row], minutes.features[row, hour], rtol=1e-5)
        np.testing.assert_array_equal(found.prices[row], minutes.prices[row, hour])


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.integers(2 * WINDOW, 12 * 1440 - 2 * WINDOW), st.floats(0.0, 1800.0))
def test_the_hour_before_a_minute_is_that_of_the_whole_record(
    lively: PriceHistory, minute: int, late_s: float
) -> None:
    same_as_of_the_whole_record(lively, minute, late_s)


@pytest.mark.parametrize("hours", [1.0, 1.5, 30.0, 36.0, 36.5, 37.5, 60.0, 61.2, 70.0, 190.0])
def test_gaps_and_beginnings_are_those_of_the_whole_record(hours: float) -> None:
    prices = history(
        {
            C3: [(0, 0.1), (600, 0.2), (60 * 3600, 0.2), (60 * 3600 + 90, 0.4)],
            R3: [(hour * 3600, 0.1) for hour in range(0, 200, 20)],
        },
        hours=200,
    )
    same_as_of_the_whole_record(prices, round(hours * 60), 30.0)


@pytest.mark.long
@pytest.mark.parametrize("name", ["revpred", "tributary", "logistic", "base-rate"])
def test_every_model_answers_from_past_prices_what_it_answers_from_the_record(
    lively: PriceHistory, models: dict[str, RevocationModel], name: str
) -> None:
    minutes, model, markets = minutes_of(lively), models[name], list(lively)
    for column in (8 * 1440, 9 * 1440 + 470):
        view = PricesAt(lively, float(minutes.times_s[column]) + 400.0)
        now = np.array([view.price(market) for market in markets])
        for ratio in (1.003, 1.2):
            found = Served(model).probabilities(view, markets, now * ratio)
            expected = Learnt(model, minutes).probabilities(view, markets, now * ratio)  # type: ignore[arg-type]
            np.testing.assert_allclose(found, expected, atol=1e-4)
            assert found.max() > 0.0


def test_nothing_later_is_looked_at(lively: PriceHistory, models: dict[str, RevocationModel]) -> None:
    now_s = lively.start_s + 8 * 86_400 + 1234.0
    changed = PriceHistory(
        {
            market: type(series)(series.times_s, np.where(series.times_s > now_s, 1000.0, 1.0) * series.prices)
            for market, series in lively.items()
        },
        start_s=lively.start_s,
        end_s=lively.end_s,
    )
    served, markets = Served(models["revpred"]), list(lively)
    asked = np.array([lively[market].at(now_s) * 1.02 for market in markets])
    np.testing.assert_array_equal(
        served.probabilities(PricesAt(lively, now_s), markets, asked),
        served.probabilities(PricesAt(changed, now_s), markets, asked),
    )


def test_answers_are_kept_within_ten_minutes_and_never_for_another_history(
    lively: PriceHistory, models: dict[str, RevocationModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["revpred"]
    asked = []
    answer = model.probabilities
    monkeypatch.setattr(model, "probabilities", lambda m, s, p: asked.append(len(s)) or answer(m, s, p))
    served, markets = Served(model), list(lively)
    now_s = lively.start_s + 8 * 86_400
    for late_s in (0.0, 1.0, 599.0):
        view = PricesAt(lively, now_s + late_s)
        served.probabilities(view, markets, np.array([view.price(market) * 1.1 for market in markets]))
    assert len(asked) == 1
    view = PricesAt(lively, now_s + 600.0)
    served.probabilities(view, markets[:3], np.array([1.0, 1.0, 1.0]))
    assert asked == [len(markets), 3]
    other = eb.generate_prices(days=12, seed=6, kind="auction")
    twin = PricesAt(other, now_s)
    found = served.probabilities(twin, markets, np.array([twin.price(market) * 1.1 for market in markets]))
    assert asked == [len(markets), 3, len(markets)]
    np.testing.assert_allclose(
        found,
        Served(model).probabilities(twin, markets, np.array([twin.price(market) * 1.1 for market in markets])),
        atol=1e-6,
    )


def test_a_market_it_does_not_know_is_not_expected_to_be_revoked(models: dict[str, RevocationModel]) -> None:
    prices = history({R3: [(0, 0.1), (7200, 0.2)]}, hours=10)
    stranger = eb.Market("aws", "eu-west-1", "eu-west-1a", "x.strange")
    known = PriceHistory({stranger: prices[R3]}, start_s=START_S, end_s=prices.end_s)
    served = Served(models["revpred"])
    view = PricesAt(known, START_S + 5 * 3600)
    assert served.probabilities(view, [stranger], np.array([0.3])) == [0.0]
    assert served.probabilities(view, [stranger], np.array([0.1])) == [1.0]
    assert served.answers(view, [stranger]) == {}


def test_it_is_sent_to_other_processes_without_its_answers(
    lively: PriceHistory, models: dict[str, RevocationModel]
) -> None:
    import cloudpickle

    served, markets = Served(models["revpred"]), list(lively)
    empty = len(cloudpickle.dumps(served))
    view = PricesAt(lively, lively.start_s + 8 * 86_400)
    asked = np.array([view.price(market) * 1.1 for market in markets])
    here = served.probabilities(view, markets, asked)
    assert len(cloudpickle.dumps(served)) == pytest.approx(empty, rel=0.02)
    there = cloudpickle.loads(cloudpickle.dumps(served)).probabilities(view, markets, asked)
    np.testing.assert_array_equal(here, there)


def test_all_markets_at_once_are_answered_as_one_by_one(
    lively: PriceHistory, models: dict[str, RevocationModel]
) -> None:
    view, markets = PricesAt(lively, lively.start_s + 7 * 86_400), list(lively)
    asked = np.array([view.price(market) * 1.05 for market in markets])
    together = Served(models["revpred"]).probabilities(view, markets, asked)
    alone = [
        Served(models["revpred"]).probabilities(view, [market], asked[place : place + 1])[0]
        for place, market in enumerate(markets)
    ]
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_a_full_cache_loses_no_answer_of_the_moment(
    lively: PriceHistory, models: dict[str, RevocationModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    view, markets = PricesAt(lively, lively.start_s + 8 * 86_400), list(lively)
    asked = np.array([view.price(market) * 1.1 for market in markets])
    expected = Served(models["revpred"]).probabilities(view, markets, asked)
    monkeypatch.setattr(passage, "_MAX_KEPT", 5)
    np.testing.assert_array_equal(Served(models["revpred"]).probabilities(view, markets, asked), expected)
