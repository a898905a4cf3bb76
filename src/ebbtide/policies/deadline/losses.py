"""The bound on what trying spot machines may lose a job with a deadline against one on-demand machine throughout.

Models of spells may be wrong: where machines are taken sooner than they say, each start is paid for in vain. So a
spot machine is tried only while the run, if that start is lost as well, has not spent more than what is done would
have cost on demand, plus an allowance.
"""

from __future__ import annotations

import math
from typing import Any

from ebbtide._compiled_records import ON_DEMAND, ZonesNow, ZonesTask
from ebbtide._utc import HOUR_S
from ebbtide.market.markets import Market
from ebbtide.policies.api.view import View
from ebbtide.policies.deadline.gangs import gangs_of

# What may be lost besides a share of the cost on demand: so many on-demand starts, and a charge period.
_STARTS = 2.0


def least_charged_s(view: View, market: Market) -> float:
    """The least time for which a machine of a market is charged, seconds."""
    rule = view.billing.of(market.cloud)
    return max(rule.period_s, rule.minimum_s)


def allowance_usd(view: View, memory: dict[str, Any], share: float) -> float:
    """What trying spot machines may lose the run's jobs that have begun, USD.

    Args:
        view: What the policy sees.
        memory: What the policy remembers of all jobs.
        share: Part of each job's cost on demand.
    """
    found = 0.0
    for own in memory["jobs"].values():
        if "zones" in own:
            period_s = max(least_charged_s(view, gang.market) for gang in gangs_of(own))
            spare_s = _STARTS * own["restart_s"] + period_s + share * own["work_h"] * HOUR_S
            found += own["on_demand_usd"] * spare_s / HOUR_S
    return found


def lost_usd(view: View, memory: dict[str, Any]) -> float:
    """What the run has spent beyond the cost on demand of what it has done, USD.

    Negative: it has saved so much. Minus infinity where jobs run that another policy leads: it is not known then.
    """
    on_demand_usd = 0.0
    for job in view.jobs:
        own = memory["jobs"].get(str(job.job_id), {})
        if "zones" not in own:
            if job.leases or job.steps_done > 0.0:
                return -math.inf
            continue
        gangs = gangs_of(own)
        rate = view.steps_per_s(job.job, gangs[0].market) * job.job.speedup_of(max(one.machines for one in gangs))
        on_demand_usd += own["on_demand_usd"] * job.steps_done / rate / HOUR_S
    return view.spent_usd - on_demand_usd


def start_usd(view: View, own: dict[str, Any], task: ZonesTask, now: ZonesNow, zone: int) -> float:
    """What is lost if a zone's spot machine is started and taken before it works, USD."""
    market = gangs_of(own)[zone].market
    source, target = task.place_of[now.zone], task.place_of[zone]
    least_s = least_charged_s(view, market)
    usd = now.spot_usd[zone] * max(task.start_s[source, target], least_s) / HOUR_S
    if not now.fresh:
        usd += task.egress_usd[source, target]
    if now.held == ON_DEMAND:
        # The next on-demand machine has to start as well.
        usd += task.on_demand_usd * max(task.restart_s, least_s) / HOUR_S
    return float(usd)
