"""Machines for portfolios: Equation 8 by hand, and what must hold of any allocation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.policies.exosphere.allocation import CoresAndMemory, Server, allocate, server_count
from ebbtide.policies.exosphere.candidates import Candidates
from ebbtide.policies.exosphere.portfolio import PortfolioCache, best_portfolio, frontier, greedy_portfolio

CATALOGUE = eb.default_catalogue()
M3 = eb.Market("aws", "us-east-1", "us-east-1a", "m3.medium")  # 1 core, 3.75 GiB
C3 = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")  # 4 cores, 7.5 GiB


def test_fractions_of_machines_are_rounded_up() -> None:
    machine = CoresAndMemory(2, 7.5)
    assert server_count(1.0, CoresAndMemory(2, 10), machine) == 2
    assert server_count(0.5, CoresAndMemory(8, 15), machine) == 2
    assert server_count(0.3, CoresAndMemory(20 / 3, 1), machine) == 1


def test_an_application_gets_its_shares_and_what_is_over_is_told() -> None:
    found = allocate({C3: 0.5, M3: 0.5}, CoresAndMemory(10, 10), CATALOGUE.machine_of)
    assert found.new == {C3: 2, M3: 5}
    # Of 23 GiB... five of one core each, and eight cores: 13 cores for 10, 33.75 GiB for 10.
    assert found.surplus == pytest.approx(1 - 10 / 33.75)
    assert sum(server.free.vcpus for server in found.servers) == pytest.approx(3)


def test_what_is_free_is_used_before_anything_is_rented() -> None:
    first = allocate({C3: 1.0}, CoresAndMemory(2, 7.5), CATALOGUE.machine_of)
    second = allocate({C3: 1.0}, CoresAndMemory(2, 0), CATALOGUE.machine_of, first.servers)
    assert first.new == {C3: 1}
    assert second.new == {}
    assert second.servers == (Server(C3, CoresAndMemory(0, 0)),)
    # A machine elsewhere is of no use.
    assert allocate({M3: 1.0}, CoresAndMemory(1, 1), CATALOGUE.machine_of, first.servers).new == {M3: 1}
    # The fullest of what fits goes first: one machine with both cores free rather than two with one each.
    halves = [Server(C3, CoresAndMemory(1, 4)), Server(C3, CoresAndMemory(2, 4))]
    assert allocate({C3: 1.0}, CoresAndMemory(2, 2), CATALOGUE.machine_of, halves).servers[0] == halves[0]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 100), st.floats(0, 1)), min_size=1, max_size=8),
)
def test_all_that_is_asked_for_is_there_once(requests: list[tuple[float, float, float]]) -> None:
    servers: tuple[Server, ...] = ()
    given_out = np.zeros(2)
    for vcpus, memory_gib, share in requests:
        found = allocate(
            {C3: share, M3: 1 - share}, CoresAndMemory(vcpus, memory_gib), CATALOGUE.machine_of, servers
        )
        private = allocate({C3: share, M3: 1 - share}, CoresAndMemory(vcpus, memory_gib), CATALOGUE.machine_of)
        assert sum(found.new.values()) <= sum(private.new.values())
        assert 0.0 <= found.surplus <= 1.0
        servers, given_out = found.servers, given_out + np.array([vcpus, memory_gib])
    owned = np.zeros(2)
    free = np.zeros(2)
    for server in servers:
        kind = CATALOGUE.instance_type("aws", server.market.instance_type)
        owned += [kind.vcpus, kind.memory_gib]
        free += [server.free.vcpus, server.free.memory_gib]
    assert owned - free == pytest.approx(given_out, abs=1e-6)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"shares sum to 0.5"):
        allocate({C3: 0.5}, CoresAndMemory(1, 1), CATALOGUE.machine_of)
    with pytest.raises(InputError, match="neither can be negative"):
        CoresAndMemory(-1, 1)


def three() -> Candidates:
    markets = tuple(eb.Market("aws", "us-east-1", f"us-east-1{zone}", "c3.xlarge") for zone in "abc")
    usd = np.array([0.02, 0.021, 0.1])
    return Candidates(
        markets,
        np.full(3, 0.21),
        np.ones(3, bool),
        usd,
        usd,
        np.full(3, 3600.0),
        np.full(3, 3600.0),
        np.array([2, 0, 1]),
    )


def test_more_aversion_is_more_spread() -> None:
    covariance = np.diag([1.0, 1.0, 0.1])
    found = frontier(three(), covariance, [0.0, 0.1, 10.0])
    assert [len(portfolio.used) for portfolio in found] == [1, 2, 3]
    risks = [portfolio.risk for portfolio in found]
    savings = [portfolio.saving for portfolio in found]
    assert risks == sorted(risks, reverse=True)
    assert savings == sorted(savings, reverse=True)
    assert list(found[0].used) == [three().markets[0]]
    assert found[0].mttr_s(three()) == pytest.approx(1800.0)
    cache = PortfolioCache(three(), covariance)
    assert cache.get(10.0) is cache.get(10.0)
    assert cache.get(10.0).weights == pytest.approx(best_portfolio(three(), covariance, 10.0).weights)


def test_greed_takes_the_cheapest_in_equal_parts() -> None:
    portfolio = greedy_portfolio(three(), np.diag([1.0, 1.0, 0.1]), 2)
    assert portfolio.weights.tolist() == [0.5, 0.5, 0.0]
    assert portfolio.risk == 0.5
    with pytest.raises(InputError, match="4 of 3 markets"):
        greedy_portfolio(three(), np.eye(3), 4)
