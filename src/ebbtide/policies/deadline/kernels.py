"""One zone whose state is shown, in compiled code: the rules of policies, one run, and the table's program.

A run goes by ticks of the record. At each tick a policy knows whether a spot machine can be had in it, and since
when that has been so. What it holds is nothing, spot or on-demand; to change to a machine takes the restart time,
paid but without work. All that a rule looks at is the time left, the slack (time left beyond the work left), what
it holds, and the market.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide._compiling import compiled, inner
from ebbtide.policies.deadline.grid import age_bin, between

# What is held, and what is chosen.
NOTHING, SPOT, ON_DEMAND = 0, 1, 2

# Rules, as numbers.
ALWAYS_ON_DEMAND, GREEDY, UNIFORM_PROGRESS, TABLE = 0, 1, 2, 3

# More than any run costs: a deadline that would be missed.
_NEVER = 1e9


@inner
def after_choice(choice: int, held: int, slack_s: float, tick_s: float, restart_s: float) -> float:
    """The slack at the tick's end."""
    if choice == NOTHING:
        return slack_s - tick_s
    return slack_s if choice == held else slack_s - restart_s


@inner
def is_safe(choice: int, held: int, slack_s: float, left_s: float, tick_s: float, restart_s: float) -> bool:
    """Whether the deadline is sure to be kept: an on-demand start fits behind this tick, or the job ends in it."""
    then_s = after_choice(choice, held, slack_s, tick_s, restart_s)
    if choice == ON_DEMAND:
        return then_s >= 0.0 or held == ON_DEMAND
    ends = choice == SPOT and then_s >= left_s - tick_s
    return then_s >= restart_s or (ends and then_s >= 0.0)


@inner
def ruled(
    rule: int,
    up: bool,
    held: int,
    slack_s: float,
    left_s: float,
    restart_s: float,
    work_s: float,
    deadline_s: float,
    was_safety: bool,
) -> int:
    """What greedy and Uniform Progress choose (NSDI 2024, section 4); the guard comes after."""
    if rule == ALWAYS_ON_DEMAND:
        return ON_DEMAND
    if was_safety:
        return ON_DEMAND
    if rule == GREEDY:
        return SPOT if up else NOTHING
    if up and held == SPOT:
        return SPOT
    done_s = work_s - (left_s - slack_s)
    passed_s = deadline_s - left_s
    expected_s = passed_s * work_s / deadline_s
    if held == ON_DEMAND:
        # On until it is ahead by what two restarts cost, and a spot machine is to be had: so its authors' program
        # has it, whose published cost ours comes to; by the paper's words alone it would give the machine back.
        ahead_s = (passed_s + 2.0 * restart_s) * work_s / deadline_s
        if done_s <= ahead_s or not up:
            return ON_DEMAND
        return SPOT
    if up:
        return SPOT
    return ON_DEMAND if done_s < expected_s else NOTHING


@compiled
def run_once(
    rule: int,
    available: Any,
    first: int,
    age_s: float,
    tick_s: float,
    work_s: float,
    deadline_s: float,
    restart_s: float,
    spot_usd: float,
    on_demand_usd: float,
    table: Any,
    table_tick_s: float,
    slack_step_s: float,
    bins_s: Any,
) -> tuple[float, float, int]:
    """One run from one start.

    Args:
        rule: Whose.
        available: Of the record, a tick each.
        first: The tick it starts at.
        age_s: Of the spell that is under way then, at the tick's start.
        tick_s: Of the record.
        work_s, deadline_s, restart_s: The job's.
        spot_usd, on_demand_usd: An hour's.
        table: Choices by ticks left, kind, bin of age, held and slack, for `TABLE`; else of any shape.
        table_tick_s, slack_step_s: Its steps.
        bins_s: Its bins of age.

    Returns:
        USD, hours late (0: in time), starts of machines.
    """
    left_s, slack_s, held, usd, starts = deadline_s, deadline_s - work_s, NOTHING, 0.0, 0
    was_safety = False
    tick = first
    while True:
        up = bool(available[tick])
        if not up and held == SPOT:
            held = NOTHING
        if rule == TABLE:
            ticks = min(int(left_s / table_tick_s), table.shape[0] - 1)
            step = min(int(slack_s / slack_step_s), table.shape[4] - 1)
            choice = int(table[ticks, int(up), age_bin(bins_s, age_s), held, step])
        else:
            choice = ruled(rule, up, held, slack_s, left_s, restart_s, work_s, deadline_s, was_safety)
        if choice == SPOT and not up:
            choice = NOTHING
        if not is_safe(choice, held, slack_s, left_s, tick_s, restart_s):
            # The last safe moment. Greedy and Uniform Progress then stay on demand to the end.
            spot_is = rule == TABLE and up and is_safe(SPOT, held, slack_s, left_s, tick_s, restart_s)
            choice = SPOT if spot_is else ON_DEMAND
            was_safety = not spot_is
        overhead_s = 0.0 if choice in (NOTHING, held) else restart_s
        starts += int(overhead_s > 0.0 or (choice != NOTHING and choice != held))
        work_left_s = left_s - slack_s
        if choice == NOTHING:
            slack_s -= tick_s
        else:
            rate = spot_usd if choice == SPOT else on_demand_usd
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
            # The record is over: on-demand to the end.
            overhead_s = 0.0 if held == ON_DEMAND else restart_s
            work_left_s = left_s - slack_s
            usd += on_demand_usd * (work_left_s + overhead_s) / 3600.0
            return usd, max(work_left_s + overhead_s - left_s, 0.0) / 3600.0, starts
        age_s = age_s + tick_s if bool(available[tick]) == up else 0.0


