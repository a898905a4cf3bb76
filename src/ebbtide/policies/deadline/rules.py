"""Answers of the rules for jobs with a deadline over several zones: `deadline`, Uniform Progress, greedy.

Whether a zone has a spot machine is known only by requesting one. A machine that is given is taken; a refusal
costs nothing. So a rule answers with the zone to ask next (or to stay in), or with what to do otherwise: `WAIT`
with nothing, or `GO_ON_DEMAND`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.base.compiled_records import (
    GO_ON_DEMAND,
    MISSED_USD,
    NOTHING,
    ON_DEMAND,
    SPOT,
    WAIT,
    WATCHING,
    ZonesCosts,
    ZonesNow,
    ZonesTask,
)
from ebbtide.base.compiling import compiled, inner
from ebbtide.policies.deadline.solving import age_bin, between
from ebbtide.policies.deadline.solving_zones import slack_after, tick_on_spot

# A share of a tick below which a time is on the tick.
_SAME_TICK = 1e-6

# No job costs as much; a table's costs do where the deadline is missed, and between there and the next step.
_LATE_USD = MISSED_USD / 1e6


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


@compiled
def costs_by_table(costs: ZonesCosts, task: ZonesTask, now: ZonesNow) -> Any:
    """The expected cost from here on of each choice that `by_table` has, USD; infinity: too late, or refused.

    Shape (2 + zones,): waiting with nothing, going (or staying) on demand, and each zone's spot machine, where the
    one that is held is kept.
    """
    age = age_bin(costs.bins_s, now.age_s)
    found = np.full(2 + len(now.spot_usd), np.inf)
    found[0] = _cost_of_waiting(age, costs, task, now)
    found[1] = _cost_on_demand(age, costs, task, now)
    for zone in range(len(now.spot_usd)):
        if now.held == SPOT and zone == now.zone:
            found[2 + zone] = _cost_of_keeping(age, costs, task, now)
        elif now.since_refused_s[zone] > 0.0:
            cost = _cost_of_keeping_new(zone, costs, task, now)
            if now.held == NOTHING:
                cost = min(cost, _cost_of_watching(zone, costs, task, now))
            found[2 + zone] = cost
    return found


@compiled
def is_only_watched(costs: ZonesCosts, task: ZonesTask, now: ZonesNow, zone: int) -> bool:
    """Return whether watching a zone until the next decision costs less than keeping a machine that it gives.

    A young spell may end before the machine's start is worth it.
    """
    return _cost_of_watching(zone, costs, task, now) < _cost_of_keeping_new(zone, costs, task, now)


@compiled
def likely_age_s(ages: Any, bins_s: Any, since_s: float) -> float:
    """The median age of the up spell of a zone that refused `since_s` ago, seconds.

    Args:
        ages: Probability of each age by the time since the refusal; shape (bins since, bins of age).
        bins_s: Lower ends of the bins, seconds.
        since_s: Seconds since the refusal.
    """
    here = ages[age_bin(bins_s, since_s)]
    below, age_s = 0.0, 0.0
    for one in range(len(bins_s)):
        if below >= 0.5:
            break
        below += here[one]
        age_s = bins_s[one]
    return age_s


@inner
def _later_usd(costs: ZonesCosts, now: ZonesNow, held: int, zone: int, age: int, then_s: float) -> float:
    """The cost from the next decision on, USD, with `then_s` of slack: interpolated between two ticks.

    The work that is left is the same at both, as the cost depends on little else where there is much slack.
    Rounded to a tick, the time left would make work disappear that is shorter than a tick.
    """
    left = max((now.left_s - now.until_next_s) / costs.tick_s, 0.0)
    before = min(int(left + _SAME_TICK), len(costs.usd) - 1)
    share = max(left - before, 0.0)
    if share <= _SAME_TICK or before == len(costs.usd) - 1:
        return float(between(costs.usd[before, held, zone, age], then_s / costs.step_s))
    more_s = then_s + (1.0 - share) * costs.tick_s
    more_usd = float(between(costs.usd[before + 1, held, zone, age], more_s / costs.step_s))
    less_s = then_s - share * costs.tick_s
    if less_s < 0.0:
        return more_usd
    less_usd = float(between(costs.usd[before, held, zone, age], less_s / costs.step_s))
    if less_usd > _LATE_USD:
        # With the time until the tick there is slack enough: what is missed without it says nothing.
        return more_usd
    return (1.0 - share) * less_usd + share * more_usd


@inner
def _choice(costs: ZonesCosts, task: ZonesTask, now: ZonesNow) -> tuple[float, int]:
    """The least expected cost from here on, USD, and the answer that has it."""
    age = age_bin(costs.bins_s, now.age_s)
    best, answer = _without_spot(age, costs, task, now)
    if now.held == SPOT:
        cost = _cost_of_keeping(age, costs, task, now)
        if cost < best:
            best, answer = cost, now.zone
        if not now.may_ask:
            return best, answer
        if answer == now.zone:
            # What it may be exchanged for is judged by the mean over ages; so is what is held, or each machine
            # would look better than the last.
            best = min(best, _cost_of_keeping(-1, costs, task, now))
    for other in range(len(now.spot_usd)):
        if (now.held == SPOT and other == now.zone) or now.since_refused_s[other] == 0.0:
            continue
        cost = _cost_of_keeping_new(other, costs, task, now)
        if now.held == NOTHING:
            cost = min(cost, _cost_of_watching(other, costs, task, now))
        if cost < best:
            best, answer = cost, other
    return best, answer


@inner
def _without_spot(age: int, costs: ZonesCosts, task: ZonesTask, now: ZonesNow) -> tuple[float, int]:
    """The least cost of waiting and of going on demand, USD, and which it is."""
    best, answer = MISSED_USD, GO_ON_DEMAND
    cost = _cost_of_waiting(age, costs, task, now)
    if cost < np.inf:
        best, answer = cost, WAIT
    cost = _cost_on_demand(age, costs, task, now)
    if cost < best:
        best, answer = cost, GO_ON_DEMAND
    return best, answer


@inner
def _cost_of_waiting(age: int, costs: ZonesCosts, task: ZonesTask, now: ZonesNow) -> float:
    """The cost from here on if nothing is held until the next decision, USD; infinity: it would be too late."""
    then_s = now.slack_s - now.until_next_s
    if then_s < task.restart_s:
        return np.inf
    return _later_usd(costs, now, NOTHING, now.zone, age, then_s)


@inner
def _cost_on_demand(age: int, costs: ZonesCosts, task: ZonesTask, now: ZonesNow) -> float:
    """The cost from here on of an on-demand machine, or of the one that is held, USD."""
    to_do_s = now.left_s - now.slack_s
    overhead_s = 0.0 if now.held == ON_DEMAND else task.restart_s
    cost: float = task.on_demand_usd * min(now.until_next_s, to_do_s + overhead_s) / 3600.0
    if to_do_s + overhead_s > now.until_next_s:
        cost += _later_usd(costs, now, ON_DEMAND, now.zone, age, now.slack_s - overhead_s)
    return cost


@inner
def _cost_of_keeping(age: int, costs: ZonesCosts, task: ZonesTask, now: ZonesNow) -> float:
    """The cost from here on if the spot machine is kept, USD; infinity if that could miss the deadline.

    `age` is the bin of its spell's age; -1: the mean over all ages since the zone's last refusal.
    """
    to_do_s, spot_usd = now.left_s - now.slack_s, now.spot_usd[now.zone]
    if not _is_safe(task, now, now.zone, 0.0):
        return np.inf
    used_s = to_do_s / task.speed[now.zone]
    cost: float = spot_usd * min(now.until_next_s, used_s) / 3600.0
    if used_s > now.until_next_s:
        then_s = slack_after(task, now.zone, now.slack_s, 0.0, now.until_next_s)
        if age >= 0:
            then_usd = _later_usd(costs, now, SPOT, now.zone, age, then_s)
        else:
            then_usd = _with_ages(SPOT, now.zone, then_s, costs, now)
        lasts_s = min(used_s - now.until_next_s, costs.lasts_s[now.zone])
        cost += _at_price(then_usd, spot_usd, task.spot_usd[now.zone], lasts_s)
    return cost


@inner
def _at_price(later_usd: float, spot_usd: float, expected_usd: float, lasts_s: float) -> float:
    """A cost from the next decision on, USD, if a zone's machine costs what it does now, not what was expected.

    The table may not have planned to hold the machine for as long as it lasts, so that it saves less than that. As
    the least cost over all plans, it is concave in a price and never negative: at a share of the price it is at
    least that share.
    """
    changed_usd = later_usd + (spot_usd - expected_usd) * lasts_s / 3600.0
    if spot_usd < expected_usd:
        changed_usd = max(changed_usd, later_usd * spot_usd / expected_usd)
    return changed_usd


@inner
def _is_safe(task: ZonesTask, now: ZonesNow, zone: int, overhead_s: float) -> bool:
    """Return whether a zone's spot machine may be held until the next decision without risk to the deadline.

    An on-demand start fits then, or the job ends before.
    """
    to_do_s = now.left_s - now.slack_s
    return tick_on_spot(task, zone, now.slack_s, to_do_s, overhead_s, now.until_next_s)[2]


@inner
def _overhead_s(task: ZonesTask, now: ZonesNow, zone: int) -> float:
    """Seconds of the start of a zone's machine."""
    return task.restart_s if now.fresh else float(task.start_s[task.place_of[now.zone], task.place_of[zone]])


