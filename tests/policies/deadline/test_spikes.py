"""Policy `deadline` on markets whose spot price is often above the list price."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.markets import START_S, history

from ebbtide.base.utc import HOUR_S
from ebbtide.engine.decisions import REQUESTED
from ebbtide.engine.outcome import Outcome
from ebbtide.jobs.job import Job
from ebbtide.market.billing import billing_preset
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.registry import policy
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import StartDelay

AWS = tuple(Market("aws", "us-east-1", f"us-east-1{letter}", "g4dn.xlarge") for letter in "ab")
BILLINGS = ("by-cloud", "ec2-second", "gcp-spot", "ec2-hourly", "azure-spot", "per-second")
LISTED_USD = 0.526


def job(hours: float) -> Job:
    return Job.model_validate(
        {
            "name": "j",
            "steps": int(hours * 3600),
            "steps_per_hour": {"g4dn.xlarge": 3600.0},
            "checkpoint": {"save_s": 5, "restore_s": 10, "size_bytes": 2**30},
        }
    )


def by_turns(low_usd: float = 0.16, high_usd: float = 5.0, days: int = 3) -> PriceHistory:
    """Two zones above the list price for 12 of every 20 minutes, the one 10 minutes after the other."""
    points = {}
    for market, first_s in zip(AWS, (0.0, 600.0), strict=True):
        rows = [(0.0, high_usd)] if first_s else []
        for turn in range(days * 72):
            begins_s = first_s + turn * 1200.0
            rows += [(begins_s, low_usd), (begins_s + 480.0, high_usd)]
        points[market] = rows
    return history(points, hours=days * 24.0)


def ran(prices: PriceHistory, hours: float, billing: str, name: str = "deadline") -> Outcome:
    scenario = Scenario((job(hours),), prices, billing_preset(billing), delay=StartDelay(0.0, 60.0))
    return scenario.run(policy(name), START_S + 24 * HOUR_S, record=True)


def expected_usd(outcome: Outcome) -> list[float]:
    known = [one.expected_usd for decision in outcome.made for one in decision.alternatives]
    return [usd for usd in known if not math.isnan(usd)]


def allowed_usd(hours: float, billing: str, on_demand_usd: float) -> float:
    """What `deadline` may cost: as on demand, and 5 % of it, two starts of 310 s and a charge period.

    One start more is what a machine costs that is left because of its price while another one starts.
    """
    rule = billing_preset(billing).of("aws")
    more_s = 0.05 * hours * HOUR_S + 3 * 310.0 + max(rule.period_s, rule.minimum_s)
    return on_demand_usd + LISTED_USD * more_s / HOUR_S


@pytest.mark.parametrize("billing", BILLINGS)
@pytest.mark.parametrize("name", ["deadline", "ebbtide", "spottune", "exosphere", "dynamic-pricing-cost"])
def test_no_policy_expects_a_negative_cost_where_prices_are_often_above_the_list_price(
    name: str, billing: str
) -> None:
    usd = expected_usd(ran(by_turns(), 4.0, billing, name))
    assert min(usd, default=0.0) >= 0.0


@pytest.mark.parametrize("billing", BILLINGS)
def test_a_job_costs_no_more_than_on_demand_where_prices_are_often_above_the_list_price(billing: str) -> None:
    on_demand = ran(by_turns(), 4.0, billing, "on-demand")
    outcome = ran(by_turns(), 4.0, billing)
    assert outcome.cost_usd <= allowed_usd(4.0, billing, on_demand.cost_usd)


def test_a_spot_machine_is_held_at_no_price_above_the_list_price() -> None:
    """On clouds that take machines whose price rises the list price is the most; elsewhere it is left at once."""
    for billing in BILLINGS:
        asked = [
            one for one in ran(by_turns(), 4.0, billing).made if one.action == REQUESTED and not one.on_demand
        ]
        assert asked
        assert all(one.max_price_usd_per_hour == pytest.approx(LISTED_USD) for one in asked)


spells = st.lists(
    st.tuples(st.integers(60, 7200), st.sampled_from([0.05, 0.16, 0.3, 0.5, 0.6, 1.0, 5.0])),
    min_size=2,
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(spells, spells, st.sampled_from(BILLINGS), st.sampled_from([1.0, 3.0, 8.0]))
def test_in_any_market_a_job_costs_no_more_than_on_demand_but_for_a_few_starts(
    ours: list[tuple[int, float]], theirs: list[tuple[int, float]], billing: str, hours: float
) -> None:
    points = {}
    for market, rows in zip(AWS, (ours, theirs), strict=True):
        at_s, found = 0.0, []
        while at_s < 3 * 86_400.0:
            for lasts_s, usd in rows:
                found.append((at_s, usd))
                at_s += lasts_s
        points[market] = [one for one in found if one[0] < 3 * 86_400.0]
    prices = history(points, hours=72.0)
    on_demand, outcome = ran(prices, hours, billing, "on-demand"), ran(prices, hours, billing)
    assert outcome.finished
    assert min(expected_usd(outcome), default=0.0) >= 0.0
    assert outcome.cost_usd <= allowed_usd(hours, billing, on_demand.cost_usd)
