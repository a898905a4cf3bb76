"""Runs of jobs with a deadline over recorded availability, in compiled code: in one zone, and over several.

A run goes by ticks of the record. In one zone, the record is watched: a policy knows at each tick whether a spot
machine is available in it, and since when. Over several zones, it knows only what requests have shown. What is
held is nothing, a spot machine or an on-demand machine; a start takes the restart time, paid but without work.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.base.compiled_records import (
    ALWAYS_ON_DEMAND,
    GO_ON_DEMAND,
    GREEDY,
    LONG_AGO_S,
    NOTHING,
    ON_DEMAND,
    SPOT,
    TABLE,
    WAIT,
    ZoneChoices,
    ZonesCosts,
    ZonesNow,
    ZonesTape,
    ZonesTask,
    ZoneTask,
)
from ebbtide.base.compiling import compiled, inner
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S
from ebbtide.policies.deadline.costs import DeadlineProblem, ZonesProblem
from ebbtide.policies.deadline.rules import by_table, is_only_watched, likely_age_s, next_cheapest
from ebbtide.policies.deadline.solving import age_bin, is_safe
from ebbtide.policies.deadline.solving_zones import slack_after
from ebbtide.policies.deadline.table import DeadlineTable, ZoneTable

# In place of a table, for rules that look at none.
_NO_CHOICES = ZoneChoices(np.zeros((1, 1, 1, 1, 1), dtype=np.int8), 1.0, 1.0, AGE_BINS_S)


def run_zone(
    rule: int,
    problem: DeadlineProblem,
    available: np.ndarray,
    tick_s: float,
    first: int,
    age_s: float = 0.0,
    table: DeadlineTable | None = None,
) -> tuple[float, float, int]:
    """Simulate a run in one zone.

    Args:
        rule: `ALWAYS_ON_DEMAND`, `GREEDY`, `UNIFORM_PROGRESS` or `TABLE`.
        problem: The job and its prices.
        available: Whether the zone has a spot machine in each tick; shape (ticks,).
        tick_s: Length of a tick in seconds.
        first: Index of the tick at which the run starts.
        age_s: Age of the zone's spell at that tick, seconds.
        table: The table of `deadline`, for rule `TABLE` only.

    Returns:
        Cost in USD, hours late (0: in time), number of machines started.
    """
    choices = _NO_CHOICES if table is None else table.plain
    return _run_zone(rule, available, tick_s, first, age_s, problem.task, choices)


def run_zones(
    rule: int,
    problem: ZonesProblem,
    tape: ZonesTape,
    first: int,
    ask_every_s: float = 0.0,
    table: ZoneTable | None = None,
) -> tuple[float, float, float, int, int]:
    """Simulate a run over several zones.

    Args:
        rule: The rule to run, `FAILOVER` or `TABLE`.
        problem: The job, the zones and their expected prices.
        tape: Recorded availability and prices.
        first: Index of the tick at which the run starts.
        ask_every_s: Seconds between requests to other zones while a spot machine is held.
        table: The table of `deadline`, for rule `TABLE` only.

    Returns:
        Cost in USD with egress, egress in USD, hours late (0: in time), number of machines started, number of
        requests for spot machines.
    """
    costs = _no_costs(len(problem.zones)) if table is None else table.costs
    return _run_zones(rule, tape, first, ask_every_s, problem.task, costs)


def _no_costs(zones: int) -> ZonesCosts:
    bins = len(AGE_BINS_S)
    usd, ages = np.zeros((1, 3, 1, 1, 2), dtype=np.float32), np.ones((zones, bins, bins))
    return ZonesCosts(usd, 1.0, 1.0, AGE_BINS_S, np.zeros(zones), ages, 0, 0.0)


@inner
def _ruled(rule: int, up: bool, held: int, slack_s: float, left_s: float, was_safety: bool, task: ZoneTask) -> int:
    """The choice of greedy and Uniform Progress (NSDI 2024, section 4), before it is checked for safety."""
    if rule == ALWAYS_ON_DEMAND:
        return ON_DEMAND
    if was_safety:
        return ON_DEMAND
    if rule == GREEDY:
        return SPOT if up else NOTHING
    if up and held == SPOT:
        return SPOT
    done_s = task.work_s - (left_s - slack_s)
    passed_s = task.deadline_s - left_s
    expected_s = passed_s * task.work_s / task.deadline_s
    if held == ON_DEMAND:
        # It stays on demand until it is ahead by what two restarts cost and a spot machine is available. So does
        # its authors' program, and our costs agree with its published ones; the paper's words alone would have it
        # give the machine back.
        ahead_s = (passed_s + 2.0 * task.restart_s) * task.work_s / task.deadline_s
        if done_s <= ahead_s or not up:
            return ON_DEMAND
        return SPOT
    if up:
        return SPOT
    return ON_DEMAND if done_s < expected_s else NOTHING


@inner
def _looked_up(table: ZoneChoices, up: bool, held: int, age_s: float, slack_s: float, left_s: float) -> int:
    """The choice of the table."""
    ticks = min(int(left_s / table.tick_s), table.choices.shape[0] - 1)
    step = min(int(slack_s / table.step_s), table.choices.shape[4] - 1)
    return int(table.choices[ticks, int(up), age_bin(table.bins_s, age_s), held, step])


@compiled
def _run_zone(
    rule: int, available: Any, tick_s: float, first: int, age_s: float, task: ZoneTask, table: ZoneChoices
) -> tuple[float, float, int]:
    left_s, slack_s, held, usd, starts = task.deadline_s, task.deadline_s - task.work_s, NOTHING, 0.0, 0
    was_safety = False
    tick = first
    while True:
        up = bool(available[tick])
        if not up and held == SPOT:
            held = NOTHING
        if rule == TABLE:
            choice = _looked_up(table, up, held, age_s, slack_s, left_s)
        else:
            choice = _ruled(rule, up, held, slack_s, left_s, was_safety, task)
        if choice == SPOT and not up:
            choice = NOTHING
        if not is_safe(choice, held, slack_s, left_s, tick_s, task.restart_s):
            # The last safe moment. Greedy and Uniform Progress then stay on demand to the end.
            spot_is = rule == TABLE and up and is_safe(SPOT, held, slack_s, left_s, tick_s, task.restart_s)
            choice = SPOT if spot_is else ON_DEMAND
            was_safety = not spot_is
        overhead_s = 0.0 if choice in (NOTHING, held) else task.restart_s
        starts += int(overhead_s > 0.0 or (choice != NOTHING and choice != held))
        work_left_s = left_s - slack_s
        if choice == NOTHING:
            slack_s -= tick_s
        else:
            rate = task.spot_usd if choice == SPOT else task.on_demand_usd
            used_s = min(tick_s, work_left_s + overhead_s)
            usd += rate * used_s / 3600.0
            slack_s -= overhead_s
            if work_left_s + overhead_s <= tick_s:
                late_s = max(work_left_s + overhead_s - left_s, 0.0)
                return usd, late_s / 3600.0, starts
        left_s -= tick_s
        held = choice
        tick += 1
        if tick == len(available):
            # The record has ended: on demand to the end.
            overhead_s = 0.0 if held == ON_DEMAND else task.restart_s
            work_left_s = left_s - slack_s
            usd += task.on_demand_usd * (work_left_s + overhead_s) / 3600.0
            return usd, max(work_left_s + overhead_s - left_s, 0.0) / 3600.0, starts
        age_s = age_s + tick_s if bool(available[tick]) == up else 0.0


@inner
def _request(rule: int, up: Any, now: ZonesNow, task: ZonesTask, costs: ZonesCosts) -> tuple[int, bool, int]:
    """Ask zone after zone; in `now`, those that refuse are marked.

    Returns:
        The last answer of the rule, whether that zone gave a machine, number of requests.
    """
    requests = 0
    while True:
        answer = by_table(costs, task, now) if rule == TABLE else next_cheapest(task, now)
        if answer < 0 or (now.held == SPOT and answer == now.zone):
            return answer, False, requests
        requests += 1
        if up[answer]:
            return answer, True, requests
        now.since_refused_s[answer] = 0.0


@compiled
def _run_zones(
    rule: int, tape: ZonesTape, first: int, ask_every_s: float, task: ZonesTask, costs: ZonesCosts
) -> tuple[float, float, float, int, int]:
    tick_s, restart_s = tape.tick_s, task.restart_s
    left_s, slack_s, zone, held = task.deadline_s, task.deadline_s - task.work_s, costs.home, NOTHING
    age_s, usd, egress, starts, requests = costs.away_s, 0.0, 0.0, 0, 0
    refused_s = np.full(len(tape.available), LONG_AGO_S)
    now_s, last_asked_s, fell_place, fresh, was_safety = 0.0, LONG_AGO_S, -1, True, False
    watched, watched_s = -1, 0.0
    tick = first
    while tick < tape.available.shape[1]:
        if held == SPOT and not tape.available[zone, tick]:
            held, age_s, fell_place = NOTHING, 0.0, task.place_of[zone]
            refused_s[zone] = now_s
        to_do_s = left_s - slack_s
        may_ask = now_s - last_asked_s >= ask_every_s
        since_s = now_s - refused_s
        now = ZonesNow(
            left_s,
            slack_s,
            tick_s,
            tape.spot_usd[:, tick],
            zone,
            held,
            age_s,
            since_s,
            may_ask,
            fresh,
            fell_place,
            was_safety,
            watched,
            watched_s,
        )
        answer, given, asked = _request(rule, tape.available[:, tick], now, task, costs)
        if asked > 0:
            requests += asked
            last_asked_s = now_s
            refused_s[since_s == 0.0] = now_s
        overhead_s = 0.0
        if given and rule == TABLE and is_only_watched(costs, task, now, answer):
            if answer != watched:
                watched, watched_s = answer, likely_age_s(costs.ages[answer], costs.bins_s, since_s[answer])
            usd += tape.spot_usd[answer, tick] * min(task.look_s, tick_s) / 3600.0
            held = NOTHING
            slack_s -= tick_s
        elif given:
            overhead_s = restart_s
            if not fresh:
                overhead_s = task.start_s[task.place_of[zone], task.place_of[answer]]
                moved_usd = task.egress_usd[task.place_of[zone], task.place_of[answer]]
                egress += moved_usd
                usd += moved_usd
            # The spell has begun after the zone's last refusal.
            age_s = watched_s
            if answer != watched:
                age_s = likely_age_s(costs.ages[answer], costs.bins_s, since_s[answer])
            zone, held, fresh = answer, SPOT, False
            starts += 1
        elif answer == WAIT:
            held = NOTHING
            slack_s -= tick_s
        elif answer == GO_ON_DEMAND:
            # The last safe moment of Uniform Progress, from which it stays on demand to the end.
            was_safety = rule != TABLE and slack_s - tick_s < restart_s
            if held != ON_DEMAND:
                overhead_s = restart_s
                starts += 1
            held, fresh = ON_DEMAND, False
        if held != NOTHING:
            watched = -1
            rate = tape.spot_usd[zone, tick] if held == SPOT else task.on_demand_usd
            used_s = (to_do_s / task.speed[zone] if held == SPOT else to_do_s) + overhead_s
            usd += rate * min(tick_s, used_s) / 3600.0
            if used_s <= tick_s:
                return usd, egress, max(used_s - left_s, 0.0) / 3600.0, starts, requests
            slack_s = (
                slack_after(task, zone, slack_s, overhead_s, tick_s) if held == SPOT else slack_s - overhead_s
            )
        elif answer == WAIT:
            watched = -1
        left_s -= tick_s
        now_s += tick_s
        age_s += tick_s
        watched_s += tick_s
        tick += 1
    # The record has ended: on demand to the end.
    overhead_s = 0.0 if held == ON_DEMAND else restart_s
    to_do_s = left_s - slack_s
    usd += task.on_demand_usd * (to_do_s + overhead_s) / 3600.0
    return usd, egress, max(to_do_s + overhead_s - left_s, 0.0) / 3600.0, starts, requests
