"""How long machines live at a max price, by hand."""

from __future__ import annotations

import math

import pytest
from tests.markets import START_S, series

from ebbtide.market.lifetimes import lifetimes


def test_by_hand() -> None:
    """Cheap for three hours, dear for one, cheap to the end at ten hours."""
    found = lifetimes(series((0, 0.1), (3 * 3600, 1.0), (4 * 3600, 0.1)), START_S, START_S + 36_000, 0.5)
    # Rented at 0, 1, 2 h: they live 3, 2, 1 h; at 4 to 9 h: to the record's end. At 3 h none is available.
    assert (found.lived_s / 3600).tolist() == pytest.approx([3, 2, 1, 6, 5, 4, 3, 2, 1])
    assert found.ended.tolist() == [True] * 3 + [False] * 6
    assert found.mean_s == pytest.approx(27 * 3600 / 3)
    assert found.median_s == math.inf
    # Of living four hours it is known of the three that died and of three others.
    assert found.share_living(4 * 3600) == pytest.approx(0.5)
    assert math.isnan(lifetimes(series((0, 0.1)), START_S, START_S + 36_000, 0.5).share_living(1e9))


def test_nothing_ends_them_without_a_max_price() -> None:
    found = lifetimes(series((0, 0.1), (3600, 99.0)), START_S, START_S + 36_000, math.inf)
    assert found.mean_s == math.inf
    assert found.share_living(3600) == 1.0
