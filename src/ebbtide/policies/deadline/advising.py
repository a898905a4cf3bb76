"""Compiled code of `DeadlineAdvisor`: tables of expected costs, beliefs about a zone, and choices.

The program is that of `solved_zone`, exact for a scheduler that decides and is charged by whole ticks, and solved
for several types of zones. Which type a zone is, and how old its spell is, is not known at first: a belief over
both is filtered from what is seen (a hidden Markov model), and a choice is judged by its expected cost under it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ebbtide.base.compiled_records import (
    MISSED_USD,
    NOTHING,
    ON_DEMAND,
    SPOT,
    AdvisorGrid,
    AdvisorMoment,
    AdvisorTables,
    SpellChances,
    ZoneTask,
)
from ebbtide.base.compiling import compiled, inner

# Times that differ by less are the same, seconds: hours as a scheduler counts them are not exact.
_SAME_S = 1e-3

# Weights of a belief below this are left out of means.
_UNLIKELY = 1e-7


@inner
def _step_of(grid: AdvisorGrid, slack_s: float) -> float:
    """The fractional index of a slack."""
    step = slack_s / grid.narrow_s
    last = float(grid.narrow - 1)
    return step if step <= last else last + (slack_s - last * grid.narrow_s) / grid.wide_s


@inner
def _at(row: Any, step: float) -> float:
    """Linear interpolation at a fractional index; beyond the ends, the value at the end."""
    if step <= 0.0:
        return float(row[0])
    low = int(step)
    if low >= len(row) - 1:
        return float(row[len(row) - 1])
    share = step - low
    return float((1.0 - share) * row[low] + share * row[low + 1])


@compiled
def solved_costs(grid: AdvisorGrid, task: ZoneTask, chances: SpellChances) -> Any:
    """The least expected cost from each state on, USD, for one type of zone.

    Args:
        grid: Ticks and steps of slack: of the time left beyond the work and what is left of a start.
        task: The job and its prices.
        chances: Probabilities of the zone's spells within a tick.

    Returns:
        Shape (ticks + 1, kinds, bins of age, held, steps of slack); a spot machine is held only in an up spell.
    """
    bins, steps = chances.ends.shape[1], len(grid.slack_s)
    found = np.zeros((grid.ticks + 1, 2, bins, 3, steps), dtype=np.float32)
    expected = np.zeros((2, bins, 3, steps))
    for left in range(1, grid.ticks + 1):
        _expect(expected, found[left - 1], chances)
        for kind in range(2):
            for age in range(bins):
                for held in range(3):
                    _fill(found[left, kind, age, held], expected[kind, age], kind == 1, held, left, grid, task)
    return found


@inner
def _expect(expected: Any, later: Any, chances: SpellChances) -> None:
    """Fill in the expected cost from the next tick on, by what is held after this one."""
    bins, steps = later.shape[1], later.shape[3]
    for kind in range(2):
        for age in range(bins):
            onward = min(age + 1, bins - 1)
            ends, older = chances.ends[kind, age], chances.onward[kind, age]
            for held in range(3):
                fallen = NOTHING if held == SPOT and kind == 1 else held
                for step in range(steps):
                    stays = (1.0 - older) * later[kind, age, held, step] + older * later[kind, onward, held, step]
                    gone = later[1 - kind, 0, fallen, step]
                    expected[kind, age, held, step] = (1.0 - ends) * stays + ends * gone


@inner
def _fill(into: Any, expected: Any, up: bool, held: int, left: int, grid: AdvisorGrid, task: ZoneTask) -> None:
    """Fill in the least cost of all choices that keep the deadline, at each slack."""
    tick_s, restart_s = grid.tick_s, task.restart_s
    for step in range(len(into)):
        slack_s = grid.slack_s[step]
        # Work that is done ends a run at once. Where none is left, costs are those of hardly any, for what lies
        # between two steps: in whole ticks that is a tick.
        to_do_s = max(left * tick_s - slack_s, _SAME_S)
        best = MISSED_USD
        if slack_s - tick_s >= restart_s - _SAME_S:
            best = _at(expected[NOTHING], _step_of(grid, slack_s - tick_s))
        for choice in range(SPOT, ON_DEMAND + 1):
            if choice == SPOT and not up:
                continue
            start_s = 0.0 if choice == held else restart_s
            then_s = slack_s - start_s
            at_last = to_do_s + start_s <= tick_s + _SAME_S
            if not _is_safe(choice, then_s, restart_s, at_last, 0.0):
                continue
            cost: float = _charge(choice, to_do_s + start_s, tick_s, grid.whole_ticks, task)
            if not at_last:
                cost += _at(expected[choice], _step_of(grid, then_s))
            best = min(best, cost)
        into[step] = best


@inner
def _is_safe(choice: int, then_s: float, restart_s: float, at_last: bool, unseen_s: float) -> bool:
    """Return whether a choice is sure to keep the deadline: spot may be revoked by the next question."""
    if choice == ON_DEMAND or (at_last and unseen_s == 0.0):
        return then_s >= -_SAME_S
    return then_s >= restart_s + unseen_s - _SAME_S


@inner
def _charge(choice: int, needed_s: float, tick_s: float, whole_ticks: bool, task: ZoneTask) -> float:
    """Cost of a machine until the next question, USD."""
    rate = task.spot_usd if choice == SPOT else task.on_demand_usd
    return rate * (tick_s if whole_ticks else min(tick_s, needed_s)) / 3600.0


@compiled
def first_belief(ages: Any, share_up: Any, weights: Any, up: int) -> Any:
    """Belief after the first look: the weight of each type and age of the current spell.

    Args:
        ages: Share of spell time in each bin of age; shape (types, kinds, bins of age).
        share_up: Share of time with machines available; shape (types,).
        weights: Weight of each type before anything is seen; shape (types,).
        up: Whether a machine is available: 1 or 0.

    Returns:
        Weights that sum to 1, shape (types, bins of age).
    """
    found = ages[:, up].copy()
    for kind in range(len(found)):
        found[kind] *= weights[kind] * (share_up[kind] if up == 1 else 1.0 - share_up[kind])
    return found / found.sum()


@compiled
def next_belief(tables: AdvisorTables, belief: Any, was_up: int, up: int, passed_s: float) -> Any:
    """Belief after a look `passed_s` seconds after the last one; see `first_belief`."""
    found = np.zeros_like(belief)
    types, bins = belief.shape
    for kind in range(types):
        for age in range(bins):
            ends = 1.0 - math.exp(-tables.hazards[kind, was_up, age] * passed_s)
            if up != was_up:
                found[kind, 0] += belief[kind, age] * ends
                continue
            onward = _onward(tables.bins_s, age, passed_s)
            stays = belief[kind, age] * (1.0 - ends)
            found[kind, age] += stays * (1.0 - onward)
            found[kind, min(age + 1, bins - 1)] += stays * onward
    total = found.sum()
    # What no type thinks possible tells nothing of the types: a new spell of any of them.
    if not total > 0.0:
        for kind in range(types):
            found[kind, 0] = belief[kind].sum()
        total = found.sum()
    return found / total


@inner
def _onward(bins_s: Any, age: int, passed_s: float) -> float:
    """Probability that a spell comes into its next bin of age: it leaves a bin after its width in the mean."""
    if age + 1 >= len(bins_s):
        return 0.0
    return min(float(passed_s / (bins_s[age + 1] - bins_s[age])), 1.0)


@compiled
def chosen(tables: AdvisorTables, task: ZoneTask, belief: Any, now: AdvisorMoment) -> tuple[int, Any]:
    """The choice of least expected cost under a belief, among those that keep the deadline.

    Returns:
        `NOTHING`, `SPOT` or `ON_DEMAND`, and the expected cost of each from here on, USD; infinity: it cannot be
        chosen. If the deadline cannot be kept, `ON_DEMAND`.
    """
    costs = np.full(3, np.inf)
    spare_s = now.left_s - now.work_s
    if spare_s - now.tick_s >= task.restart_s - _SAME_S:
        costs[NOTHING] = _later(tables, belief, NOTHING, spare_s - now.tick_s, now)
    for choice in range(SPOT, ON_DEMAND + 1):
        if choice == SPOT and now.up == 0:
            continue
        start_s = now.starting_s if choice == now.held else task.restart_s
        then_s, needed_s = spare_s - start_s, now.work_s + start_s
        at_last = needed_s <= now.tick_s + _SAME_S
        if _is_safe(choice, then_s, task.restart_s, at_last, now.unseen_s):
            costs[choice] = _charge(choice, needed_s, now.tick_s, tables.grid.whole_ticks, task)
            if not at_last:
                costs[choice] += _later(tables, belief, choice, then_s, now)
    best = int(np.argmin(costs))
    return (best if costs[best] < np.inf else ON_DEMAND), costs


@inner
def _later(tables: AdvisorTables, belief: Any, choice: int, slack_s: float, now: AdvisorMoment) -> float:
    """Expected cost from the next question on, USD, if a choice leaves some slack."""
    types, bins = belief.shape
    # With more slack than at the start, as where saved work was resumed: as if the deadline came sooner.
    tick_s, excess_s = tables.grid.tick_s, slack_s - tables.grid.slack_s[-1]
    sooner_s = math.ceil(max(excess_s - _SAME_S, 0.0) / tick_s) * tick_s
    step = _step_of(tables.grid, slack_s - sooner_s)
    left = max((now.left_s - now.tick_s - sooner_s) / tick_s, 0.0)
    low = min(int(left + _SAME_S), tables.grid.ticks)
    high, share = min(low + 1, tables.grid.ticks), max(left - low, 0.0)
    fallen = NOTHING if choice == SPOT else choice
    found = 0.0
    for kind in range(types):
        usd = tables.usd[kind]
        for age in range(bins):
            weight = belief[kind, age]
            if weight < _UNLIKELY:
                continue
            ends = 1.0 - math.exp(-tables.hazards[kind, now.up, age] * now.tick_s)
            onward, older = _onward(tables.bins_s, age, now.tick_s), min(age + 1, bins - 1)
            for at, part in ((low, 1.0 - share), (high, share)):
                if part < _SAME_S:
                    continue
                stays = (1.0 - onward) * _at(usd[at, now.up, age, choice], step)
                stays += onward * _at(usd[at, now.up, older, choice], step)
                gone = _at(usd[at, 1 - now.up, 0, fallen], step)
                found += weight * part * ((1.0 - ends) * stays + ends * gone)
    return found
