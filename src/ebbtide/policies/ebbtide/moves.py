"""Moves of jobs of the default policy: when to look at one, and where to, if it saves more than it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ebbtide.base.utc import HOUR_S
from ebbtide.market.billing import Refund
from ebbtide.policies.api.records import LeaseView
from ebbtide.policies.api.view import View
from ebbtide.policies.ebbtide.options import Refunds, Way, Ways
from ebbtide.policies.ebbtide.slack import InTime
from ebbtide.policies.migration import egress_usd

# A move has to save this share of what is left, as well as its cost.
_MARGIN = 0.03
# The same of machines that work as one: others may be refused when these are given back.
_RENEWAL_MARGIN = 0.2
# What prices save beyond so many hours is not counted: by then they differ.
_HORIZON_H = 4.0
# How long before the end of a paid period a move is looked at, seconds.
_LEAD_S = 240.0


def next_look_s(view: View, lease: LeaseView, look_every_s: float) -> float:
    """Time of the next look at a move: after the refunded hour, near a period's end, or after `look_every_s`."""
    held_s, period_s = view.now_s - lease.started_s, view.billing.period_s
    if refunds_first_hour(view) and not lease.on_demand:
        return max(view.now_s + look_every_s if held_s >= HOUR_S else 0.0, lease.started_s + HOUR_S)
    if period_s > look_every_s:
        begun = math.floor((held_s + _LEAD_S + 1.0) / period_s)
        return lease.started_s + (begun + 1) * period_s - _LEAD_S
    return view.now_s + look_every_s


def refunds_first_hour(view: View) -> bool:
    """Return whether max prices can bring refunds: prices revoke, and revocation in the first hour is free."""
    return view.billing.price_revokes and view.billing.refund is Refund.WITHIN_FIRST_HOUR


def is_renewed(view: View, held: Sequence[LeaseView], in_time: InTime) -> bool:
    """Return whether a gang, held on spot for an hour, is given back for new machines of the same market.

    New machines are refunded if they are taken within their first hour, which is what that market often does.
    """
    ways, market = in_time.ways, held[0].market
    if not refunds_first_hour(view) or any(one.on_demand or one.market != market for one in held):
        return False
    new = next((way for way in ways.spot() if way.market == market), None)
    if new is None or not in_time.may_try(new) or any(view.now_s - one.started_s < HOUR_S for one in held):
        return False
    work, vcpus = ways.job.job, view.machine(market).vcpus
    idle_s = work.save_s(vcpus, market.place) + ways.start_s + work.restore_s(vcpus)
    return Refunds(view).paid_share(market) * (1.0 + idle_s / HOUR_S) < 1.0 - _RENEWAL_MARGIN


def paid_usd_per_hour(view: View, lease: LeaseView) -> float:
    """Price of a machine now, USD per hour: spot, or the list price on demand."""
    listed = view.on_demand_price(lease.market) if lease.on_demand else None
    return view.price(lease.market) if listed is None else listed


def staying_usd(view: View, lease: LeaseView, ways: Ways) -> float:
    """Expected cost of the rest of a job on the machine that it has, USD."""
    if ways.bids_pay and refunds_first_hour(view) and ways.bid is not None and not lease.on_demand:
        return ways.staying_usd(lease.market)
    staying_s = ways.work_s_in(lease.market)
    return (paid_usd_per_hour(view, lease) + ways.hour_usd) * staying_s / HOUR_S


def best_move(view: View, lease: LeaseView, in_time: InTime) -> Way | None:
    """The way that saves most over staying, its cost counted; None: none saves enough.

    Args:
        view: Prices of the moment.
        lease: The one machine of the job.
        in_time: The ways for the job, and which of them its deadline leaves.
    """
    ways = in_time.ways
    work = ways.job.job
    price = paid_usd_per_hour(view, lease)
    staying_s = ways.work_s_in(lease.market)
    saving_s = work.save_s(view.machine(lease.market).vcpus, lease.market.place)
    by_bids = ways.bids_pay and refunds_first_hour(view)
    share = 1.0 if by_bids else min(_HORIZON_H * HOUR_S / staying_s, 1.0)
    stay_usd = share * staying_usd(view, lease, ways)
    # A bid's expected cost has the start of its machine within it, while the old one trains on.
    idle_s = saving_s if by_bids else saving_s + ways.start_s
    best: tuple[float, Way] | None = None
    for way in ways.all():
        same = (way.market, way.on_demand) == (lease.market, lease.on_demand)
        # A new machine of the same market may be refunded again.
        if (same and not by_bids) or not in_time.may_try(way):
            continue
        move_usd = price * idle_s / HOUR_S + egress_usd(view, ways.job, lease.market, way.market)
        saved = stay_usd - share * (way.usd - ways.arriving_usd(way.market)) - move_usd
        least_usd = 0.0 if by_bids else _MARGIN * stay_usd
        if saved > least_usd and (best is None or saved > best[0]):
            best = saved, way
    return best[1] if best else None
