"""Policy `deadline` on markets whose spot price is often above the list price."""

from __future__ import annotations

import math

import pytest
from tests.markets import START_S, history

from ebbtide._utc import HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.jobs.job import Job
from ebbtide.market.billing import billing_preset
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.registry import policy
from ebbtide.simulation.scenario import Scenario
from ebbtide.simulation.start_delay import StartDelay

LISTED_USD = 0.526
ZONES = {cloud: cloud for cloud in ("aws",)}
AWS = tuple(Market("aws", "us-east-1", f"us-east-1{letter}", "g4dn.xlarge") for letter in "ab")


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


def ran(prices: PriceHistory, hours: float, billing: str, name: str = "deadline", **more: object) -> Outcome:
    scenario = Scenario((job(hours),), prices, billing_preset(billing), delay=StartDelay(0.0, 60.0))
    return scenario.run(policy(name, **more), START_S + 24 * HOUR_S, record=True)


def expected_usd(outcome: Outcome) -> list[float]:
    return [one.expected_usd for decision in outcome.made for one in decision.alternatives]


BILLINGS = ("by-cloud", "ec2-second", "gcp-spot", "ec2-hourly", "azure-spot", "per-second")


@pytest.mark.parametrize("billing", BILLINGS)
def test_no_cost_is_expected_to_be_negative_and_none_is_above_that_on_demand(billing: str) -> None:
    outcome = ran(by_turns(), 4.0, billing)
    print(
        billing,
        outcome.cost_usd,
        outcome.makespan_s / 3600,
        outcome.decisions,
        ran(by_turns(), 4.0, billing, "on-demand").cost_usd,
    )
    usd = expected_usd(outcome)
    assert usd and min(one for one in usd if not math.isnan(one)) >= 0.0
