"""`python -m ebbtide.cli.precompile`: compile the functions of deadline tables, as installers compile bytecode.

Otherwise the first command that asks policy `deadline` or `ebbtide` for a job with a deadline compiles them. The
machine code is kept for each user, and holds for one kind of processor.
"""

from __future__ import annotations

from importlib.util import find_spec

from ebbtide.base.utc import HOUR_S
from ebbtide.jobs.job import Job
from ebbtide.market.billing import billing_preset
from ebbtide.market.generator_today import generate_today
from ebbtide.policies.deadline.policy import Deadline, DeadlineRule
from ebbtide.replay.generated_markets import generate_capacity
from ebbtide.replay.scenario import Scenario


def precompile() -> None:
    """Run a short job with a deadline under each rule that asks compiled functions; nothing without Numba."""
    if find_spec("numba") is None:
        return
    prices = generate_today(days=3.0, seed=0)
    job = Job(name="short", steps=6_000, steps_per_hour={"g2-standard-8": 1_000.0, "g6.2xlarge": 1_000.0})
    scenario = Scenario((job,), prices, billing_preset("by-cloud"), generate_capacity(prices, seed=0))
    for rule in (DeadlineRule.TABLE, DeadlineRule.FAILOVER):
        scenario.run(Deadline(rule=rule, deadline_s=12.0 * HOUR_S), prices.start_s + HOUR_S, record=True)


if __name__ == "__main__":
    precompile()
