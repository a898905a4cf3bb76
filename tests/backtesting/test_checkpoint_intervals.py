"""Intervals between checkpoints: cost by formula and second by second, lives cut from observations, real records."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import TRACES
from tests.forecasts.hazard.test_fitting import drawn

from ebbtide.backtesting.checkpoint_intervals import Lives, cost_of, lives_of, score_interval
from ebbtide.errors import InputError
from ebbtide.forecasts.hazard.observations import MarketObservations, read_observations
from ebbtide.market.markets import Market

ZONE = Market("aws", "us-east-1", "us-east-1a", "p3.2xlarge")


def lives(*pairs: tuple[float, bool]) -> Lives:
    return Lives(np.array([life_s for life_s, _ in pairs]), np.array([lost for _, lost in pairs], dtype=bool))


@pytest.mark.parametrize(
    ("life_s", "is_lost", "kept_s"),
    [
        # Three saves of 50 s, each after 250 s of work.
        (1000.0, True, 750.0),
        (1000.0, False, 750.0),
        # Of the last 100 s, half are the save as it is left.
        (1100.0, False, 800.0),
        (1100.0, True, 750.0),
        (399.0, True, 0.0),
        (90.0, False, 0.0),
    ],
)
def test_cost_by_hand(life_s: float, is_lost: bool, kept_s: float) -> None:
    cost = cost_of(lives((life_s, is_lost)), 300.0, 50.0, 100.0)
    assert cost == pytest.approx(life_s / kept_s if kept_s else math.inf)


def kept_by_the_second(life_s: int, is_lost: bool, interval_s: int, save_s: int, restore_s: int) -> int:
    """Work that is kept on one machine, second by second."""
    kept = unsaved = 0
    for second in range(restore_s, life_s):
        place = (second - restore_s) % interval_s
        unsaved += place < interval_s - save_s
        if place == interval_s - 1:
            kept, unsaved = kept + unsaved, 0
    if is_lost:
        return kept
    # As it is left, the last seconds are a save, or the rest of the one that has begun.
    left_s = max(life_s - restore_s, 0) % interval_s
    return kept + max(left_s - save_s, 0)


@given(
    machines=st.lists(st.tuples(st.integers(1, 900), st.booleans()), min_size=1, max_size=6),
    interval_s=st.integers(20, 300),
    save_s=st.integers(1, 19),
    restore_s=st.integers(0, 60),
)
def test_cost_second_by_second(
    machines: list[tuple[int, bool]], interval_s: int, save_s: int, restore_s: int
) -> None:
    kept_s = sum(kept_by_the_second(*each, interval_s, save_s, restore_s) for each in machines)
    found = cost_of(lives(*machines), interval_s, save_s, restore_s)
    assert found == pytest.approx(sum(life_s for life_s, _ in machines) / kept_s if kept_s else math.inf)


def test_lives_of_observations() -> None:
    """One lost, one that nobody watched to its end, and one that is still there."""
    times_s = np.array([0.0, 600.0, 1200.0, 1800.0, 9000.0, 9600.0, 10200.0])
    is_up = np.array([True, True, False, True, True, True, True])
    found = lives_of([MarketObservations(ZONE, times_s, is_up, 1800.0)])
    assert found.lives_s.tolist() == [1200.0, 0.0, 1200.0]
    assert found.is_lost.tolist() == [True, False, False]


def test_where_machines_die_at_a_constant_rate_the_interval_is_within_a_twentieth_of_the_best() -> None:
    observations = [drawn(name, rate, ord(name), 3000) for name, rate in (("a", 0.3), ("b", 0.3), ("c", 0.3))]
    found = score_interval(observations, "drawn", save_s=60.0, restore_s=90.0)
    assert found.lost > 100
    assert 1.0 <= found.ratio < 1.05
    assert found.interval_s == pytest.approx(math.sqrt(2.0 * 60.0 * found.mean_life_s))


@pytest.mark.parametrize(
    ("save_s", "restore_s", "share", "problem"),
    [
        (0.0, 1.0, 0.6, "positive numbers"),
        (1.0, math.inf, 0.6, "positive numbers"),
        (1.0, 1.0, 1.0, "a share between 0 and 1"),
        (1.0, 1e9, 0.6, "no machine in its later part"),
    ],
)
def test_what_cannot_be_scored_is_an_error(save_s: float, restore_s: float, share: float, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        score_interval([drawn("a", 0.3, 1, 500)], "drawn", None, share, save_s=save_s, restore_s=restore_s)


@pytest.mark.real_traces
@pytest.mark.parametrize("save_s", [60.0, 300.0])
@pytest.mark.parametrize("name", ["gcp-h100-capacity-2025", "gpu-availability-log-2020"])
def test_on_recorded_capacity_the_interval_is_within_a_tenth_of_the_best(name: str, save_s: float) -> None:
    observations = read_observations(Path(TRACES) / f"{name}.parquet", lambda *_: None)
    found = score_interval(observations, name, save_s=save_s, restore_s=90.0)
    assert found.lost > 10
    assert found.ratio < 1.1
