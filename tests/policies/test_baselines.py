"""The baselines: which market they take, at what max price, and when they move."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.markets import C3, R3, history, job

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.market.leases import LeaseState
from ebbtide.policies.api.actions import Action
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.registry import POLICIES, USUAL, policies
from ebbtide.testing.scripted import replay

C3B = eb.Market("aws", "us-east-1", "us-east-1b", "c3.xlarge")


def rented(outcome: eb.types.Outcome) -> list[eb.Market]:
    return [lease.market for lease in outcome.leases]


def test_on_demand_takes_the_lowest_list_price_for_each_step() -> None:
    # c3.xlarge: 0.21 for one step a second; r3.large: 0.175 for half a step.
    outcome = replay(eb.policies.OnDemand(), [job()], history({C3: [(0, 9.0)], R3: [(0, 0.01)]}))
    assert rented(outcome) == [C3]
    assert outcome.leases[0].on_demand
    assert outcome.refund_usd == 0


def test_on_demand_says_when_no_list_price_is_known() -> None:
    unlisted = eb.Market("aws", "us-east-1", "us-east-1a", "m5.large")
    work = job().model_copy(update={"other_steps_per_hour_per_vcpu": 100.0})
    with pytest.raises(InputError, match="no on-demand price is known for m5.large"):
        replay(eb.policies.OnDemand(), [work], history({unlisted: [(0, 0.1)]}))


def test_cheapest_spot_takes_the_lowest_price_by_the_hour_and_is_never_revoked() -> None:
    prices = history({C3: [(0, 0.06), (600, 5.0)], R3: [(0, 0.05), (600, 5.0)]})
    outcome = replay(eb.policies.CheapestSpot(), [job()], prices)
    assert rented(outcome) == [R3]  # though c3.xlarge is cheaper for each step
    assert math.isinf(outcome.leases[0].max_price_usd_per_hour)
    assert (outcome.finished, outcome.revocations) == (True, 0)


def test_fastest_spot_takes_the_fastest_type_in_its_cheapest_zone() -> None:
    prices = history({C3: [(0, 0.9), (600, 5.0)], C3B: [(0, 0.8)], R3: [(0, 0.01)]})
    outcome = replay(eb.policies.FastestSpot(), [job()], prices)
    assert rented(outcome) == [C3B]
    assert outcome.revocations == 0


def test_reactive_takes_the_cheapest_for_each_step_and_moves_when_revoked() -> None:
    prices = history({C3: [(0, 0.06), (600, 5.0)], R3: [(0, 0.05)]})
    outcome = replay(eb.policies.Reactive(), [job()], prices)
    assert rented(outcome) == [C3, R3]
    assert [lease.max_price_usd_per_hour for lease in outcome.leases] == [0.21, 0.175]
    assert [lease.state for lease in outcome.leases] == [LeaseState.REVOKED, LeaseState.RELEASED]
    # It asked on notice, so that the second machine had booted when the first went.
    assert outcome.leases[1].requested_s == outcome.leases[0].ended_s - 120


def test_reactive_waits_while_every_market_is_above_its_max_price() -> None:
    prices = history({C3: [(0, 0.5), (4000, 0.06)]})
    outcome = replay(eb.policies.Reactive(), [job()], prices)
    assert outcome.finished
    (lease,) = outcome.leases
    assert 4000 <= lease.requested_s - outcome.start_s <= 4300


def test_reactives_max_price_is_a_multiple_of_on_demand_or_of_the_price() -> None:
    outcome = replay(eb.policies.Reactive(max_price_ratio=0.5), [job()], history({C3: [(0, 0.06)]}))
    assert outcome.leases[0].max_price_usd_per_hour == pytest.approx(0.105)
    unlisted = eb.Market("aws", "us-east-1", "us-east-1a", "m5.large")
    work = job().model_copy(update={"other_steps_per_hour_per_vcpu": 100.0})
    outcome = replay(eb.policies.Reactive(), [work], history({unlisted: [(0, 0.07)]}))
    assert outcome.leases[0].max_price_usd_per_hour == pytest.approx(0.14)


@pytest.mark.parametrize("policy", policies("on-demand,cheapest-spot,fastest-spot,reactive"), ids=lambda p: p.name)
def test_a_job_gets_as_many_machines_as_it_wants(policy: Policy) -> None:
    outcome = replay(policy, [job(machines=3)], history({C3: [(0, 0.06)]}))
    assert outcome.finished
    assert len(outcome.leases) == 3


@pytest.mark.parametrize(
    ("policy", "rank"),
    [
        (
            eb.policies.OnDemand(),
            lambda view, job, market: view.on_demand_price(market) / view.steps_per_s(job.job, market),
        ),
        (eb.policies.CheapestSpot(), lambda view, _job, market: view.price(market)),
        (
            eb.policies.FastestSpot(),
            lambda view, job, market: (-view.steps_per_s(job.job, market), view.price(market)),
        ),
        (
            eb.policies.Reactive(max_price_ratio=0.5),
            lambda view, job, market: (
                view.price(market) > 0.5 * view.on_demand_price(market),
                view.price(market) / view.steps_per_s(job.job, market),
            ),
        ),
    ],
)
@pytest.mark.parametrize("seed", range(10))
def test_each_takes_the_best_of_all_markets(policy: Policy, rank: Callable[..., Any], seed: int) -> None:
    """Looking at the cheapest market of each type alone finds the same as looking at all, ties included."""
    draw = random.Random(seed)
    types = ("c3.xlarge", "r3.large", "c3.2xlarge", "m3.large")
    markets = [eb.Market("aws", "us-east-1", f"us-east-1{zone}", name) for zone in "abcde" for name in types]
    # Few prices, so that many are equal.
    prices = history({market: [(0, draw.choice((0.02, 0.03, 0.05, 0.2)))] for market in markets})
    jobs = [
        job().model_copy(
            update={"name": str(number), "steps_per_hour": {name: draw.choice((1.0, 2.0)) for name in types}}
        )
        for number in range(3)
    ]
    best: list[eb.Market] = []

    class Looks:
        name, wakes_on = "looks", policy.wakes_on

        def decide(self, view: eb.policies.View) -> Iterable[Action]:
            if not best:
                best.extend(
                    min(view.markets, key=lambda market, each=each: (rank(view, each, market), market))  # type: ignore[misc]
                    for each in view.jobs
                )
            return policy.decide(view)

    assert rented(replay(Looks(), jobs, prices))[:3] == best


def test_policies_are_found_by_name() -> None:
    assert [policy.name for policy in policies("reactive, on-demand")] == ["reactive", "on-demand"]
    assert all(isinstance(policy, Policy) for policy in policies(["cheapest-spot"]))
    for bad in ("reactiv", ""):
        with pytest.raises(InputError, match="known: .*cheapest-spot.*FILE.py:NAME"):
            policies(bad)
    for twice in ("reactive,reactive", "all,reactive"):
        with pytest.raises(InputError, match="two policies are named 'reactive'"):
            policies(twice)
    assert [policy.name for policy in policies("all")] == list(POLICIES)
    assert set(USUAL) < set(POLICIES)