@inner
def _with_ages(held: int, zone: int, then_s: float, costs: ZonesCosts, now: ZonesNow) -> float:
    """The expected cost from the next decision on in a zone's up spell, by what is known of its age."""
    if zone == now.watched:
        return _later_usd(costs, now, held, zone, age_bin(costs.bins_s, now.watched_s), then_s)
    mean = 0.0
    ages = costs.ages[zone, age_bin(costs.bins_s, now.since_refused_s[zone])]
    for one in range(len(ages)):
        mean += ages[one] * _later_usd(costs, now, held, zone, one, then_s)
    return mean


@inner
def _cost_of_keeping_new(other: int, costs: ZonesCosts, task: ZonesTask, now: ZonesNow) -> float:
    """The cost from here on if a zone's machine is taken and kept, USD; infinity if that may be too late."""
    overhead_s = _overhead_s(task, now, other)
    if not _is_safe(task, now, other, overhead_s):
        return np.inf
    used_s = (now.left_s - now.slack_s) / task.speed[other] + overhead_s
    cost: float = now.spot_usd[other] * min(now.until_next_s, used_s) / 3600.0
    if not now.fresh:
        cost += task.egress_usd[task.place_of[now.zone], task.place_of[other]]
    if used_s > now.until_next_s:
        then_s = slack_after(task, other, now.slack_s, overhead_s, now.until_next_s)
        then_usd = _with_ages(SPOT, other, then_s, costs, now)
        lasts_s = min(used_s - now.until_next_s, costs.lasts_s[other])
        cost += _at_price(then_usd, now.spot_usd[other], task.spot_usd[other], lasts_s)
    return cost