@compiled
def solved(
    ticks: int,
    tick_s: float,
    steps: int,
    slack_step_s: float,
    restart_s: float,
    spot_usd: float,
    on_demand_usd: float,
    ends: Any,
    ages: Any,
) -> tuple[Any, Any]:
    """The choices of least expected cost, and what they cost from a deadline away.

    Args:
        ticks: To the deadline.
        tick_s: Of one.
        steps, slack_step_s: Of slack: how many, and their width.
        restart_s: Of a machine.
        spot_usd, on_demand_usd: An hour's.
        ends: The probability that a spell ends within a tick, by kind and bin of age.
        ages: The probability that it comes into the next bin, if it does not end.

    Returns:
        Choices by ticks left, kind, bin, held and slack; costs at the deadline's distance, the same but for ticks.
    """
    bins = ends.shape[1]
    choices = np.zeros((ticks + 1, 2, bins, 3, steps), dtype=np.int8)
    later = np.zeros((2, bins, 3, steps))
    for kind in range(2):
        for place in range(bins):
            for held in range(3):
                later[kind, place, held, :] = 0.0
    now = np.empty_like(later)
    mixed = np.empty((2, bins, 3, steps))
    for left in range(1, ticks + 1):
        left_s = left * tick_s
        # What is to be expected at the next tick, by what is held after this one.
        for kind in range(2):
            for place in range(bins):
                onward = min(place + 1, bins - 1)
                for held in range(3):
                    # A spot machine goes with its spell.
                    fallen = NOTHING if held == SPOT and kind == 1 else held
                    for step in range(steps):
                        stays = (1.0 - ages[kind, place]) * later[kind, place, held, step] + ages[
                            kind, place
                        ] * later[kind, onward, held, step]
                        mixed[kind, place, held, step] = (1.0 - ends[kind, place]) * stays + ends[
                            kind, place
                        ] * later[1 - kind, 0, fallen, step]
        for kind in range(2):
            for place in range(bins):
                for held in range(3):
                    for step in range(steps):
                        slack_s = step * slack_step_s
                        work_s = left_s - slack_s
                        if work_s <= 0.0:
                            now[kind, place, held, step] = 0.0
                            choices[left, kind, place, held, step] = NOTHING
                            continue
                        best, chosen = _NEVER, ON_DEMAND
                        for choice in range(3):
                            if choice == SPOT and kind == 0:
                                continue
                            if not is_safe(choice, held, slack_s, left_s, tick_s, restart_s):
                                continue
                            cost = 0.0
                            if choice != NOTHING:
                                overhead_s = 0.0 if choice == held else restart_s
                                rate = spot_usd if choice == SPOT else on_demand_usd
                                cost = rate * min(tick_s, work_s + overhead_s) / 3600.0
                                if work_s + overhead_s <= tick_s:
                                    if cost < best:
                                        best, chosen = cost, choice
                                    continue
                            then_s = after_choice(choice, held, slack_s, tick_s, restart_s)
                            cost += between(mixed[kind, place, choice], max(then_s, 0.0) / slack_step_s)
                            if cost < best:
                                best, chosen = cost, choice
                        now[kind, place, held, step] = best
                        choices[left, kind, place, held, step] = chosen
        later, now = now, later
    return choices, later
