"""Chances of losses and refusals: by hand, against brute force, and from the past alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, PARTS_OF_DAY, UP, SpellModel
from ebbtide.forecasts.hazard.evidence import Evidence, cloud_of, key_of, region_of
from ebbtide.forecasts.hazard.model import (
    LEAST_CHANCE,
    LOSS_FEATURES,
    REFUSAL_FEATURES,
    SEGMENTS_S,
    Hazard,
    Level,
    Price,
    default_hazard,
)
from ebbtide.market.markets import Market

A = Market("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
B = Market("aws", "us-east-1", "us-east-1b", "p3.2xlarge")


def plain(per_hour: float = 0.5, back_per_hour: float = 0.5) -> Hazard:
    """A hazard with constant rates and no weights."""
    rates = np.stack([np.full(len(AGE_BINS_S), back_per_hour), np.full(len(AGE_BINS_S), per_hour)])
    refusal = np.zeros(len(REFUSAL_FEATURES))
    refusal[1] = 1.0
    return Hazard(SpellModel(rates), {}, np.zeros((len(SEGMENTS_S) - 1, len(LOSS_FEATURES))), refusal)


def test_a_constant_rate_by_hand() -> None:
    hazard, nothing = plain(0.5), Evidence()
    for within_s in (60.0, 600.0, HOUR_S, 5 * HOUR_S, 3 * DAY_S):
        assert hazard.expected_losses(nothing, A, 0.0, 1234.0, within_s) == pytest.approx(0.5 * within_s / HOUR_S)
    assert hazard.lost(nothing, A, 0.0, 0.0, HOUR_S).value == pytest.approx(1.0 - math.exp(-0.5))
    # The mean life, but for the steps in which the next six hours are summed.
    assert hazard.life_s(nothing, A, 0.0) == pytest.approx(2 * HOUR_S, rel=0.05)
    assert hazard.share_down(A) == pytest.approx(0.5)
    assert hazard.refused(nothing, A, 0.0).value == pytest.approx(0.5)


@pytest.mark.parametrize("age_s", [0.0, 599.0, 600.0, 5000.0, 40 * HOUR_S, 30 * DAY_S])
def test_expected_losses_are_those_of_the_spell_model(age_s: float) -> None:
    base = default_hazard().base
    hazard = replace(plain(), base=SpellModel(base.per_hour))
    for within_s in (600.0, HOUR_S, 6 * HOUR_S, 2 * DAY_S):
        chance = -math.expm1(-hazard.expected(A, age_s, within_s))
        assert chance == pytest.approx(base.ends_within(UP, age_s, within_s))


def test_levels_multiply_down_to_the_market() -> None:
    hazard = plain()
    levels = {
        "aws": Level(up=2.0),
        cloud_of(A): Level(up=1.5),
        region_of(A): Level(up=3.0),
        key_of(A): Level(up=0.5),
    }
    hazard = replace(hazard, levels=levels, _levels={})
    assert hazard.expected(A, 0.0, HOUR_S) == pytest.approx(0.5 * 2.0 * 1.5 * 3.0 * 0.5)
    assert hazard.expected(B, 0.0, HOUR_S) == pytest.approx(0.5 * 2.0 * 1.5 * 3.0)
    # A single market is not known elsewhere.
    assert set(hazard.pooled().levels) == {"aws", cloud_of(A), region_of(A)}


def test_a_refusal_by_simulation() -> None:
    """A market that was seen ten minutes to two days ago, against many random records of the same rates."""
    hazard, random = plain(0.4, 0.8), np.random.default_rng(3)
    tick_s, runs = 60.0, 20_000
    up = np.ones(runs, dtype=bool)
    seen = Evidence()
    hazard.observe(seen, A, 0.0, is_up=True)
    for tick in range(1, 6 * 60 + 1):
        ends = random.random(runs) < np.where(up, 0.4, 0.8) * tick_s / HOUR_S
        up = up ^ ends
        if tick in (10, 60, 360):
            found = hazard.refused(seen, A, tick * tick_s).value
            assert found == pytest.approx(1.0 - up.mean(), abs=0.015)


def test_losses_and_refusals_seen_raise_chances() -> None:
    hazard = default_hazard()
    quiet, bad = Evidence(), Evidence()
    for tick in range(200):
        hazard.observe(quiet, B, tick * 600.0, is_up=True)
        hazard.observe(bad, B, tick * 600.0, is_up=tick % 4 > 1)
    now_s = 200 * 600.0
    assert (
        hazard.lost(bad, B, now_s, 600.0, HOUR_S).value > 1.2 * hazard.lost(quiet, B, now_s, 600.0, HOUR_S).value
    )
    assert hazard.refused(bad, B, now_s).value > hazard.refused(quiet, B, now_s).value
    # And of its neighbour, of which nothing was seen.
    assert hazard.refused(bad, A, now_s).value > hazard.refused(quiet, A, now_s).value


@given(age_s=st.floats(0.0, 30 * DAY_S), within_s=st.floats(1.0, 10 * DAY_S), ratio=st.floats(0.01, 100.0))
def test_chances_are_bounded_and_rise_with_time(age_s: float, within_s: float, ratio: float) -> None:
    hazard, nothing, price = default_hazard(), Evidence(), Price(of_day=ratio)
    chance = hazard.lost(nothing, A, 0.0, age_s, within_s, price)
    assert LEAST_CHANCE <= chance.low <= chance.value <= chance.high <= 1.0 - LEAST_CHANCE
    assert hazard.lost(nothing, A, 0.0, age_s, 2 * within_s, price).value >= chance.value - 1e-12


def test_more_evidence_narrows_the_interval() -> None:
    hazard, seen = default_hazard(), Evidence()

    def width() -> float:
        chance = hazard.lost(seen, A, 600.0 * 2000, 600.0, HOUR_S)
        return math.log(chance.high / chance.low)

    before = width()
    for tick in range(2000):
        hazard.observe(seen, A, tick * 600.0, is_up=tick % 20 > 4)
    assert width() < before


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "hazard.json"
    default_hazard().write(path)
    again = Hazard.read(path)
    assert again.levels == default_hazard().levels
    assert np.array_equal(again.loss, default_hazard().loss)
    assert again.learnt_from == default_hazard().learnt_from
    content = json.loads(path.read_text())
    for name, value in (
        ("loss", [[1.0]]),
        ("refusal", "x"),
        ("per_hour", [[0.0]]),
        ("age_bins_s", []),
        ("prior_ends", 0),
        ("by_part", []),
    ):
        path.write_text(json.dumps({**content, name: value}))
        with pytest.raises(InputError, match=r"is not a hazard|other features"):
            Hazard.read(path)
    path.write_text("[]")
    with pytest.raises(InputError, match="is not a hazard"):
        Hazard.read(path)


def test_the_time_of_day_holds_for_an_hour() -> None:
    parts = np.ones((2, PARTS_OF_DAY))
    parts[UP, 2] = 3.0
    hazard = replace(plain(0.5), base=SpellModel(plain(0.5).base.per_hour, parts))
    found = hazard.by_segment(A, 7 * HOUR_S, 0.0, 6 * HOUR_S)
    assert found == pytest.approx([3 * 0.5 / 6, 3 * 0.5 * 5 / 6, 0.5 * 5])


def test_the_usual_life_is_that_of_the_median_market_and_of_all_pooled_where_none_is_named() -> None:
    hazard = default_hazard()
    zones = [Market("aws", "us-east-1", f"us-east-1{zone}", "p3.2xlarge") for zone in "abc"]
    lives_s = sorted(hazard.life_s(Evidence(), zone, 0.0) for zone in zones)
    assert hazard.usual_life_s(zones) == lives_s[1]
    # V100 were lost after 2.97 h in the mean in 2022 and 2023.
    assert 1.5 < hazard.usual_life_s(zones) / HOUR_S < 6.0
    assert hazard.usual_life_s(()) == hazard.usual_life_s([Market("nobody", "knows", "these", "machines")])
