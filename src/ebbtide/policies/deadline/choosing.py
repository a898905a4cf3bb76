"""What the rules for jobs with a deadline answer over several zones: `deadline`, Uniform Progress, greedy.

Whether a zone has a spot machine is known only by requesting one. A machine that is given is taken; a refusal
costs nothing. So a rule answers with the zone to ask next (or to stay in), or with what to do otherwise: `WAIT`
with nothing, or `GO_ON_DEMAND`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide._compiled_records import (
    GO_ON_DEMAND,
    MISSED_USD,
    NOTHING,
    ON_DEMAND,
    SPOT,
    WAIT,
    ZonesCosts,
    ZonesNow,
    ZonesTask,
)
from ebbtide._compiling import compiled, inner
from ebbtide.policies.deadline.solving import age_bin, between


@compiled
def by_table(costs: ZonesCosts, task: ZonesTask, now: ZonesNow) -> int:
    """The answer of `deadline`: the choice of least expected cost.

    Args:
        costs: The solved table of `deadline`.
        task: The job, its zones and the prices that the table was solved for.
        now: What is held, and what is known of the zones.

    Returns:
        A zone, `WAIT` or `GO_ON_DEMAND`.
    """
    return _choice(costs, task, now)[1]


@compiled
def cost_by_table(costs: ZonesCosts, task: ZonesTask, now: ZonesNow) -> float:
    """The expected cost from here on of the answer of `deadline`, USD."""
    return _choice(costs, task, now)[0]


@inner
def _choice(costs: ZonesCosts, task: ZonesTask, now: ZonesNow) -> tuple[float, int]:
    """The least expected cost from here on, USD, and the answer that has it."""
    left = int((now.left_s - now.until_next_s) / costs.tick_s + 0.5)
    later = costs.usd[min(max(left, 0), len(costs.usd) - 1)]
    age = age_bin(costs.bins_s, now.age_s)
    best, answer = _without_spot(later, age, costs, task, now)
    if now.held == SPOT:
        cost = _cost_of_keeping(later, age, costs, task, now)
        if cost < best:
            best, answer = cost, now.zone
        if not now.may_ask:
            return best, answer
    for other in range(len(now.spot_usd)):
        if (now.held == SPOT and other == now.zone) or now.since_refused_s[other] == 0.0:
            continue
        cost = _cost_of_taking(later, other, costs, task, now)
        if cost < best:
            best, answer = cost, other
    return best, answer


@inner
def _without_spot(later: Any, age: int, costs: ZonesCosts, task: ZonesTask, now: ZonesNow) -> tuple[float, int]:
    """The least cost of waiting and of going on demand, USD, and which it is."""
    to_do_s = now.left_s - now.slack_s
    best, answer = MISSED_USD, GO_ON_DEMAND
    if now.slack_s - now.until_next_s >= task.restart_s:
        best = between(later[NOTHING, now.zone, age], (now.slack_s - now.until_next_s) / costs.step_s)
        answer = WAIT
    overhead_s = 0.0 if now.held == ON_DEMAND else task.restart_s
    cost = task.on_demand_usd * min(now.until_next_s, to_do_s + overhead_s) / 3600.0
    if to_do_s + overhead_s > now.until_next_s:
        cost += between(later[ON_DEMAND, now.zone, age], (now.slack_s - overhead_s) / costs.step_s)
    if cost < best:
        best, answer = cost, GO_ON_DEMAND
    return best, answer


@inner
def _cost_of_keeping(later: Any, age: int, costs: ZonesCosts, task: ZonesTask, now: ZonesNow) -> float:
    """The cost from here on if the spot machine is kept, USD; infinity if that could miss the deadline."""
    to_do_s, spot_usd = now.left_s - now.slack_s, now.spot_usd[now.zone]
    if now.slack_s < task.restart_s and to_do_s > now.until_next_s:
        return np.inf
    cost: float = spot_usd * min(now.until_next_s, to_do_s) / 3600.0
    if to_do_s > now.until_next_s:
        cost += between(later[SPOT, now.zone, age], now.slack_s / costs.step_s)
        lasts_s = min(to_do_s - now.until_next_s, costs.lasts_s[now.zone])
        cost += (spot_usd - task.spot_usd[now.zone]) * lasts_s / 3600.0
    return cost


@inner
def _cost_of_taking(later: Any, other: int, costs: ZonesCosts, task: ZonesTask, now: ZonesNow) -> float:
    """The cost from here on if a zone's spot machine is taken, USD; infinity if that could miss the deadline."""
    here, there = task.place_of[now.zone], task.place_of[other]
    overhead_s = task.restart_s if now.fresh else task.start_s[here, there]
    then_s, used_s = now.slack_s - overhead_s, now.left_s - now.slack_s + overhead_s
    at_last = used_s <= now.until_next_s
    if then_s < (0.0 if at_last else task.restart_s):
        return np.inf
    cost: float = now.spot_usd[other] * min(now.until_next_s, used_s) / 3600.0
    if not now.fresh:
        cost += task.egress_usd[here, there]
    if not at_last:
        ages = costs.ages[other, age_bin(costs.bins_s, now.since_refused_s[other])]
        for one in range(len(ages)):
            cost += ages[one] * between(later[SPOT, other, one], then_s / costs.step_s)
        lasts_s = min(used_s - now.until_next_s, costs.lasts_s[other])
        cost += (now.spot_usd[other] - task.spot_usd[other]) * lasts_s / 3600.0
    return cost


