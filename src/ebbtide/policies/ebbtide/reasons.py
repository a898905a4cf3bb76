"""Reasons of the default policy for its decisions: the ways that a job had, each with the sum of its cost."""

from __future__ import annotations

from dataclasses import replace
from heapq import nsmallest

from ebbtide.base.utc import HOUR_S
from ebbtide.jobs.job import UNKNOWN_STEPS
from ebbtide.policies.api.reasons import Alternative, Reason
from ebbtide.policies.ebbtide.options import Way, Ways
from ebbtide.policies.ebbtide.slack import InTime

# Ways that are told of, those of least expected cost.
_TOLD = 12


def reason(why: str, in_time: InTime, taken: Way | None, waiting: Alternative | None = None) -> Reason:
    """Reason for taking a way, or none.

    Args:
        why: The reason in one sentence.
        in_time: The ways for the job, and which of them its deadline leaves.
        taken: The way that is taken; None: none is.
        waiting: What is done instead of a way, if that was weighed.
    """
    ways = in_time.ways
    key = why, in_time.left_s, taken, waiting
    if key not in ways.reasons:
        ways.reasons[key] = _made(why, in_time, taken, waiting)
    found: Reason = ways.reasons[key]
    return found


def _made(why: str, in_time: InTime, taken: Way | None, waiting: Alternative | None) -> Reason:
    ways = in_time.ways
    open_now = {(way.market, way.on_demand) for way in ways.all()}
    known = {(way.market, way.on_demand): way for way in (*replace(ways, refusals=None).all(), *ways.all())}
    if taken is not None:
        known[taken.market, taken.on_demand] = taken
    told = nsmallest(_TOLD, known.values(), key=lambda way: way.rank)
    if taken is not None and taken not in told:
        told.append(taken)
    alternatives = [
        Alternative(
            choice_of(way),
            way.usd,
            "; ".join(
                (
                    sum_of(ways, way) + _risk_of(ways, way),
                    *_against(way, in_time, (way.market, way.on_demand) in open_now),
                )
            ),
            way.market,
            way == taken,
        )
        for way in told
    ]
    return Reason(why, [*([waiting] if waiting is not None else []), *alternatives])


def choice_of(way: Way) -> str:
    """A way in words, its market aside."""
    return "on demand" if way.on_demand else f"spot, at most {way.max_price_usd_per_hour:.4f} USD/h"


def sum_of(ways: Ways, way: Way) -> str:
    """Calculation of a way's expected cost in words, figure by figure."""
    machines = ways.job.job.most_machines
    times = f" x {machines} machines" if machines > 1 else ""
    arriving_usd = ways.arriving_usd(way.market)
    egress = f" + egress {arriving_usd:.6f} USD" if arriving_usd else ""
    # Of a job that ends when its program does, no total means anything.
    unknown = ways.job.job.steps >= UNKNOWN_STEPS
    share = ways.paid_share(way)
    paid = f" x {share:.4f} paid so far of first hours there" if share != 1.0 else ""
    offer = None if way.on_demand else ways.offer_in(way.market)
    lost = 0.0 if way.on_demand else ways.again(way.market)
    if offer is not None:
        revoked = (
            f"; revoked within the hour with probability {offer.revoked:.3f}"
            if offer.revoked == offer.revoked
            else ""
        )
        steps = "" if unknown else f" x {ways.steps:g} steps"
        more = f" x {1.0 + lost:.4f} for losses" if lost else ""
        return f"{offer.usd_per_step:.8g} USD a step{steps}{times}{more}{paid}{egress}{revoked}"
    price = ways.price_of(way)
    if unknown:
        value = f" + {ways.hour_usd:g} USD/h of time" if ways.hour_usd else ""
        return f"{price:.6f} USD/h{times}{paid}{value}"
    work_s = way.work_s * (1.0 + lost)
    lasts_s, paid_s = ways.lasts_s(way.market, work_s), ways.paid_s(way.market, work_s)
    value = f" + {ways.hour_usd:g} USD/h x {lasts_s / HOUR_S:.4f} h of time" if ways.hour_usd else ""
    parts = f"start {ways.start_s:.0f} s, restore {ways.restore_s(way.market):.0f} s, work {way.work_s:.0f} s"
    parts += f", losses {way.work_s * lost:.0f} s" if lost else ""
    return f"{price:.6f} USD/h x {paid_s / HOUR_S:.6f} h{times}{paid}{value}{egress} ({parts})"


def _risk_of(ways: Ways, way: Way) -> str:
    is_told = not way.on_demand and ways.counts_losses(way.market)
    return ways.risk.text(way.market) if ways.risk is not None and is_told else ""


def _against(way: Way, in_time: InTime, is_open: bool) -> list[str]:
    """Objections to a way, whatever it costs: a refusal, or the deadline."""
    found = [] if is_open else ["it has just refused a machine"]
    if not in_time.may_try(way):
        found.append("after it an on-demand machine might not end in time" if not way.on_demand else "not in time")
    return found
