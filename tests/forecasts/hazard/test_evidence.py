"""Evidence of markets: states, counts that fade, ends of spells."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.forecasts.hazard.evidence import Evidence, Spell, cloud_of, faded, key_of, region_of
from ebbtide.market.markets import Market

A = Market("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
B = Market("aws", "us-east-1", "us-east-1b", "p3.2xlarge")
FAR = Market("aws", "us-west-2", "us-west-2a", "p3.2xlarge")


def test_a_loss_by_hand() -> None:
    """There at 0 and after ten minutes, lost after twenty, of which a tenth was expected."""
    seen = Evidence()
    seen.observe(A, 0.0, is_up=True)
    seen.observe(A, 600.0, is_up=True, expected=0.05)
    assert seen.spell(A) == Spell(is_up=True, age_s=600.0, seen_s=600.0)
    seen.observe(A, 1200.0, is_up=False, expected=0.05)
    assert seen.spell(A) == Spell(is_up=False, age_s=0.0, seen_s=1200.0)
    own, region, cloud = seen.others(A, 1200.0)
    # With half-lives of an hour and a day: lost, expected, hours down, hours watched.
    short, long = 2.0 ** (-1 / 6), 2.0 ** (-1 / 144)
    assert own[:4] == pytest.approx([1.0, 0.05 * (1 + short), 1 / 6, (1 + short) / 6])
    assert own[4:] == pytest.approx([1.0, 0.05 * (1 + long), 1 / 6, (1 + long) / 6])
    # Nothing is known of others.
    assert region == pytest.approx([0.0] * 8)
    assert cloud == pytest.approx([0.0] * 8)
    assert seen.ends[key_of(A)] == pytest.approx([0.0, 0.0, 1.0, 0.1])


def test_others_are_those_of_the_region_and_of_other_regions() -> None:
    seen = Evidence()
    for market in (A, B, FAR):
        seen.observe(market, 0.0, is_up=True)
        seen.observe(market, 600.0, is_up=market == A)
    own, region, cloud = seen.others(A, 600.0)
    assert [each[0] for each in (own, region, cloud)] == pytest.approx([0.0, 1.0, 1.0])
    assert seen.ends[region_of(A)][2] == 1.0
    assert seen.ends[cloud_of(A)][2] == 2.0


def test_a_clock_that_is_set_back_counts_nothing() -> None:
    seen = Evidence()
    for time_s in (DAY_S, DAY_S + 600.0, 0.0):
        seen.observe(A, time_s, is_up=True, expected=0.1)
    assert seen.spell(A) == Spell(is_up=True, age_s=600.0, seen_s=DAY_S + 600.0)
    assert seen.ends[key_of(A)] == pytest.approx([0.0, 0.0, 0.0, 0.1])


def test_nothing_is_counted_over_a_gap() -> None:
    seen = Evidence()
    seen.observe(A, 0.0, is_up=True)
    seen.observe(A, 5 * HOUR_S, is_up=False, expected=3.0)
    assert seen.spell(A) == Spell(is_up=False, age_s=0.0, seen_s=5 * HOUR_S)
    assert seen.ends == {}


@given(
    states=st.lists(st.tuples(st.floats(1.0, 3600.0), st.booleans(), st.sampled_from([A, B, FAR])), max_size=40),
    later_s=st.floats(0.0, 30 * DAY_S),
)
def test_counts_of_a_region_are_those_of_its_markets(
    states: list[tuple[float, bool, Market]], later_s: float
) -> None:
    seen, now_s = Evidence(), 0.0
    for gap_s, is_up, market in states:
        now_s += gap_s
        seen.observe(market, now_s, is_up=is_up, expected=0.01)
    then_s = now_s + later_s
    both = [faded(seen.counts.get(key_of(market)), then_s) for market in (A, B)]
    assert [sum(pair) for pair in zip(*both, strict=True)] == pytest.approx(
        faded(seen.counts.get(region_of(A)), then_s), abs=1e-9
    )
    # It is plain: a run's memory is stored as JSON.
    assert json.loads(json.dumps(seen.memory)) == seen.memory
