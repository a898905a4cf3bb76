"""Machines shared and alone: by hand, and what must hold of any arrivals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ebbtide as eb
from ebbtide.policies.exosphere.allocation import CoresAndMemory
from ebbtide_papers.exosphere.packing import (
    FREE_LIST_S,
    ArrivingApplication,
    arrivals,
    packing_reduction,
    packing_usd,
)

C3 = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")  # 4 cores, 7.5 GiB
M3 = eb.Market("aws", "us-east-1", "us-east-1a", "m3.medium")  # 1 core, 3.75 GiB
USD = {C3: 0.10, M3: 0.02}
FREE_H = FREE_LIST_S / 3600


def application(arrives_h: float, lasts_h: float, cores: float) -> ArrivingApplication:
    return ArrivingApplication(arrives_h * 3600, lasts_h * 3600, CoresAndMemory(cores, cores), 0.0)


def cost(applications: list[ArrivingApplication], shared: bool) -> float:
    return packing_usd(applications, [(1.0, {C3: 1.0})], USD, eb.default_catalogue(), shared=shared)


def test_two_halves_of_a_machine() -> None:
    both = [application(0, 2, 2), application(1, 3, 2)]
    # Alone a machine each; together one, from the first's arrival to the second's end.
    assert cost(both, False) == pytest.approx((2 + FREE_H) * 0.10 + (3 + FREE_H) * 0.10)
    assert cost(both, True) == pytest.approx((4 + FREE_H) * 0.10)


def test_a_machine_on_the_free_list_is_used_again() -> None:
    soon, late = [application(0, 1, 4), application(1.1, 1, 4)], [application(0, 1, 4), application(1.2, 1, 4)]
    for shared in (False, True):
        assert cost(soon, shared) == pytest.approx((2.1 + FREE_H) * 0.10)
        assert cost(late, shared) == pytest.approx(2 * (1 + FREE_H) * 0.10)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_nobody_pays_for_less_than_is_used(seed: int, shared: bool) -> None:
    coming = arrivals(60, seed)
    mix = [(0.5, {C3: 1.0}), (0.5, {C3: 0.9, M3: 0.1})]
    usd = packing_usd(coming, mix, USD, eb.default_catalogue(), shared=shared)
    # A core of the cheapest machine, for as long as it is used.
    least = min(USD[C3] / 4, USD[M3])
    assert usd >= sum(each.wanted.vcpus * each.lasts_s / 3600 * least for each in coming)


def test_the_wider_portfolios_are_the_more_is_saved() -> None:
    one, two = {M3: 1.0}, {C3: 0.5, M3: 0.5}
    found = packing_reduction({"low": one, "medium": one, "high": two}, USD, eb.default_catalogue(), count=300)
    assert set(found) == {"all low", "all high", "equal", "1:2:1"}
    # With one market there is little to share: a machine of one core that two are on goes when the later goes.
    assert found["all high"]["reduction"] > found["equal"]["reduction"] > found["all low"]["reduction"] > -0.05
