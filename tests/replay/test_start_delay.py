"""How long machines take to start: DeepSpotCloud's Table II."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.markets import C3

from ebbtide.market.leases import Lease
from ebbtide.replay.start_delay import MeasuredStartDelay, StartDelay


def asked(number: int, time_s: float) -> Lease:
    return Lease(number, C3, math.inf, False, time_s)


def test_the_draws_have_the_tables_mean_and_quartiles() -> None:
    total_s = np.sum(MeasuredStartDelay(3).split_s, axis=0)
    assert total_s.mean() == pytest.approx(121.6, abs=0.1)
    assert np.quantile(total_s, [0.25, 0.5, 0.75]) == pytest.approx([96.5, 110.0, 126.6], abs=0.2)
    assert 86.5 <= total_s.min() < 87
    assert 242 < total_s.max() <= 242.9


def test_a_machine_has_the_same_time_whoever_asks() -> None:
    delay = MeasuredStartDelay(3)
    first = delay.of(asked(4, 1_000.25))
    assert first == MeasuredStartDelay(3).of(asked(4, 1_000.75))
    assert first != delay.of(asked(5, 1_000.25))
    assert first != MeasuredStartDelay(4).of(asked(4, 1_000.25))
    assert sum(first) in np.sum(delay.split_s, axis=0)


def test_a_fixed_one_is_fixed() -> None:
    assert StartDelay(10.0, 50.0).of(asked(1, 7.0)) == (10.0, 50.0)
