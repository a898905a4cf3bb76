"""A budget is never passed, whatever the policy and the prices; what was trained by then is kept."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.markets import C3, R3, START_S, history, job

import ebbtide as eb
from ebbtide.base.utc import HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.policies import budget
from ebbtide.policies.api.actions import Request
from ebbtide.policies.api.events import Wake
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.policies.spottune.offers import StepCost
from ebbtide.testing.scripted import Scripted, replay

NAMES = ["spottune", "spottune-bid", "cheapest-spot", "reactive", "on-demand"]


def run(
    policy: eb.policies.Policy, jobs: list[eb.Job], prices: eb.PriceHistory, billing: str = "ec2-second"
) -> Outcome:
    result = eb.backtest(jobs, [policy], prices, billing=billing, starts=[prices.start_s + 86_400], seed=1)
    (outcome,) = result.outcomes[policy.name]
    return outcome


def test_by_hand_an_hour_of_a_machine_is_what_the_budget_pays() -> None:
    """0.10 USD an hour and 0.15 USD: an hour and a half, less what may be needed to end it at the list price."""
    prices = history({R3: [(0, 0.10)]})
    outcome = run(WithinBudget(eb.policies.CheapestSpot(), 0.15), [job(36_000)], prices)
    assert not outcome.finished
    assert outcome.gave_up.startswith("budget of 0.15 USD reached: 0.1")
    assert 0.145 < outcome.cost_usd <= 0.15
    # Half a step a second, saved before the end.
    assert outcome.jobs[0].steps_saved == pytest.approx(0.5 * (outcome.cost_usd * 36_000 - 100 - 20 - 10), abs=2)
    assert outcome.steps_lost == 0


def test_a_whole_hour_is_not_begun_if_it_cannot_be_paid() -> None:
    prices = history({R3: [(0, 0.10)]})
    outcome = run(WithinBudget(eb.policies.CheapestSpot(), 0.55), [job(36_000)], prices, "ec2-hourly")
    # The next hour could cost the list price of 0.175.
    assert outcome.cost_usd == pytest.approx(0.40)
    nothing = run(WithinBudget(eb.policies.CheapestSpot(), 0.05), [job(36_000)], prices, "ec2-hourly")
    assert nothing.cost_usd == 0
    assert nothing.gave_up
    assert not nothing.leases


def test_enough_is_no_hindrance() -> None:
    prices = eb.generate_prices(days=10, seed=3, kind="auction")
    jobs = [eb.Job(name="j", steps=4_000, other_steps_per_hour_per_vcpu=200.0)]
    # Max prices drawn from an interval would depend on how often the policy is asked.
    policy = eb.policies.SpotTune(provisioner=StepCost(delta=(0.05, 0.05)))
    free = run(policy, jobs, prices)
    capped = run(WithinBudget(policy, 100.0), jobs, prices)
    assert capped.finished
    assert capped.cost_usd == free.cost_usd
    assert not capped.gave_up


@cache
def five_days(seed: int) -> eb.PriceHistory:
    return eb.generate_prices(days=5, seed=seed, kind="auction")


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@example("reactive", "ec2-second", 0.625, 1)  # the price leaps while what was given up is being saved
@example("spottune", "ec2-second", 0.140625, 1)  # the price leaps in the first minute, which is charged whole
@given(
    st.sampled_from(NAMES),
    st.sampled_from(["ec2-second", "ec2-hourly", "gcp-spot"]),
    st.floats(0.02, 3.0),
    st.integers(0, 5),
)
def test_a_budget_is_never_passed(name: str, billing: str, budget_usd: float, seed: int) -> None:
    prices = five_days(seed)
    jobs = [eb.Job(name=f"j{n}", steps=6_000, other_steps_per_hour_per_vcpu=200.0) for n in range(3)]
    outcome = run(WithinBudget(eb.policy(name), budget_usd), jobs, prices, billing)
    assert outcome.cost_usd <= budget_usd
    assert outcome.finished or outcome.gave_up
    assert outcome.cost_usd == pytest.approx(math.fsum(line.usd for line in outcome.ledger.lines))
    for found in outcome.jobs:
        assert found.steps_run == pytest.approx(found.steps_saved + found.steps_lost, abs=1e-3)


def test_a_leap_of_the_price_in_the_notice_ends_the_machine_at_once() -> None:
    """At sixty dollars an hour the two minutes of notice alone would cost more than the budget."""
    prices = history({C3: [(0, 0.05), (86_400 + 5_000, 60.0)]})
    outcome = run(WithinBudget(eb.policies.CheapestSpot(), 0.3), [job(36_000)], prices)
    assert outcome.cost_usd <= 0.3
    assert outcome.leases[0].ended_s == START_S + 86_400 + 5_000


def test_a_budget_is_positive() -> None:
    with pytest.raises(InputError, match="must be positive"):
        WithinBudget(eb.policies.SpotTune(), 0.0)


def test_prices_are_looked_up_a_few_times_however_finely_the_time_is_sought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second at which money runs out is bisected for at every decision: twenty steps, one look-up."""
    looked_up: list[int] = []
    rate = budget._rate
    monkeypatch.setattr(budget, "_rate", lambda *given: (looked_up.append(1), rate(*given))[1])
    outcome = run(WithinBudget(eb.policies.CheapestSpot(), 0.15), [job(36_000)], history({R3: [(0, 0.10)]}))
    assert not outcome.finished
    assert 0 < len(looked_up) < 60


