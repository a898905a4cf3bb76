"""Risk of losing machines, as policies ask it; and policies that leave a market whose machines are taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.markets import C3, START_S, history, job

import ebbtide as eb
from ebbtide.backtesting.backtest import backtest
from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.forecasts.hazard.evidence import Evidence, key_of
from ebbtide.forecasts.hazard.model import default_hazard
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.markets import Market
from ebbtide.policies.deepspotcloud.policy import DeepSpotCloud, MoveWhen
from ebbtide.policies.dynamic_pricing.policy import DynamicPricing, Goal
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.policies.exosphere.master import ExoSphere
from ebbtide.policies.risk import LOSSES_TOGETHER, SHORTAGES_TOGETHER, MarketRisk, together
from ebbtide.policies.spottune.offers import StepCost
from ebbtide.policies.spottune.policy import SpotTune
from ebbtide.testing.scripted import replay

OTHER = Market("aws", "us-east-1", "us-east-1c", "c3.xlarge")
FAR = Market("aws", "us-west-2", "us-west-2a", "c3.xlarge")

# One is 2 % cheaper, and its machines are taken after half an hour each.
PRICES = history({C3: [(0, 0.098)], OTHER: [(0, 0.1)]}, hours=400.0)
TAKEN = Availability(
    {
        C3: CapacitySeries(
            START_S + np.arange(0, 400 * 3600, 1800.0), np.arange(800) % 2 == 0, START_S + 400 * HOUR_S
        ),
        OTHER: CapacitySeries(np.array([START_S]), np.array([9]), START_S + 400 * HOUR_S),
    }
)


def policies(*, capacity: bool) -> list[Any]:
    """Each policy that asks the hazard."""
    return [
        SpotTune(theta=1.0, provisioner=StepCost(capacity=capacity)),
        DeepSpotCloud(MoveWhen.PERIOD_END, capacity=capacity),
        DynamicPricing(Goal.COST, capacity=capacity),
        ExoSphere(capacity=capacity),
        Ebbtide(capacity=capacity),
    ]


@pytest.mark.long
@pytest.mark.parametrize("place", range(4))
def test_a_market_that_takes_its_machines_is_left(place: int) -> None:
    """Without the hazard, policies go on renting where it is 2 % cheaper, and lose what is not saved."""
    work = job(40 * 3600, save_s=60.0, restore_s=120.0)
    lost = []
    for capacity in (True, False):
        policy = policies(capacity=capacity)[place]
        result = backtest(
            work, [policy], PRICES, billing="gcp-spot", starts=[START_S + DAY_S], availability=TAKEN, seed=1
        )
        (outcome,) = result.outcomes[policy.name]
        lost.append((outcome.revocations, outcome.steps_lost, outcome.cost_usd))
    with_hazard, without = lost
    # ExoSphere leaves it after its first loss either way.
    assert with_hazard[0] <= max(0.5 * without[0], 1)
    assert with_hazard[1] < without[1]
    assert with_hazard[2] < 1.02 * without[2]


@pytest.mark.parametrize("place", range(5))
def test_where_the_price_takes_machines_prices_decide(place: int) -> None:
    """Until a market refuses at a price that is high enough, policies decide as published."""
    prices = history({C3: [(0, 0.05), (DAY_S + 7000, 0.5)], OTHER: [(0, 0.1)]})
    found = []
    for capacity in (True, False):
        policy = policies(capacity=capacity)[place]
        result = backtest(job(5 * 3600), [policy], prices, billing="ec2-second", starts=[START_S + DAY_S], seed=1)
        found.append(result.outcomes[policy.name][0])
    assert [lease.market for lease in found[0].leases] == [lease.market for lease in found[1].leases]
    assert found[0].cost_usd == found[1].cost_usd


@given(
    sizes=st.lists(st.floats(0.0, 10.0), min_size=4, max_size=4),
    shares=st.sampled_from([LOSSES_TOGETHER, SHORTAGES_TOGETHER, (0.5, 0.0), (0.5, 0.5)]),
)
def test_a_covariance_of_shortages_is_positive_semidefinite(
    sizes: list[float], shares: tuple[float, float]
) -> None:
    other_type = replace(FAR, instance_type="r3.large")
    matrix = together([C3, OTHER, FAR, other_type], np.array(sizes), shares)
    assert np.linalg.eigvalsh(matrix).min() >= -1e-9
    assert np.diag(matrix) == pytest.approx(np.square(sizes))
    assert matrix[0, 1] == pytest.approx(shares[0] * sizes[0] * sizes[1])
    assert matrix[0, 2] == pytest.approx(shares[1] * sizes[0] * sizes[2])
    assert matrix[0, 3] == 0.0


class Asking:
    """A policy that asks for machines at given times, in seconds from its start, and keeps what it sees."""

    name = "asking"
    wakes_on: frozenset[Any] = frozenset()

    def __init__(self, asks: dict[float, list[tuple[Market, float]]]) -> None:
        self.asks = asks
        self.evidence = Evidence()
        self.counted = False

    def decide(self, view: eb.policies.View) -> Any:
        risk = MarketRisk.now(view, default_hazard())
        self.evidence, self.counted = risk.evidence, risk.counts(C3)
        since_s = view.now_s - START_S - DAY_S
        for market, max_price in self.asks.pop(since_s, []):
            yield eb.policies.Request(market, max_price, job=0, keep=True)
        for later_s in self.asks:
            yield eb.policies.WakeAt(START_S + DAY_S + later_s)


def asked(
    asks: dict[float, list[tuple[Market, float]]],
    nodes: dict[Market, list[int]],
    billing: str = "gcp-spot",
    prices: eb.PriceHistory = PRICES,
) -> Asking:
    """The policy after its run; machines of each market by the hour from its start on."""
    times_s = START_S + DAY_S + 3600.0 * np.arange(-24, 60)
    capacity = Availability(
        {
            market: CapacitySeries(
                times_s, np.array([9] * 24 + (counts + 60 * counts[-1:])[:60]), START_S + 400 * HOUR_S
            )
            for market, counts in nodes.items()
        }
    )
    policy = Asking(asks)
    backtest(job(30 * 3600), [policy], prices, billing=billing, starts=[START_S + DAY_S], availability=capacity)
    return policy


def test_refusals_at_one_time_are_all_kept() -> None:
    seen = asked({0.0: [(C3, 1.0), (OTHER, 1.0)]}, {C3: [0], OTHER: [0]}).evidence
    for market in (C3, OTHER):
        spell = seen.spell(market)
        assert spell is not None
        assert not spell.is_up


def test_a_loss_is_counted_once_however_long_it_was_held() -> None:
    seen = asked({0.0: [(C3, 1.0)]}, {C3: [1] * 5 + [0]}).evidence
    assert seen.ends[key_of(C3)][2] == 1.0
    # Some five hours were watched, though nothing woke the policy meanwhile.
    assert seen.ends[key_of(C3)][3] == pytest.approx(
        default_hazard().expected(C3, 10.5 * HOUR_S, 5 * HOUR_S), rel=0.5
    )


def test_a_refusal_beside_machines_that_run_is_no_loss_of_theirs() -> None:
    asks = {0.0: [(C3, 1.0)]} | {1800.0 * n: [(C3, 1.0)] for n in range(1, 12)}
    seen = asked(asks, {C3: [1]}).evidence
    assert seen.ends[key_of(C3)][2] == 0.0
    spell = seen.spell(C3)
    assert spell is not None
    assert spell.is_up


def test_one_of_several_machines_is_one_loss() -> None:
    seen = asked({0.0: [(C3, 1.0), (C3, 1.0)]}, {C3: [2, 2, 1]}).evidence
    assert seen.ends[key_of(C3)][2] == 1.0
    spell = seen.spell(C3)
    assert spell is not None
    assert spell.is_up


def test_a_machine_that_its_price_took_is_no_loss_of_capacity() -> None:
    """The price is above the max price for a minute, and low again when the machine goes."""
    prices = history({C3: [(0, 0.1), (DAY_S + 7000, 0.5), (DAY_S + 7060, 0.1)]}, hours=400.0)
    policy = asked({0.0: [(C3, 0.21)]}, {C3: [9]}, "ec2-second", prices)
    assert policy.evidence.ends.get(key_of(C3), [0.0] * 4)[2] == 0.0
    assert not policy.counted


def test_the_age_at_which_a_cloud_ends_every_machine_is_no_loss_of_capacity() -> None:
    policy = asked({0.0: [(C3, 0.21)]}, {C3: [9]}, "gcp-preemptible")
    assert policy.evidence.ends.get(key_of(C3), [0.0] * 4)[2] == 0.0


class Watching:
    """A policy that keeps the risk that it sees."""

    name = "watching"
    wakes_on: frozenset[Any] = frozenset()

    def __init__(self) -> None:
        self.seen: list[tuple[float, float, float]] = []

    def decide(self, view: eb.policies.View) -> Any:
        risk = MarketRisk.now(view, default_hazard())
        again = MarketRisk.now(view, default_hazard())
        assert again.losses(C3) == risk.losses(C3)
        self.seen.append((view.now_s, risk.losses(C3), risk.life_s(C3)))
        yield eb.policies.WakeAt(view.now_s + 1800.0)
        if not view.leases and view.now_s < START_S + 3 * DAY_S:
            yield eb.policies.Request(C3, 1.0, job=0)


@pytest.mark.long
def test_what_a_run_sees_of_a_market_raises_its_risk() -> None:
    watching = Watching()
    backtest(job(20 * 3600), [watching], PRICES, billing="gcp-spot", starts=[START_S + DAY_S], availability=TAKEN)
    first, last = watching.seen[1], watching.seen[-1]
    assert last[1] > first[1]
    assert last[2] < first[2]


def test_reasons_say_which_hazard_decided_and_from_which_data() -> None:
    work = job(10 * 3600, save_s=60.0, restore_s=120.0)
    for policy in policies(capacity=True):
        outcome = replay(
            policy, [work], PRICES, billing="gcp-spot", start_s=START_S + DAY_S, availability=TAKEN, seed=1
        )
        told = [one.how for each in outcome.made for one in each.alternatives]
        assert any("capacity refuses it with probability" in how for how in told), policy.name
        assert any("hazard of 7 records" in how for how in told), policy.name


@pytest.mark.long
def test_by_default_a_market_that_takes_its_machines_is_not_gone_back_to() -> None:
    """Though it is 5 % cheaper, as long as it has taken all machines after half an hour."""
    prices = history({C3: [(0, 0.095)], OTHER: [(0, 0.1)]}, hours=400.0)
    work = job(40 * 3600, save_s=60.0, restore_s=120.0)
    revoked = [
        replay(
            Ebbtide(capacity=capacity),
            [work],
            prices,
            billing="gcp-spot",
            start_s=START_S + DAY_S,
            availability=TAKEN,
        ).revocations
        for capacity in (True, False)
    ]
    assert revoked[0] <= 0.5 * revoked[1]


def test_by_default_a_job_that_is_saved_too_slowly_leaves_a_market_that_loses_it() -> None:
    """By prices alone it loses all of its work every two hours, and never ends; nor does it wait for others."""
    usd = eb.default_catalogue().on_demand_usd_per_hour(C3, START_S)
    assert usd is not None
    prices = history({C3: [(0, 0.88 * usd)]}, hours=400.0)
    # Two hours of machines, and three minutes of none.
    times_s = np.sort(np.concatenate([np.arange(0, 400 * 3600, 7380.0), np.arange(7200, 400 * 3600, 7380.0)]))
    counts = np.arange(len(times_s)) % 2 == 0
    often = Availability({C3: CapacitySeries(START_S + times_s, counts, START_S + 400 * HOUR_S)})
    work = job(10 * 3600, save_s=300.0, restore_s=300.0)
    start_s = START_S + DAY_S

    def outcome(*, capacity: bool) -> eb.types.Outcome:
        policy = Ebbtide(capacity=capacity)
        return replay(policy, [work], prices, billing="gcp-spot", start_s=start_s, availability=often)

    found = outcome(capacity=True)
    assert found.finished
    assert found.end_s - start_s < 12 * HOUR_S
    assert found.cost_usd < 1.2 * 10 * usd
    assert not outcome(capacity=False).finished
