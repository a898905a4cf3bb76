"""The machine of a cluster's head, beside what any policy rents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ebbtide.jobs.job import Coupling, Job
from ebbtide.market.billing import billing_preset
from ebbtide.market.generator import generate_auction_prices
from ebbtide.policies.api.actions import Action, Assign, Request
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.api.view import View
from ebbtide.policies.baselines import Reactive
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.cluster_head import WithHead
from ebbtide.policies.registry import policy
from ebbtide.replay.scenario import Scenario
from ebbtide.testing.scripted import Scripted

JOB = Job(
    name="app",
    steps=4000,
    other_steps_per_hour_per_vcpu=100,
    machines=2,
    coupling=Coupling.INDEPENDENT,
    checkpoint={"save_s": 0, "restore_s": 0},  # type: ignore[arg-type]
)


def scenario() -> Scenario:
    return Scenario((JOB,), generate_auction_prices(days=6, seed=3), billing_preset("ec2-second"))


@dataclass
class Watched:
    """A policy that rents two spot machines, assigns them itself, and notes what it is shown."""

    name: str = "watched"
    wakes_on: frozenset[Wake] = frozenset()
    shown: list[tuple[bool, bool]] = field(default_factory=list)

    def decide(self, view: View) -> Iterable[Action]:
        on_demand = any(lease.on_demand for lease in [*view.leases, *view.leases_of(0), *view.jobs[0].leases])
        about = any(event.lease_id >= 0 and view.lease(event.lease_id).on_demand for event in view.events)
        self.shown.append((on_demand, about))
        rented = list(view.leases)
        for market in list(view.markets)[: 2 - len(rented)]:
            yield Request(market, 10.0)
        yield Assign(0, [lease.lease_id for lease in rented if lease.is_booted])


def test_it_is_rented_first_on_demand_and_the_other_policy_never_sees_it() -> None:
    watched = Watched()
    outcome = scenario().run(WithHead(watched), scenario().prices.start_s + 86_400.0, record=True)
    heads = [lease for lease in outcome.leases if lease.on_demand]
    assert [lease.lease_id for lease in heads] == [0]
    assert watched.shown
    assert not any(seen or about for seen, about in watched.shown)
    assert outcome.finished
    # It works, too: what the other assigns never takes the job from it.
    assert outcome.jobs[0].steps_on[0] > 0


@pytest.mark.parametrize("name", ["reactive", "exosphere", "greedy-spot", "deadline", "spot-fleet-lowest-cost"])
def test_any_policy_ends_with_one_head(name: str) -> None:
    inner: Policy = policy(name)
    outcome = scenario().run(WithHead(inner), scenario().prices.start_s + 86_400.0, record=True)
    assert outcome.finished
    first = outcome.leases[0]
    assert first.on_demand
    # It is given back with the job's end, not before.
    assert first.ended_s >= outcome.jobs[0].finished_s


@pytest.mark.parametrize("wrap", [WithHead, lambda policy: WithinBudget(policy, 5.0)])
def test_a_policy_that_is_wrapped_is_woken_as_long_before_the_end_of_a_period(wrap: Any) -> None:
    assert wrap(Scripted({}, period_lead_s=300.0)).period_lead_s == 300.0
    assert wrap(Reactive()).period_lead_s == 0.0
