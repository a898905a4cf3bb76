"""Saves while a job trains take time: no policy that has a deadline to keep forgets them."""

from __future__ import annotations

import pytest
from tests.markets import history

from ebbtide.base.utc import HOUR_S
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.billing import billing_preset
from ebbtide.market.markets import Market
from ebbtide.policies.for_job import policy_for
from ebbtide.replay.scenario import Scenario

SLOW = Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")
FAST = Market("aws", "us-east-1", "us-east-1a", "g2.2xlarge")
PRICES = history({SLOW: [(0, 0.03)], FAST: [(0, 0.10)]}, hours=72.0)
# Ten hours of work on the slow machine, six on the fast one. Saves take a third of the time: 15 h and 9.
WORK_H = {SLOW: 10.0, FAST: 6.0}
KEEPS = (
    "ebbtide",
    "deadline",
    "uniform-progress",
    "greedy-spot",
    "next-cheapest",
    "dynamic-pricing-cost",
    "skyline",
)


@pytest.mark.parametrize("name", KEEPS)
def test_the_deadline_is_kept_by_a_machine_that_is_fast_enough_with_its_saves(name: str) -> None:
    steps = 36_000
    asked = Sweep(
        name="saved",
        command="python train.py",
        max_trial_steps=steps,
        deadline_h=11.0,
        billing="ec2-hourly",
        steps_per_hour={market.instance_type: steps / hours for market, hours in WORK_H.items()},
        checkpoint={"save_s": 200.0, "restore_s": 30.0, "size_bytes": 1_000_000, "interval_s": 600.0},
    )
    outcome = Scenario(asked.jobs(), PRICES, billing_preset("ec2-hourly")).run(
        policy_for(asked, name), PRICES.start_s + 30 * HOUR_S
    )
    assert outcome.finished
    assert outcome.makespan_s <= 11.0 * HOUR_S
