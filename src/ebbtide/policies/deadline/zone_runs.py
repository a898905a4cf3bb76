"""Runs over several zones in compiled code: who is asked in which order, and what is done when all refuse.

Whether a zone has a machine is known only by asking for one. A machine that is given is taken; a refusal costs
nothing. So a policy says whom it would ask next, or, when it would ask nobody else, what it does in this tick.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide._compiling import compiled
from ebbtide.policies.deadline.grid import age_bin, between
from ebbtide.policies.deadline.zone_solving import NEVER, NOTHING, ON_DEMAND, SPOT

# Answers beside the number of a zone, which means: ask it (or, if it is held, keep it).
WAIT, GO_ON_DEMAND = -1, -2

# Rules, as numbers.
FAILOVER, TABLE = 0, 1

# When a zone never refused.
LONG_AGO_S = -1e12


@compiled
def by_table(
    table: Any,
    tick_s: float,
    table_tick_s: float,
    step_s: float,
    bins_s: Any,
    restart_s: float,
    start_s: Any,
    on_demand_usd: float,
    spot_usd: Any,
    foreseen_usd: Any,
    lasts_s: Any,
    place_of: Any,
    egress_usd: Any,
    ages: Any,
    left_s: float,
    slack_s: float,
    zone: int,
    held: int,
    age_s: float,
    since_refused_s: Any,
    may_ask: bool,
    fresh: bool,
) -> int:
    """What `deadline` answers now.

    Args:
        table: As `solved_zones` returns it.
        tick_s: Until it decides again.
        table_tick_s, step_s, bins_s: The table's ticks, steps of slack and bins of age.
        restart_s, start_s, on_demand_usd, place_of, egress_usd, ages: As there.
        spot_usd, foreseen_usd: Prices of an hour now, and those the table was solved for; shape (zones,).
        lasts_s: How long a machine of each zone lasts in the mean.
        left_s, slack_s: To the deadline, and beyond the work.
        zone, held, age_s: Of which zone what is held; and the age of the zone's spell.
        since_refused_s: Of each zone; 0: it has refused just now.
        may_ask: Whether other zones may be asked while a spot machine is held.
        fresh: Whether nothing has been begun: no checkpoint is to be fetched from anywhere.

    Returns:
        A zone, `WAIT` or `GO_ON_DEMAND`.
    """
    zones, bins = len(spot_usd), len(bins_s)
    to_do_s = left_s - slack_s
    later = table[min(max(int((left_s - tick_s) / table_tick_s + 0.5), 0), len(table) - 1)]
    age = age_bin(bins_s, age_s)
    best, answer = NEVER, GO_ON_DEMAND
    if slack_s - tick_s >= restart_s:
        best, answer = between(later[NOTHING, zone, age], (slack_s - tick_s) / step_s), WAIT
    overhead_s = 0.0 if held == ON_DEMAND else restart_s
    cost = on_demand_usd * min(tick_s, to_do_s + overhead_s) / 3600.0
    if to_do_s + overhead_s > tick_s:
        cost += between(later[ON_DEMAND, zone, age], (slack_s - overhead_s) / step_s)
    if cost < best:
        best, answer = cost, GO_ON_DEMAND
    if held == SPOT and (slack_s >= restart_s or to_do_s <= tick_s):
        cost = spot_usd[zone] * min(tick_s, to_do_s) / 3600.0
        if to_do_s > tick_s:
            cost += between(later[SPOT, zone, age], slack_s / step_s)
            cost += (spot_usd[zone] - foreseen_usd[zone]) * min(to_do_s - tick_s, lasts_s[zone]) / 3600.0
        if cost < best:
            best, answer = cost, zone
    if held == SPOT and not may_ask:
        return answer
    for other in range(zones):
        if (held == SPOT and other == zone) or since_refused_s[other] == 0.0:
            continue
        overhead_s = restart_s if fresh else start_s[place_of[zone], place_of[other]]
        then_s, used_s = slack_s - overhead_s, to_do_s + overhead_s
        at_last = used_s <= tick_s
        if then_s < (0.0 if at_last else restart_s):
            continue
        cost = spot_usd[other] * min(tick_s, used_s) / 3600.0
        if not fresh:
            cost += egress_usd[place_of[zone], place_of[other]]
        if not at_last:
            # Its spell is no older than the last refusal.
            whole, sum_ = 0.0, 0.0
            for one in range(bins):
                if one > 0 and bins_s[one] > since_refused_s[other]:
                    break
                share = ages[other, one] + 1e-9
                sum_ += share * between(later[SPOT, other, one], then_s / step_s)
                whole += share
            cost += sum_ / whole
            cost += (spot_usd[other] - foreseen_usd[other]) * min(used_s - tick_s, lasts_s[other]) / 3600.0
        if cost < best:
            best, answer = cost, other
    return answer


@compiled
def next_cheapest(
    spot_usd: Any,
    place_of: Any,
    tick_s: float,
    work_s: float,
    deadline_s: float,
    restart_s: float,
    start_s: Any,
    left_s: float,
    slack_s: float,
    zone: int,
    held: int,
    since_refused_s: Any,
    fell_place: int,
    was_safety: bool,
    fresh: bool,
) -> int:
    """What Uniform Progress answers that fails over to the next-cheapest zone; with one zone, Uniform Progress.

    Zones are asked by price, those of the place that took the last machine after all others (SkyPilot's eager
    failover); when all refuse, or the safety net holds, it goes by Uniform Progress (NSDI 2024, section 4).
    """
    if was_safety:
        return GO_ON_DEMAND
    if held == SPOT:
        return zone if slack_s >= restart_s or left_s - slack_s <= tick_s else GO_ON_DEMAND
    passed_s, done_s = deadline_s - left_s, work_s - (left_s - slack_s)
    wants = True
    if held == ON_DEMAND:
        wants = done_s > (passed_s + 2.0 * restart_s) * work_s / deadline_s
    if wants:
        best, answer, last = np.inf, -1, True
        for other in range(len(spot_usd)):
            overhead_s = restart_s if fresh else start_s[place_of[zone], place_of[other]]
            at_last = left_s - slack_s + overhead_s <= tick_s
            if since_refused_s[other] == 0.0 or slack_s - overhead_s < (0.0 if at_last else restart_s):
                continue
            avoided = place_of[other] == fell_place
            if (last and not avoided) or (avoided == last and spot_usd[other] < best):
                best, answer, last = spot_usd[other], other, avoided
        if answer >= 0:
            return answer
    if held == ON_DEMAND or done_s < passed_s * work_s / deadline_s or slack_s - tick_s < restart_s:
        return GO_ON_DEMAND
    return WAIT


@compiled
def run_zones(
    rule: int,
    available: Any,
    spot_usd: Any,
    first: int,
    tick_s: float,
    work_s: float,
    deadline_s: float,
    restart_s: float,
    start_s: Any,
    on_demand_usd: float,
    place_of: Any,
    egress_usd: Any,
    ask_every_s: float,
    table: Any,
    table_tick_s: float,
    step_s: float,
    bins_s: Any,
    foreseen_usd: Any,
    lasts_s: Any,
    ages: Any,
    home: int,
    away_s: float,
) -> tuple[float, float, float, int, int]:
    """One run from one start.

    Args:
        rule: Whose.
        available, spot_usd: Of the record, a row a zone and a tick each.
        first: The tick it starts at.
        ask_every_s: How often other zones are asked while a spot machine is held.
        home: The zone that stands for where it starts.
        away_s: For how long it has been down, should it refuse at once.
        Others: As in `by_table`; the table is looked at under `TABLE` alone.

    Returns:
        USD, of it egress, hours late (0: in time), starts of machines, requests made.
    """
    zones = len(available)
    left_s, slack_s, zone, held, age_s = deadline_s, deadline_s - work_s, home, NOTHING, away_s
    usd, egress, starts, asked = 0.0, 0.0, 0, 0
    refused_s = np.full(zones, LONG_AGO_S)
    now_s, last_asked_s, fell_place, fresh, was_safety = 0.0, LONG_AGO_S, -1, True, False
    tick = first
    while tick < available.shape[1]:
        if held == SPOT and not available[zone, tick]:
            held, age_s, fell_place = NOTHING, 0.0, place_of[zone]
            refused_s[zone] = now_s
        to_do_s = left_s - slack_s
        may_ask = now_s - last_asked_s >= ask_every_s
        given = -1
        while True:
            since_s = now_s - refused_s
            if rule == TABLE:
                answer = by_table(
                    table,
                    tick_s,
                    table_tick_s,
                    step_s,
                    bins_s,
                    restart_s,
                    start_s,
                    on_demand_usd,
                    spot_usd[:, tick],
                    foreseen_usd,
                    lasts_s,
                    place_of,
                    egress_usd,
                    ages,
                    left_s,
                    slack_s,
                    zone,
                    held,
                    age_s,
                    since_s,
                    may_ask,
                    fresh,
                )
            else:
                answer = next_cheapest(
                    spot_usd[:, tick],
                    place_of,
                    tick_s,
                    work_s,
                    deadline_s,
                    restart_s,
                    start_s,
                    left_s,
                    slack_s,
                    zone,
                    held,
                    since_s,
                    fell_place,
                    was_safety,
                    fresh,
                )
            if answer < 0 or (held == SPOT and answer == zone):
                break
            asked += 1
            last_asked_s = now_s
            if available[answer, tick]:
                given = answer
                break
            refused_s[answer] = now_s
        overhead_s = 0.0
        if given >= 0:
            overhead_s = restart_s
            if not fresh:
                overhead_s = start_s[place_of[zone], place_of[given]]
                egress += egress_usd[place_of[zone], place_of[given]]
                usd += egress_usd[place_of[zone], place_of[given]]
            # Between what is least and what is most possible, the age that half of such spells exceed.
            whole, below, age_s = 0.0, 0.0, 0.0
            for one in range(len(bins_s)):
                if one == 0 or bins_s[one] <= now_s - refused_s[given]:
                    whole += ages[given, one]
            for one in range(len(bins_s)):
                if below >= 0.5 * whole:
                    break
                below += ages[given, one]
                age_s = bins_s[one]
            zone, held, fresh = given, SPOT, False
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
            rate = spot_usd[zone, tick] if held == SPOT else on_demand_usd
            usd += rate * min(tick_s, to_do_s + overhead_s) / 3600.0
            slack_s -= overhead_s
            if to_do_s + overhead_s <= tick_s:
                return usd, egress, max(to_do_s + overhead_s - left_s, 0.0) / 3600.0, starts, asked
        left_s -= tick_s
        now_s += tick_s
        age_s += tick_s
        tick += 1
    # The record is over: on-demand to the end.
    overhead_s = 0.0 if held == ON_DEMAND else restart_s
    to_do_s = left_s - slack_s
    usd += on_demand_usd * (to_do_s + overhead_s) / 3600.0
    return usd, egress, max(to_do_s + overhead_s - left_s, 0.0) / 3600.0, starts, asked
