"""Price chains: known ones are found again, simulation and steps agree, real rhythms are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.base.utc import DAY_S, HOUR_S, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.forecasts.price_chain import (
    PriceChain,
    hour_of_week,
    load_chain,
    nearest_level,
    price_levels,
    save_chain,
)
from ebbtide.market.price_series import PriceSeries

MONDAY_S = to_epoch_s("2014-01-06T00:00:00Z")
PRICES = np.array([0.02, 0.05, 0.30])


def rhythmic() -> PriceChain:
    """By day the price rises more often."""
    night = np.array([[0.98, 0.02, 0.00], [0.30, 0.69, 0.01], [0.10, 0.20, 0.70]])
    day = np.array([[0.85, 0.13, 0.02], [0.10, 0.80, 0.10], [0.02, 0.08, 0.90]])
    rows = [day if 8 <= slot % 24 < 20 else night for slot in range(168)]
    return PriceChain(PRICES, np.array(rows), 300.0)


def trace(chain: PriceChain, days: float, seed: int = 1) -> PriceSeries:
    ticks = round(days * DAY_S / chain.tick_s)
    places = chain.simulate(MONDAY_S, 0.02, ticks, 1, seed)[0]
    return PriceSeries(MONDAY_S + np.arange(ticks) * chain.tick_s, chain.prices[places])


def test_hours_of_the_week_begin_on_monday() -> None:
    assert hour_of_week(np.array([MONDAY_S, MONDAY_S + 25.5 * HOUR_S, MONDAY_S - 1.0])).tolist() == [0, 25, 167]


def test_levels_are_cents_or_evenly_many_ticks() -> None:
    np.testing.assert_allclose(price_levels(np.array([0.021, 0.018, 0.144, 2.004])), [0.02, 0.14, 2.0])
    fine = price_levels(np.random.default_rng(1).lognormal(-2, 1, 50_000))
    assert 60 < len(fine) <= 100
    assert (np.diff(fine) > 0).all()
    assert nearest_level(PRICES, np.array([0.0, 0.03, 0.04, 5.0])).tolist() == [0, 0, 1, 2]


def test_a_known_chain_is_found_again() -> None:
    true = rhythmic()
    found = PriceChain.fit(trace(true, 400), MONDAY_S, MONDAY_S + 400 * DAY_S, prices=PRICES)
    np.testing.assert_allclose(found.transition.sum(axis=2), 1.0)
    for slot in (3, 12, 100):
        assert np.abs(found.transition[slot] - true.transition[slot])[:2].max() < 0.06


def test_simulation_and_steps_have_the_same_chances_and_charges() -> None:
    chain = rhythmic()
    start_s = MONDAY_S + 7 * HOUR_S
    steps = chain.steps(start_s, 2, HOUR_S)
    np.testing.assert_allclose(steps.transition.sum(axis=2), 1.0)
    places = chain.simulate(start_s, 0.05, 25, 40_000, seed=3)
    usd = chain.prices[places] / 12
    after = places[:, 12]
    for place in range(3):
        assert (after == place).mean() == pytest.approx(steps.transition[0, 1, place], abs=0.01)
        assert usd[after == place, :12].sum(axis=1).mean() == pytest.approx(steps.charge[0, 1, place], rel=0.03)
    assert usd[:, :12].sum(axis=1).var() == pytest.approx(steps.charge_variance[0, 1], rel=0.05)
    # The second hour is by day: from the price then on.
    assert (places[after == 0, 24] == 2).mean() == pytest.approx(steps.transition[1, 0, 2], abs=0.015)


def test_the_same_seed_is_the_same_trace() -> None:
    chain = rhythmic()
    np.testing.assert_array_equal(
        chain.simulate(MONDAY_S, 0.3, 50, 20, 7), chain.simulate(MONDAY_S, 0.3, 50, 20, 7)
    )
    assert (chain.simulate(MONDAY_S, 0.3, 50, 20, 7) != chain.simulate(MONDAY_S, 0.3, 50, 20, 8)).any()


def test_what_a_chain_cannot_be_made_of_is_told() -> None:
    with pytest.raises(InputError, match="a week of prices at least"):
        PriceChain.fit(trace(rhythmic(), 3), MONDAY_S, MONDAY_S + 3 * DAY_S)
    with pytest.raises(InputError, match="not a whole number of ticks"):
        rhythmic().steps(MONDAY_S, 1, 400.0)


def profile(chain: PriceChain, places: np.ndarray) -> np.ndarray:
    """Mean price by hour of the day; traces begin on Monday at 0:00 and last whole days."""
    hours = chain.prices[places].reshape(len(places), -1, 24, 12)
    return hours.mean(axis=(0, 1, 3))


def test_what_it_simulates_is_like_what_came_later_and_has_its_rhythm() -> None:
    """Marginals, time from change to change, and the day's rhythm, which a chain without hours has not."""
    record = trace(rhythmic(), 300, seed=9)
    split_s = MONDAY_S + 200 * DAY_S
    chain = PriceChain.fit(record, MONDAY_S, split_s, prices=PRICES)
    plain = chain.unconditioned(record, MONDAY_S, split_s)
    later = nearest_level(PRICES, record.prices[record.times_s >= split_s - 4 * DAY_S])[: 98 * 288].reshape(1, -1)
    made = {
        name: one.simulate(MONDAY_S, 0.02, 7 * 288, 200, seed=2)
        for name, one in (("chain", chain), ("plain", plain))
    }
    shares = [np.bincount(places.ravel(), minlength=3) / places.size for places in (later, made["chain"])]
    np.testing.assert_allclose(shares[0], shares[1], atol=0.03)
    changes = [(np.diff(places.astype(int), axis=1) != 0).mean() for places in (later, made["chain"])]
    assert changes[0] == pytest.approx(changes[1], rel=0.05)
    off = {name: np.abs(profile(chain, places) - profile(chain, later)).mean() for name, places in made.items()}
    assert off["chain"] < 0.4 * off["plain"]
    assert chain.log_likelihood(record, split_s, record.times_s[-1]) > plain.log_likelihood(
        record, split_s, record.times_s[-1]
    )


@pytest.mark.real_traces
def test_of_later_days_on_real_markets_hours_tell_more_than_none(auction_2015: eb.PriceHistory) -> None:
    start_s, end_s = auction_2015.start_s, auction_2015.end_s
    middle_s = start_s + 0.6 * (end_s - start_s)
    gains = []
    for series in auction_2015.values():
        chain = PriceChain.fit(series, start_s, middle_s)
        plain = chain.unconditioned(series, start_s, middle_s)
        gains.append(chain.log_likelihood(series, middle_s, end_s) - plain.log_likelihood(series, middle_s, end_s))
    assert np.mean(gains) > 0
    assert np.median(gains) >= 0


def test_a_chain_is_read_as_it_was_written(tmp_path: Path) -> None:
    chain = rhythmic()
    save_chain(chain, tmp_path / "chain.safetensors", {"market": "here"})
    found, about = load_chain(tmp_path / "chain.safetensors")
    assert about == {"market": "here"}
    assert found.tick_s == chain.tick_s
    np.testing.assert_array_equal(found.transition, chain.transition)
    (tmp_path / "other").write_bytes(b"something else")
    with pytest.raises(InputError, match="cannot be read as a price chain"):
        load_chain(tmp_path / "other")