@inner
def _cost_of_watching(other: int, costs: ZonesCosts, task: ZonesTask, now: ZonesNow) -> float:
    """The cost from here on if a zone is watched until the next decision, USD; infinity: it is not."""
    then_s = now.slack_s - now.until_next_s
    if not task.look_s < np.inf or then_s < task.restart_s:
        return np.inf
    cost: float = now.spot_usd[other] * min(task.look_s, now.until_next_s) / 3600.0
    then_usd = _with_ages(WATCHING, other, then_s, costs, now)
    # As if it were kept from now on: a price that has changed is no reason to watch.
    used_s = (now.left_s - now.slack_s) / task.speed[other] + _overhead_s(task, now, other)
    lasts_s = now.until_next_s + max(min(used_s - now.until_next_s, costs.lasts_s[other]), 0.0)
    return cost + _at_price(then_usd, now.spot_usd[other], task.spot_usd[other], lasts_s)


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
        return now.zone if _is_safe(task, now, now.zone, 0.0) else GO_ON_DEMAND
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
        if now.since_refused_s[other] == 0.0 or not _is_safe(task, now, other, _overhead_s(task, now, other)):
            continue
        avoided = task.place_of[other] == now.fell_place
        usd = now.spot_usd[other] / task.speed[other]
        if (last and not avoided) or (avoided == last and usd < best):
            best, answer, last = usd, other, avoided
    return answer


@compiled
def greedy(task: ZonesTask, now: ZonesNow) -> int:
    """The answer of `greedy-spot`: the cheapest available spot machine; else nothing until the last safe moment,
    then on demand."""
    if now.was_safety or (now.held == ON_DEMAND and now.slack_s < 2.0 * task.restart_s):
        return GO_ON_DEMAND
    if now.held == SPOT:
        then_s = slack_after(task, now.zone, now.slack_s, 0.0, now.until_next_s)
        return now.zone if then_s >= task.restart_s else GO_ON_DEMAND
    best, answer = np.inf, WAIT if now.slack_s - now.until_next_s >= task.restart_s else GO_ON_DEMAND
    for zone in range(len(now.spot_usd)):
        then_s = slack_after(task, zone, now.slack_s, _overhead_s(task, now, zone), now.until_next_s)
        usd = now.spot_usd[zone] / task.speed[zone]
        if now.since_refused_s[zone] > 0.0 and then_s >= task.restart_s and usd < best:
            best, answer = usd, zone
    return answer