@pytest.mark.long
@pytest.mark.parametrize("billing", ["ec2-second", "gcp-spot"])
@pytest.mark.parametrize("deadline_h", [math.inf, 40.0])
def test_a_budget_that_is_not_reached_changes_no_decision(billing: str, deadline_h: float) -> None:
    """What a budget remembers, and when it looks, is its own: not that of the policy within it."""
    random = np.random.default_rng(4)
    points = {
        market: [(1800 * step, float(usd * random.uniform(0.5, 8.0))) for step in range(380)]
        for market, usd in ((C3, 0.03), (R3, 0.02))
    }
    prices, work = history(points, hours=200.0), job(100_000, save_s=10, restore_s=20)
    policy = Ebbtide(deadline_s=deadline_h * HOUR_S)
    free = replay(policy, [work], prices, billing=billing)
    within = replay(WithinBudget(policy, 12.0), [work], prices, billing=billing)
    assert free.cost_usd < 8.0
    what = [(made.time_s, made.action, made.market, made.on_demand) for made in free.made]
    assert [(made.time_s, made.action, made.market, made.on_demand) for made in within.made] == what
    assert within.cost_usd == pytest.approx(free.cost_usd)


@pytest.mark.parametrize("hours", [1, 2])
def test_the_last_second_that_the_budget_pays_is_not_waited_for(hours: int) -> None:
    """A machine that is paid for so many hours: 35 seconds are kept for two saves of ten, and for its end."""
    asked = Scripted({Wake.START: lambda _view, _event: [Request(R3, on_demand=True, job=0)]})
    outcome = replay(
        WithinBudget(asked, 0.175 * hours), [job(36_000, save_s=10)], history({R3: [(0, 0.1)]}), "per-second"
    )
    (gave_up,) = (moment for moment in outcome.timeline if moment.what == "gave up")
    # The second before is rounded down to a whole one, and what comes up to a second later is acted on at once.
    last_s = outcome.leases[0].started_s + 3600 * hours - 35
    assert last_s - 2 <= gave_up.time_s < last_s
    assert outcome.leases[0].ended_s == gave_up.time_s + 10


def test_a_budget_cannot_be_changed_while_it_binds() -> None:
    with pytest.raises(FrozenInstanceError):
        WithinBudget(eb.policies.CheapestSpot(), 1.0).budget_usd = 2.0  # type: ignore[misc]
