"""When prices pass max prices: against counting, moment by moment."""

from __future__ import annotations

import numpy as np
import pytest
from tests.markets import C3, START_S, history, series

from ebbtide.forecasts.revocation.passage import (
    CELL_S,
    CELLS,
    ForeseenPassages,
    SimilarMoments,
    first_passages,
    held_since,
    highest_rises,
)
from ebbtide.market.price_series import PriceSeries


class At:
    """The prices of one market up to a moment."""

    def __init__(self, prices: PriceSeries, now_s: float) -> None:
        self.prices, self.now_s = prices, now_s

    def price(self, market: object) -> float:  # noqa: ARG002
        return self.prices.at(self.now_s)

    def past_prices(self, market: object, duration_s: float) -> tuple[np.ndarray, np.ndarray]:  # noqa: ARG002
        return self.prices.between(self.now_s - duration_s, np.nextafter(self.now_s, np.inf))


RISES = np.array([0.001, 0.5, 5.0])


def wobbling(seed: int, hours: int = 60) -> PriceSeries:
    random = np.random.default_rng(seed)
    times = np.sort(random.uniform(0, hours * 3600, 400))
    return series(*zip([0.0, *times], random.choice([0.1, 0.12, 0.2, 0.9], 401), strict=True))


def test_highest_rises_are_those_counted_one_by_one() -> None:
    prices = wobbling(1)
    begins = START_S + np.arange(4) * CELL_S + 7_200.0
    rose = highest_rises(prices.times_s, prices.prices, begins, CELL_S, CELLS)
    for row, begin_s in enumerate(begins):
        for cell in range(CELLS):
            _, values = prices.between(begin_s, begin_s + (cell + 1) * CELL_S)
            assert rose[row, cell] == pytest.approx(values.max() / prices.at(begin_s) - 1.0)


@pytest.mark.parametrize("seed", range(6))
def test_first_passages_are_those_of_the_highest_rises(seed: int) -> None:
    prices = wobbling(seed)
    random = np.random.default_rng(seed)
    begins = np.ceil(prices.times_s[0] / CELL_S) * CELL_S + CELL_S * np.arange(300)
    held, since_s = held_since(prices.times_s, prices.prices, begins)
    assert held.tolist() == [prices.at(begin_s) for begin_s in begins.tolist()]
    changed_s = [
        max(
            t
            for t, p, q in zip(prices.times_s[1:], prices.prices[1:], prices.prices, strict=False)
            if t <= begin_s and p != q
        )
        if begin_s >= prices.times_s[1]
        else prices.times_s[0]
        for begin_s in begins.tolist()
    ]
    assert since_s[20:].tolist() == changed_s[20:]
    weights = random.uniform(0.1, 1.0, len(begins))
    counted = first_passages(prices.times_s, prices.prices, begins, held, weights, RISES, CELL_S, CELLS)
    rose = highest_rises(prices.times_s, prices.prices, begins, CELL_S, CELLS)
    by_cell = np.array([[weights[rose[:, cell] > rise].sum() for cell in range(CELLS)] for rise in RISES])
    np.testing.assert_allclose(np.cumsum(counted, axis=1), by_cell, atol=1e-9)


def test_rises_may_come_in_any_order() -> None:
    view = At(wobbling(3), START_S + 150_000.0)
    forth, back = (SimilarMoments().chances(view, C3, rises) for rises in (RISES, RISES[::-1].copy()))
    np.testing.assert_array_equal(forth, back[::-1])


def test_chances_sum_to_one_and_fall_with_the_max_price() -> None:
    prices = wobbling(2)
    chances = SimilarMoments().chances(At(prices, START_S + 150_000.0), C3, RISES)
    assert chances.shape == (3, CELLS + 1)
    assert (chances >= -1e-12).all()
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    assert (np.diff(chances[:, -1]) >= 0).all()
    # Nothing here ever rises by more than eightfold.
    assert SimilarMoments().chances(At(prices, START_S + 150_000.0), C3, np.array([9.0]))[0, -1] == 1.0


def test_what_has_always_followed_is_expected() -> None:
    """Twenty minutes low, ten high, for two days: five minutes after it fell, fifteen are left."""
    points = [point for n in range(96) for point in ((n * 1800.0, 0.1), (n * 1800.0 + 1200.0, 0.5))]
    now_s = START_S + 90 * 1800.0 + 300.0
    chances = SimilarMoments(all_alike=1.0).chances(At(series(*points), now_s), C3, np.array([0.1]))
    assert chances[0, 2:5].sum() > 0.9
    high = SimilarMoments(all_alike=1.0).chances(At(series(*points), now_s + 1200.0), C3, np.array([0.1]))
    assert high[0, -1] > 0.9


def test_nothing_after_now_is_used() -> None:
    prices = wobbling(3)
    now_s = START_S + 100_000.0
    kept = prices.times_s <= now_s
    cut = PriceSeries(prices.times_s[kept], prices.prices[kept])
    whole, before = (SimilarMoments().chances(At(part, now_s), C3, RISES) for part in (prices, cut))
    np.testing.assert_array_equal(whole, before)


def test_foreseen_passages_are_what_comes() -> None:
    prices = history({C3: [(0, 0.1), (1_000, 0.3), (9_000, 0.1)]})
    chances = ForeseenPassages(prices).chances(At(prices[C3], START_S + 50.0), C3, np.array([0.1, 5.0]))
    assert chances[0].argmax() == int(950 // CELL_S)
    assert chances[1, -1] == 1.0
