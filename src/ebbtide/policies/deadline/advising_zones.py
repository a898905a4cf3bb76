"""Compiled code of `ZonesAdvisor`: beliefs about each zone, and the choice.

The table is that of `deadline` over several zones (`solved_zones`), in which each is alike; what tells zones apart
is for how long the spell under way is expected to last, by the belief over types and ages of that zone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ebbtide.base.compiled_records import NOTHING, ON_DEMAND, SPOT, ZonesCosts, ZonesMoment, ZonesTask
from ebbtide.base.compiling import compiled, inner
from ebbtide.policies.deadline.solving import between

# Times that differ by less are the same, seconds: hours as a scheduler counts them are not exact.
_SAME_S = 1e-3

# Costs that differ by less are the same, USD.
_LEAST_USD = 1e-6

# Costs that differ by less differ by rounding only, USD.
_ROUNDING_USD = 1e-9

# What is held where a zone is only to be looked at.
LOOK = 3


@compiled
def seen_zones(beliefs: Any, seen: Any, hazards: Any, bins_s: Any, passed_s: float) -> Any:
    """Beliefs about each zone, updated by the time since the last look and by what is seen now.

    Args:
        beliefs: Weights of each type, kind and age of the current spell; shape (zones, types, kinds, bins).
        seen: 1 or 0 where a zone's state is seen, else -1; shape (zones,).
        hazards: Probability per second that a spell ends; shape (types, kinds, bins).
        bins_s: Lower ends of the bins of age, seconds.
        passed_s: Seconds since the last look.

    Returns:
        Weights that sum to 1 for each zone; the same shape.
    """
    zones, types, _, bins = beliefs.shape
    found = np.zeros_like(beliefs)
    for zone in range(zones):
        for each in range(types):
            for kind in range(2):
                for age in range(bins):
                    weight = beliefs[zone, each, kind, age]
                    ends = 1.0 - math.exp(-hazards[each, kind, age] * passed_s)
                    onward = 0.0
                    if age + 1 < bins:
                        onward = min(passed_s / (bins_s[age + 1] - bins_s[age]), 1.0)
                    stays = weight * (1.0 - ends)
                    found[zone, each, 1 - kind, 0] += weight * ends
                    found[zone, each, kind, age] += stays * (1.0 - onward)
                    found[zone, each, kind, min(age + 1, bins - 1)] += stays * onward
        if seen[zone] >= 0:
            found[zone, :, 1 - seen[zone]] = 0.0
        total = found[zone].sum()
        if total > 0.0:
            found[zone] /= total
            continue
        # What no type thinks possible tells nothing of the types: a new spell of any of them.
        for each in range(types):
            found[zone, each, max(seen[zone], 0), 0] = beliefs[zone, each].sum()
    return found


@compiled
def chosen_zone(costs: ZonesCosts, task: ZonesTask, now: ZonesMoment) -> tuple[int, int, float]:
    """The choice of least expected cost among those that keep the deadline.

    Returns:
        `NOTHING`, `SPOT`, `ON_DEMAND` or `LOOK`; the zone; and the expected cost from here on, USD. If the
        deadline cannot be kept, `ON_DEMAND` where the last machine was.
    """
    spare_s = now.left_s - now.work_s
    best, choice, at = np.inf, ON_DEMAND, now.zone
    if spare_s - now.tick_s >= task.restart_s - _SAME_S:
        best, choice = (
            _later(costs, task, NOTHING, now.zone, now.age[now.zone], spare_s - now.tick_s, now),
            NOTHING,
        )
    for kind in range(SPOT, ON_DEMAND + 1):
        for zone in range(len(task.spot_usd)):
            if kind == SPOT and now.up[zone] == 0:
                continue
            here = task.place_of[zone] == task.place_of[now.zone]
            if kind == ON_DEMAND and zone != now.zone and here:
                # It is there in each zone: judged by the spell of the zone that waiting is judged by.
                continue
            keeps = kind == now.held and zone == now.zone
            start_s = now.starting_s if keeps else task.start_s[task.place_of[now.zone], task.place_of[zone]]
            then_s, needed_s = spare_s - start_s, now.work_s + start_s
            at_last = needed_s <= now.tick_s + _SAME_S
            sure = kind == ON_DEMAND or (at_last and now.unseen_s == 0.0)
            if then_s < (0.0 if sure else task.restart_s + now.unseen_s) - _SAME_S:
                continue
            rate = task.spot_usd[zone] if kind == SPOT else task.on_demand_usd
            usd = rate * (now.tick_s if now.whole_ticks else min(now.tick_s, needed_s)) / 3600.0
            if not keeps:
                usd += task.egress_usd[task.place_of[now.zone], task.place_of[zone]]
            if not at_last:
                usd += _later(costs, task, kind, zone, now.age[zone], then_s, now)
            unknown = kind == SPOT and now.up[zone] < 0
            # Of two that cost the same, what is held is kept, and no zone is looked at.
            if usd < best + (_LEAST_USD if keeps else -_LEAST_USD if unknown else -_ROUNDING_USD):
                best, choice, at = usd, (LOOK if unknown else kind), zone
    return choice, at, best


@inner
def _later(
    costs: ZonesCosts, task: ZonesTask, held: int, zone: int, age: float, slack_s: float, now: ZonesMoment
) -> float:
    """Expected cost from the next question on, USD, interpolated between ticks, ages and steps of slack."""
    last = len(costs.usd) - 1
    # With more slack than at the start, as where saved work was resumed: as if the deadline came sooner.
    to_do_s = now.left_s - now.tick_s - slack_s
    excess_s = slack_s - (costs.usd.shape[4] - 2) * costs.step_s
    sooner_s = math.ceil(max(excess_s - _SAME_S, 0.0) / costs.tick_s) * costs.tick_s
    slack_s -= sooner_s
    left = min(max((now.left_s - now.tick_s - sooner_s) / costs.tick_s, 0.0), float(last))
    low = min(int(left), last)
    high, share = min(low + 1, last), left - low
    young = min(int(age), costs.usd.shape[3] - 1)
    old, older = min(young + 1, costs.usd.shape[3] - 1), age - young
    step = slack_s / costs.step_s
    found = 0.0
    for tick, part in ((low, 1.0 - share), (high, share)):
        for one, weight in ((young, 1.0 - older), (old, older)):
            if part * weight > 0.0:
                found += part * weight * float(between(costs.usd[tick, held, zone, one], step))
    if now.whole_ticks:
        # What is left takes whole ticks, at the least price.
        least_usd = min(task.spot_usd.min(), task.on_demand_usd) * now.tick_s / 3600.0
        found = max(found, math.ceil(to_do_s / now.tick_s - _SAME_S) * least_usd)
    return found
