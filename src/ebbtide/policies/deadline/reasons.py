"""Reasons that policies for jobs with a deadline give: the choices at that moment and their costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ebbtide.base.compiled_records import GO_ON_DEMAND, NOTHING, ON_DEMAND, SPOT, WAIT, ZonesNow
from ebbtide.base.utc import HOUR_S
from ebbtide.policies.api.reasons import Alternative, Reason
from ebbtide.policies.deadline.gangs import Gang
from ebbtide.policies.deadline.rules import by_table, costs_by_table
from ebbtide.policies.deadline.table import ZoneTable

# A cost from here on is a missed deadline, USD: the table's way to say never.
_NEVER_USD = 1e6


def by_costs(table: ZoneTable, gangs: Sequence[Gang], now: ZonesNow, answer: int) -> Reason:
    """Reason for the answer of the table of `deadline`: the choice of least expected cost.

    Args:
        table: The solved table.
        gangs: The machines of each zone.
        now: What is held, and what is known of the zones.
        answer: A zone, `WAIT` or `GO_ON_DEMAND`.
    """
    usd = costs_by_table(table.costs, table.problem.task, now).tolist()
    names = ["wait", "stay on demand" if now.held == ON_DEMAND else "on demand"]
    asked = {WAIT: 0, GO_ON_DEMAND: 1}.get(answer, 2 + answer)
    choices = [
        Alternative(name, _finite(cost), _left(now), is_chosen=place == asked)
        for place, (name, cost) in enumerate(zip(names, usd[:2], strict=True))
    ]
    for zone, (gang, cost) in enumerate(zip(gangs, usd[2:], strict=True)):
        held = now.held == SPOT and zone == now.zone
        name = ("keep " if held else "spot, ") + (
            f"{gang.machines} machines" if gang.machines > 1 else "1 machine"
        )
        choices.append(Alternative(name, _finite(cost), _zone(now, zone), gang.market, 2 + zone == asked))
    why = "least expected cost until the job is done, by the table over how long capacity lasts"
    if answer == GO_ON_DEMAND and not math.isfinite(_finite(usd[0])) and not np.isfinite(usd[2:]).any():
        why = "nothing else is sure to end in time"
    elif answer == GO_ON_DEMAND and by_table(table.costs, table.problem.task, now) >= 0:
        why = "starts of spot machines have lost as much as they may against one machine on demand"
    return Reason(why, choices)


def by_rule(rule: str, gangs: Sequence[Gang], now: ZonesNow, answer: int) -> Reason:
    """Reason for the answer of a rule that weighs no costs.

    Args:
        rule: Name of the rule.
        gangs: The machines of each zone.
        now: What is held, and what is known of the zones.
        answer: A zone, `WAIT` or `GO_ON_DEMAND`.
    """
    why = {
        WAIT: "no zone can be asked now, and there is time to wait",
        GO_ON_DEMAND: "by its progress, or for lack of time, the job goes on demand",
    }.get(answer, "the cheapest zone that can be asked, with time left for an on-demand machine after it")
    zones = [
        Alternative("spot", math.nan, _zone(now, zone), gang.market, zone == answer)
        for zone, gang in enumerate(gangs)
    ]
    return Reason(f"rule {rule}: {why}", zones)


def without_saving() -> Reason:
    """Reason to run a job without checkpoints on demand."""
    return Reason("a job without checkpoints is not put on a machine that can be revoked")


def _zone(now: ZonesNow, zone: int) -> str:
    """State of a zone in words: its price, and the time that it is held or since it refused."""
    price = f"{now.spot_usd[zone]:.6f} USD/h"
    if now.held == SPOT and zone == now.zone:
        return f"{price}, held for {_hours(now.age_s)}"
    since_s = float(now.since_refused_s[zone])
    if since_s <= 0.0:
        return f"{price}, has just refused"
    never = since_s > 10.0 * 365.0 * 24.0 * HOUR_S
    return f"{price}, never refused" if never else f"{price}, refused {_hours(since_s)} ago"


def _left(now: ZonesNow) -> str:
    held = {NOTHING: "nothing", ON_DEMAND: "an on-demand machine", SPOT: "a spot machine"}[int(now.held)]
    work_s = now.left_s - now.slack_s
    return f"{_hours(now.left_s)} left for {_hours(work_s)} of work; {held} held"


def _hours(duration_s: Any) -> str:
    return f"{float(duration_s) / HOUR_S:.2f} h"


def _finite(usd: float) -> float:
    return usd if usd < _NEVER_USD else math.inf
