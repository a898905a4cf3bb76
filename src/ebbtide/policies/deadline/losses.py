"""The bound on what trying spot machines may lose a job with a deadline against one on-demand machine throughout.

Models of spells may be wrong: where machines are taken sooner than they say, each start is paid for in vain. So a
spot machine is tried only while the job, if that start is lost as well, has not spent more than what is done would
have cost on demand, plus an allowance.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ebbtide.base.compiled_records import ON_DEMAND, ZonesNow, ZonesTask
from ebbtide.base.utc import HOUR_S
from ebbtide.market.billing import ON_DEMAND as ON_DEMAND_RULE
from ebbtide.market.billing import LeaseEnding
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View
from ebbtide.policies.deadline.gangs import coming_leases, gangs_of

# What may be lost besides a share of the cost on demand: so many on-demand starts, and a charge period.
_STARTS = 2.0

# Prices are looked up from so long before a machine's start, seconds: longer than any auction's round.
_BEFORE_S = 600.0


def least_charged_s(view: View, market: Market) -> float:
    """The least time for which a machine of a market is charged, seconds."""
    rule = view.billing.of(market.cloud)
    return max(rule.period_s, rule.minimum_s)


def note_rented(view: View, job: JobView, own: dict[str, Any]) -> None:
    """Keep which machines were rented for a job: what it paid is counted from them."""
    known: list[int] = own.setdefault("rented", [])
    rented = {lease.lease_id for lease in (*view.leases_of(job.job_id), *coming_leases(view, own))}
    known += sorted(rented - set(known))


def allowance_usd(view: View, own: dict[str, Any], share: float) -> float:
    """Largest loss that trying spot machines may cause a job, USD.

    Args:
        view: What the policy sees.
        own: What the policy remembers of the job.
        share: Part of the job's cost on demand.
    """
    period_s = max(least_charged_s(view, gang.market) for gang in gangs_of(own))
    spare_s = _STARTS * own["restart_s"] + period_s + share * own["work_h"] * HOUR_S
    return float(own["on_demand_usd"] * spare_s / HOUR_S)


def lost_usd(view: View, job: JobView, own: dict[str, Any]) -> float:
    """Cost of a job so far, less the on-demand cost of the steps it has done, USD; negative: it has saved."""
    gangs = gangs_of(own)
    rate = view.steps_per_s(job.job, gangs[0].market) * job.job.speedup_of(max(one.machines for one in gangs))
    settled: dict[str, float] = own.setdefault("paid", {})
    paid_usd = [view.egress_usd(one.size_bytes, one.source, one.destination) for one in job.transfers]
    for lease_id in own.get("rented", ()):
        lease = view.lease(lease_id)
        usd = settled[str(lease_id)] if str(lease_id) in settled else _paid_usd(view, lease)
        if not lease.is_open:
            settled[str(lease_id)] = usd
        paid_usd.append(usd)
    return float(math.fsum(paid_usd) - own["on_demand_usd"] * job.steps_done / rate / HOUR_S)


def _paid_usd(view: View, lease: LeaseView) -> float:
    """Cost of a machine so far, as if it were released now, USD."""
    if math.isnan(lease.started_s):
        return 0.0
    rule = view.billing.of(lease.market.cloud)
    if lease.on_demand:
        rule = rule.on_demand or ON_DEMAND_RULE
        listed_usd = view.on_demand_price(lease.market) or math.nan
        prices = PriceSeries(np.array([lease.started_s]), np.array([listed_usd]))
    else:
        # From before its start, whose time is not exact as a difference, and that of its first round.
        prices = PriceSeries(*view.past_prices(lease.market, view.now_s - lease.started_s + _BEFORE_S))
    # A cloud's clock may be a moment ahead.
    ends_s = max(view.now_s, lease.started_s) if math.isnan(lease.ended_s) else lease.ended_s
    ending = LeaseEnding.REVOKED if lease.state is LeaseState.REVOKED else LeaseEnding.RELEASED
    return rule.bill(prices, lease.started_s, ends_s, ending).usd


def start_usd(view: View, own: dict[str, Any], task: ZonesTask, now: ZonesNow, zone: int) -> float:
    """Loss if a zone's spot machine is started and revoked before it works, USD."""
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
