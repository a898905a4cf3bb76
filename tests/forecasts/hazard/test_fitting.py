"""Fitting: levels and weights that drawn records have are found again."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.hazard.fitting import (
    asked,
    base_of,
    expected_rises,
    fit_hazard,
    logistic_weights,
    passage_chance,
    poisson_weights,
)
from ebbtide.forecasts.hazard.model import LOSS_FEATURES, default_hazard
from ebbtide.forecasts.hazard.observations import MarketObservations
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries

TICK_S = 600.0


def drawn(name: str, per_hour: float, seed: int, ticks: int = 4000, region: str = "r") -> MarketObservations:
    """A market with constant rates: machines come back within an hour in the mean."""
    random, up, states = np.random.default_rng(seed), True, []
    for chance in random.random(ticks).tolist():
        states.append(up)
        if chance < (per_hour if up else 1.0) * TICK_S / HOUR_S:
            up = not up
    market = Market("aws", region, name, "p3.2xlarge")
    return MarketObservations(market, np.arange(ticks) * TICK_S, np.array(states), 2 * TICK_S)


def test_weights_of_a_poisson_regression_are_found() -> None:
    random = np.random.default_rng(1)
    features = np.column_stack([np.ones(60_000), random.normal(size=60_000)])
    expected = np.full(60_000, 0.1)
    ended = (random.random(60_000) < -np.expm1(-expected * np.exp(features @ [0.3, 0.7]))).astype(float)
    assert poisson_weights(features, expected, ended, np.zeros(2)) == pytest.approx([0.3, 0.7], abs=0.12)


def test_weights_of_a_logistic_regression_are_found() -> None:
    random = np.random.default_rng(1)
    features = np.column_stack([np.ones(60_000), random.normal(size=60_000)])
    happened = (random.random(60_000) < 1.0 / (1.0 + np.exp(-features @ [-1.0, 0.8]))).astype(float)
    assert logistic_weights(features, happened, np.zeros(2)) == pytest.approx([-1.0, 0.8], abs=0.06)


def test_little_data_leave_the_prior() -> None:
    prior = np.array([0.5, -0.5])
    few = np.ones((1, 2))
    assert poisson_weights(few, np.array([0.01]), np.array([0.0]), prior) == pytest.approx(prior, abs=0.01)
    assert logistic_weights(np.empty((0, 2)), np.empty(0), prior) == pytest.approx(prior)


def test_levels_are_those_of_the_markets() -> None:
    """Machines of one zone go four times as often as those of the other."""
    record = [drawn("a", 0.2, 1), drawn("b", 0.8, 2)]
    hazard = fit_hazard(record)
    ratio = hazard.level(record[1].market).up / hazard.level(record[0].market).up
    # Less than four: old spells are mostly of the first zone, and the hazard of all markets falls with age for it.
    assert 2.4 < ratio < 4.5
    # A zone of the region that was not seen has the region's level.
    unknown = hazard.level(Market("aws", "r", "c", "p3.2xlarge")).up
    assert hazard.level(record[0].market).up < unknown < hazard.level(record[1].market).up


def test_moments_are_asked_from_their_past_alone() -> None:
    """Later observations change nothing that is asked at a moment."""
    record = [drawn("a", 0.3, 1, 400), drawn("b", 0.6, 2, 400)]
    hazard = default_hazard()
    until_s = 200 * TICK_S
    whole, _ = asked(hazard, record)
    cut, _ = asked(hazard, [each.between(0.0, until_s) for each in record])
    # The last tick's outcome is not known in the shorter record.
    kept = whole.where(whole.time_s < until_s - TICK_S)
    assert np.array_equal(kept.features, cut.features[: len(kept.features)])


def test_shortages_of_a_region_tell() -> None:
    """Two zones whose machines go together: losses next door raise the chance of a loss."""
    first = drawn("a", 0.3, 1)
    late = np.append(first.is_up[:1], first.is_up[:-1])
    second = MarketObservations(Market("aws", "r", "b", "p3.2xlarge"), first.times_s, late, 2 * TICK_S)
    hazard = fit_hazard([first, second])
    weights = dict(zip(LOSS_FEATURES, hazard.loss[0].tolist(), strict=True))
    assert weights["lost in the region"] > 0.5


def test_nothing_to_learn_from_is_an_error() -> None:
    one = drawn("a", 0.3, 1, 1)
    with pytest.raises(InputError, match="no spell"):
        base_of([one], None)
    base, levels = base_of([one], default_hazard())
    assert np.array_equal(base.per_hour, default_hazard().base.per_hour)
    assert levels == {}


def test_rises_of_a_price_by_hand() -> None:
    """A price that is above the max price ten minutes of each hour comes above it within the next."""
    times_s = np.arange(0.0, 8 * 24 * HOUR_S, 600.0)
    usd = np.where(np.arange(len(times_s)) % 6 == 5, 2.0, 0.5)
    series = PriceSeries(times_s, usd)
    own = MarketObservations(Market("aws", "r", "a", "m"), times_s, usd <= 1.0, 900.0, False, series, 1.0)
    now_s = 7 * 24 * HOUR_S
    assert passage_chance(own, now_s, HOUR_S) > 0.9
    assert expected_rises(own, now_s) > 2.0
    assert passage_chance(own, now_s, 600.0) < 0.2
