"""The backward induction behind `deadline` in one zone that is watched, in compiled code.

It goes back from the deadline tick by tick. A state is the time left, the slack (time left beyond the work left),
what is held, and the age of the zone's spell (the time for which it has been up or down).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.base.compiled_records import (
    MISSED_USD,
    NOTHING,
    ON_DEMAND,
    SPOT,
    SlackGrid,
    SpellChances,
    ZoneTask,
)
from ebbtide.base.compiling import compiled, inner


@inner
def age_bin(bins_s: Any, age_s: float) -> int:
    """The index of the bin of an age, from the lower ends of all bins in seconds."""
    place = 0
    while place + 1 < len(bins_s) and bins_s[place + 1] <= age_s:
        place += 1
    return place


@inner
def between(values: Any, place: float) -> Any:
    """Linear interpolation at a fractional index; beyond the ends, the value at the end."""
    if place <= 0.0:
        return values[0]
    low = int(place)
    if low >= len(values) - 1:
        return values[len(values) - 1]
    share = place - low
    return (1.0 - share) * values[low] + share * values[low + 1]


@inner
def after_choice(choice: int, held: int, slack_s: float, tick_s: float, restart_s: float) -> float:
    """The slack at the end of a tick, in seconds."""
    if choice == NOTHING:
        return slack_s - tick_s
    return slack_s if choice == held else slack_s - restart_s


@inner
def is_safe(choice: int, held: int, slack_s: float, left_s: float, tick_s: float, restart_s: float) -> bool:
    """Return whether a choice is sure to keep the deadline: on-demand fits after the tick, or the job ends."""
    then_s = after_choice(choice, held, slack_s, tick_s, restart_s)
    if choice == ON_DEMAND:
        return then_s >= 0.0 or held == ON_DEMAND
    ends = choice == SPOT and then_s >= left_s - tick_s
    return then_s >= restart_s or (ends and then_s >= 0.0)


@compiled
def solved_zone(grid: SlackGrid, task: ZoneTask, chances: SpellChances) -> tuple[Any, Any]:
    """The choices of least expected cost in one zone, and that cost.

    Args:
        grid: Ticks and steps of slack.
        task: The job and its prices.
        chances: Probabilities of the zone's spells.

    Returns:
        Choices, shape (ticks + 1, kinds, bins of age, held, steps); and the expected cost at the start in USD,
        shape (kinds, bins of age, held, steps).
    """
    bins, steps = chances.ends.shape[1], grid.steps
    choices = np.zeros((grid.ticks + 1, 2, bins, 3, steps), dtype=np.int8)
    later = np.zeros((2, bins, 3, steps))
    now, expected = np.empty_like(later), np.empty_like(later)
    for left in range(1, grid.ticks + 1):
        left_s = left * grid.tick_s
        _expect(expected, later, chances)
        for kind in range(2):
            for age in range(bins):
                for held in range(3):
                    into = now[kind, age, held], choices[left, kind, age, held]
                    _choose(into, expected[kind, age], kind == 1, held, left_s, grid, task)
        later, now = now, later
    return choices, later


@inner
def _expect(expected: Any, later: Any, chances: SpellChances) -> None:
    """Fill in the expected cost from the next tick on, by what is held after this one."""
    bins, steps = later.shape[1], later.shape[3]
    ends_of, onward_of = chances.ends, chances.onward
    for kind in range(2):
        for age in range(bins):
            onward = min(age + 1, bins - 1)
            ends, older = ends_of[kind, age], onward_of[kind, age]
            for held in range(3):
                # A spot machine is revoked when its spell ends.
                fallen = NOTHING if held == SPOT and kind == 1 else held
                for step in range(steps):
                    stays = (1.0 - older) * later[kind, age, held, step] + older * later[kind, onward, held, step]
                    expected[kind, age, held, step] = (1.0 - ends) * stays + ends * later[
                        1 - kind, 0, fallen, step
                    ]


@inner
def _choose(
    into: tuple[Any, Any], expected: Any, up: bool, held: int, left_s: float, grid: SlackGrid, task: ZoneTask
) -> None:
    """Fill in the least cost of all safe choices at each slack, USD, and the choice."""
    costs, choices = into
    tick_s, restart_s = grid.tick_s, task.restart_s
    for step in range(len(costs)):
        slack_s = step * grid.step_s
        work_s = left_s - slack_s
        if work_s <= 0.0:
            costs[step], choices[step] = 0.0, NOTHING
            continue
        best, chosen = MISSED_USD, ON_DEMAND
        for choice in range(3):
            if choice == SPOT and not up:
                continue
            if not is_safe(choice, held, slack_s, left_s, tick_s, restart_s):
                continue
            cost = 0.0
            if choice != NOTHING:
                overhead_s = 0.0 if choice == held else restart_s
                rate = task.spot_usd if choice == SPOT else task.on_demand_usd
                cost = rate * min(tick_s, work_s + overhead_s) / 3600.0
                if work_s + overhead_s <= tick_s:
                    if cost < best:
                        best, chosen = cost, choice
                    continue
            then_s = after_choice(choice, held, slack_s, tick_s, restart_s)
            cost += between(expected[choice], max(then_s, 0.0) / grid.step_s)
            if cost < best:
                best, chosen = cost, choice
        costs[step], choices[step] = best, chosen