@compiled
def next_cheapest(task: ZonesTask, now: ZonesNow) -> int:
    """The answer of Uniform Progress that fails over to the next-cheapest zone; with one zone, Uniform Progress.

    Zones are asked in order of price, those of the place that revoked the last machine after all others (the eager
    failover of SkyPilot). When all refuse, or only staying on demand is safe, Uniform Progress decides (NSDI 2024,
    section 4).
    """
    if now.was_safety:
        return GO_ON_DEMAND
    to_do_s = now.left_s - now.slack_s
    if now.held == SPOT:
        return now.zone if now.slack_s >= task.restart_s or to_do_s <= now.until_next_s else GO_ON_DEMAND
    passed_s, done_s = task.deadline_s - now.left_s, task.work_s - to_do_s
    wants = True
    if now.held == ON_DEMAND:
        wants = done_s > (passed_s + 2.0 * task.restart_s) * task.work_s / task.deadline_s
    if wants:
        answer = _cheapest_zone(task, now)
        if answer >= 0:
            return answer
    if now.held == ON_DEMAND or done_s < passed_s * task.work_s / task.deadline_s:
        return GO_ON_DEMAND
    return WAIT if now.slack_s - now.until_next_s >= task.restart_s else GO_ON_DEMAND


@inner
def _cheapest_zone(task: ZonesTask, now: ZonesNow) -> int:
    """The cheapest zone that can be asked, one of the place of the last revocation only if there is no other; -1:
    none."""
    best, answer, last = np.inf, -1, True
    for other in range(len(now.spot_usd)):
        overhead_s = task.restart_s if now.fresh else task.start_s[task.place_of[now.zone], task.place_of[other]]
        at_last = now.left_s - now.slack_s + overhead_s <= now.until_next_s
        least_s = 0.0 if at_last else task.restart_s
        if now.since_refused_s[other] == 0.0 or now.slack_s - overhead_s < least_s:
            continue
        avoided = task.place_of[other] == now.fell_place
        if (last and not avoided) or (avoided == last and now.spot_usd[other] < best):
            best, answer, last = now.spot_usd[other], other, avoided
    return answer


def greedy(task: ZonesTask, now: ZonesNow) -> int:
    """The answer of `greedy-spot`: the cheapest available spot machine; else nothing until the last safe moment,
    then on demand."""
    if now.was_safety or (now.held == ON_DEMAND and now.slack_s < 2.0 * task.restart_s):
        return GO_ON_DEMAND
    if now.held == SPOT:
        return now.zone if now.slack_s >= task.restart_s else GO_ON_DEMAND
    for zone in np.argsort(now.spot_usd, kind="stable"):
        start_s = task.start_s[task.place_of[now.zone], task.place_of[zone]]
        if now.fresh:
            start_s = task.restart_s
        if now.since_refused_s[zone] > 0.0 and now.slack_s - start_s >= task.restart_s:
            return int(zone)
    return WAIT if now.slack_s - now.until_next_s >= task.restart_s else GO_ON_DEMAND
