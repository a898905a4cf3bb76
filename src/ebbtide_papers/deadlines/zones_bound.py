"""The least cost of a job with a deadline in up to three zones without foresight: an exact compiled program.

`solved_zones`, behind `deadline` and `ZonesAdvisor`, tracks one zone at a time, since the states of several at
once grow exponentially with their number. For two or three zones they still fit. This program knows how the spells
of all zones end at every age, and sees all of them in each tick, but not what comes: no policy can expect a lower
cost without knowing more than ages, if the zones are independent. What others cost more is what their tables leave
out, or what it costs to see the other zones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from ebbtide.base.compiled_records import MISSED_USD, BoundProgram, SlackGrid
from ebbtide.base.compiling import compiled, inner
from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, DOWN, UP, SpellModel, onward_in
from ebbtide.market.price_series import Floats
from ebbtide.policies.deadline.costs import ZonesProblem
from ebbtide.policies.deadline.solving import between
from ebbtide_papers.deadlines.advised_runs import AdvisedRun

# The zones whose states are tracked together, at most: a table of four is twenty times that of three.
MOST_ZONES = 3

# What is held: nothing, the spot machine of a zone (its index + 1), or an on-demand machine (zones + 1).
_NOTHING, _FIRST = 0, 1

# Times that differ by less are the same, seconds.
_SAME_S = 1e-3

# Weights of a belief, and of a combination of states, below these are left out of means.
_UNLIKELY, _UNLIKELY_TOGETHER = 1e-6, 1e-7

# A machine that is held is kept where another costs no less than this below it, USD.
_LEAST_USD = 1e-6


@dataclass(frozen=True)
class BoundTable:
    """The least expected cost from every state on.

    Attributes:
        problem: The job and its zones.
        models: How the spells of each zone last.
        usd: Expected cost, USD, charged by whole ticks; shape (ticks + 1, states of all zones, held, steps of
            slack); without the ticks in between, (1, ...): that of the start. The state of a zone is a bin of age
            of a down spell, then of an up spell; the last zone's changes fastest.
        tick_s: Length of the table's ticks and width of its steps of slack, seconds.
    """

    problem: ZonesProblem
    models: tuple[SpellModel, ...]
    usd: np.ndarray
    tick_s: float

    def at_start(self, states: Sequence[int]) -> float:
        """Expected cost of a run that begins with the zones in these states, USD."""
        together = reduce(lambda joint, state: joint * 2 * len(AGE_BINS_S) + state, states, 0)
        row = self.usd[-1, together, _NOTHING]
        return float(np.interp(self.problem.slack_s / self.tick_s, np.arange(len(row)), row))

    @property
    def usual_usd(self) -> float:
        """Expected cost of a run that begins at any time, USD: no policy without foresight expects less."""
        weights = np.ones(1)
        for model in self.models:
            of_zone = [(1.0 - model.share_up) * model.ages(DOWN), model.share_up * model.ages(UP)]
            weights = np.multiply.outer(weights, np.concatenate(of_zone)).ravel()
        rows = np.asarray(weights @ self.usd[-1, :, _NOTHING], dtype=float)
        return float(np.interp(self.problem.slack_s / self.tick_s, np.arange(len(rows)), rows))


def solve_bound(
    problem: ZonesProblem,
    models: Sequence[SpellModel],
    tick_s: float = 600.0,
    *,
    only_start: bool = False,
) -> BoundTable:
    """Solve for the costs of a job in zones of one place.

    Args:
        problem: The job and its zones.
        models: How the spells of each zone last; the time of day is left out.
        tick_s: Length of the table's ticks, seconds. If work, deadline and restart are whole ticks, the costs are
            exact; else they are interpolated.
        only_start: Whether only costs at the start are kept: all those of three zones take gigabytes.

    Raises:
        InputError: There are more than three zones, or they are in two places.
    """
    if not 1 <= len(problem.zones) == len(models) <= MOST_ZONES:
        raise InputError(f"the exact program is for {MOST_ZONES} zones at most, not {len(problem.zones)}")
    if len(set(problem.place_of)) > 1:
        raise InputError(f"{', '.join(problem.zones)} are in several places; the exact program is for one")
    grid = SlackGrid(
        math.ceil(problem.deadline_h * HOUR_S / tick_s - 1e-9),
        tick_s,
        math.ceil(problem.slack_s / tick_s - 1e-9) + 2,
        tick_s,
    )
    program = BoundProgram(grid, problem.task, _ends(models, tick_s), onward_in(tick_s))
    usd = _solved(program, 2 if only_start else grid.ticks + 1)
    return BoundTable(problem, tuple(models), usd[[grid.ticks % 2]] if only_start else usd, tick_s)


def run_bound(table: BoundTable, available: np.ndarray, tick_s: float, first: int) -> AdvisedRun:
    """Simulate a run, over recorded capacity, of a scheduler that follows the solved table.

    For how long the zones had been up or down at its start is not known; it is believed to be as usual.

    Args:
        table: The solved table, with all its ticks.
        available: Whether each zone has a spot machine, tick by tick of the record; shape (zones, ticks).
        tick_s: Length of the record's ticks, seconds; decisions and charges come in these.
        first: Index of the tick at which the run starts.

    Raises:
        InputError: The record ends before the run does, or the table has costs of the start only.
    """
    models = table.models
    if len(table.usd) < 2:
        raise InputError("the table has costs of the start only; solve it with all its ticks for a run")
    prior = np.zeros((len(models), 2, len(AGE_BINS_S)))
    for zone, model in enumerate(models):
        for kind in (DOWN, UP):
            prior[zone, kind] = model.ages(kind)
    grid = SlackGrid(len(table.usd) - 1, table.tick_s, table.usd.shape[-1], table.tick_s)
    program = BoundProgram(grid, table.problem.task, _ends(models, tick_s), onward_in(tick_s))
    usd, ticks, started = _run(table.usd, program, prior, np.asarray(available), tick_s, first)
    if ticks < 0:
        raise InputError(f"the record of {available.shape[1]} ticks ends before a run from tick {first} does")
    hours = ticks * tick_s / HOUR_S
    return AdvisedRun(usd, hours, max(hours - table.problem.deadline_h, 0.0), started)


def _ends(models: Sequence[SpellModel], tick_s: float) -> Floats:
    """Probability that a spell ends within a tick; shape (zones, kinds, bins)."""
    return np.array(
        [
            [[model.ends_within(kind, float(age_s), tick_s) for age_s in AGE_BINS_S] for kind in (DOWN, UP)]
            for model in models
        ]
    )


@compiled
def _solved(program: BoundProgram, layers: int) -> Any:
    """The least expected cost from each state on, USD, of the last ticks solved; see `BoundTable`."""
    grid, ends, onward = program.grid, program.ends, program.onward
    zones, states = len(ends), 2 * len(onward)
    together = states**zones
    found = np.zeros((layers, together, zones + 2, grid.steps), dtype=np.float32)
    expected, before = np.zeros_like(found[0]), np.zeros_like(found[0])
    for left in range(1, grid.ticks + 1):
        # A tick passes in one zone after the other: they are independent.
        _pass_in(expected, found[(left - 1) % layers], 0, ends[0], onward)
        for zone in range(1, zones):
            expected, before = before, expected
            _pass_in(expected, before, zone, ends[zone], onward)
        for joint in range(together):
            for held in range(zones + 2):
                _fill(found[left % layers, joint, held], expected[joint], joint, held, left, program)
    return found


@inner
def _state(joint: int, zone: int, zones: int, states: int) -> int:
    """The state of one zone in a state of all."""
    found: int = (joint // states ** (zones - 1 - zone)) % states
    return found


@inner
def _pass_in(into: Any, later: Any, zone: int, ends: Any, onward: Any) -> None:
    """Fill in expected costs before what happens in a zone within a tick."""
    bins, zones = len(onward), later.shape[1] - 2
    stride = (2 * bins) ** (zones - 1 - zone)
    for joint in range(len(later)):
        state = _state(joint, zone, zones, 2 * bins)
        kind, age = state // bins, state % bins
        older = joint + (kind * bins + min(age + 1, bins - 1) - state) * stride
        fresh = joint + ((1 - kind) * bins - state) * stride
        for held in range(zones + 2):
            fallen = _NOTHING if kind == 1 and held == _FIRST + zone else held
            rows = later[joint, held], later[older, held], later[fresh, fallen]
            _mix(into[joint, held], rows, ends[kind, age], onward[age])


@inner
def _mix(into: Any, rows: Any, ends: float, onward: float) -> None:
    """Fill in the mean of the costs where a spell goes on, in its bin of age or the next, and where it ends."""
    same, older, ended = rows
    for step in range(len(into)):
        stays = (1.0 - onward) * same[step] + onward * older[step]
        into[step] = (1.0 - ends) * stays + ends * ended[step]


@inner
def _fill(into: Any, expected: Any, joint: int, held: int, left: int, program: BoundProgram) -> None:
    """Fill in the least cost of all choices that keep the deadline, USD, at each slack."""
    grid, task, bins = program.grid, program.task, len(program.onward)
    tick_s, step_s, restart_s = grid.tick_s, grid.step_s, task.restart_s
    zones = len(program.ends)
    for step in range(len(into)):
        slack_s = step * step_s
        to_do_s = left * tick_s - slack_s
        if to_do_s <= _SAME_S:
            into[step] = 0.0
            continue
        best: float = MISSED_USD
        if slack_s - tick_s >= restart_s - _SAME_S:
            best = between(expected[_NOTHING], (slack_s - tick_s) / step_s)
        for choice in range(_FIRST, zones + 2):
            on_demand = choice == zones + 1
            if not on_demand and _state(joint, choice - _FIRST, zones, 2 * bins) < bins:
                continue
            start_s = 0.0 if choice == held else restart_s
            then_s = slack_s - start_s
            at_last = to_do_s + start_s <= tick_s + _SAME_S
            if then_s < _reserve_s(on_demand or at_last, restart_s) - _SAME_S:
                continue
            usd = task.on_demand_usd if on_demand else task.spot_usd[choice - _FIRST]
            cost = usd * tick_s / 3600.0
            if not at_last:
                cost += between(expected[choice], then_s / step_s)
            best = min(best, cost)
        into[step] = best


@inner
def _reserve_s(is_safe: bool, restart_s: float) -> float:
    """Slack that is to be left after a start, seconds: a spot machine may be gone in the next tick."""
    return 0.0 if is_safe else restart_s


@compiled
def _run(
    usd: Any, program: BoundProgram, prior: Any, available: Any, tick_s: float, first: int
) -> tuple[float, int, int]:
    """Cost in USD, ticks that it took (-1: the record ends before), and machines started."""
    task = program.task
    usable_s = np.floor(task.deadline_s / tick_s + 1e-9) * tick_s
    beliefs = np.zeros_like(prior)
    zones = len(prior)
    rates = np.zeros(zones + 2)
    rates[_FIRST : zones + 1], rates[zones + 1] = task.spot_usd, task.on_demand_usd
    left_s, starting_s, spent_usd, held, started, ticks = task.work_s, 0.0, 0.0, _NOTHING, 0, 0
    while left_s > 1e-6:
        if first + ticks >= available.shape[1]:
            return spent_usd, -1, started
        up = available[:, first + ticks]
        for zone in range(zones):
            _see(beliefs[zone], prior[zone], program.ends[zone], program.onward, up[zone], ticks == 0)
            if held == _FIRST + zone and not up[zone]:
                held, starting_s = _NOTHING, 0.0
        rest_s = usable_s - ticks * tick_s
        spare_s = rest_s - left_s
        best, choice = np.inf, zones + 1
        if spare_s - tick_s >= task.restart_s - _SAME_S:
            best, choice = _later(usd, program, beliefs, _NOTHING, spare_s - tick_s, rest_s - tick_s), _NOTHING
        for one in range(_FIRST, zones + 2):
            if one <= zones and not up[one - _FIRST]:
                continue
            start_s = starting_s if one == held else task.restart_s
            at_last = left_s + start_s <= tick_s + _SAME_S
            if spare_s - start_s < _reserve_s(one > zones or at_last, task.restart_s) - _SAME_S:
                continue
            cost = rates[one] * tick_s / 3600.0
            if not at_last:
                cost += _later(usd, program, beliefs, one, spare_s - start_s, rest_s - tick_s)
            if cost < best + (_LEAST_USD if one == held else -_LEAST_USD):
                best, choice = cost, one
        if choice == _NOTHING:
            held, starting_s = _NOTHING, 0.0
        else:
            if choice != held:
                starting_s = task.restart_s
                started += 1
            held = choice
            spent_usd += rates[choice] * tick_s / 3600.0
            left_s -= max(tick_s - starting_s, 0.0)
            starting_s = max(starting_s - tick_s, 0.0)
        ticks += 1
    return spent_usd, ticks, started


@inner
def _see(belief: Any, prior: Any, ends: Any, onward: Any, up: bool, at_first: bool) -> None:
    """Update the weights of a zone's states by what is seen a tick later; shape (kinds, bins)."""
    kind, bins = 1 if up else 0, len(onward)
    if at_first:
        belief[kind] = prior[kind]
        return
    fresh = 0.0
    for age in range(bins):
        fresh += belief[1 - kind, age] * ends[1 - kind, age]
        belief[1 - kind, age] = 0.0
    for age in range(bins - 1, -1, -1):
        stays = belief[kind, age] * (1.0 - ends[kind, age])
        belief[kind, age] = stays * (1.0 - onward[age])
        belief[kind, min(age + 1, bins - 1)] += stays * onward[age]
    belief[kind, 0] += fresh
    total = belief.sum()
    if total > 0.0:
        belief /= total
    else:
        belief[kind, 0] = 1.0


@inner
def _later(usd: Any, program: BoundProgram, beliefs: Any, held: int, slack_s: float, left_s: float) -> float:
    """Expected cost from the next tick on, USD, interpolated between the table's ticks and steps of slack."""
    ends, onward, bins = program.ends, program.onward, len(program.onward)
    zones = len(ends)
    place = max(left_s / program.grid.tick_s, 0.0)
    low = min(int(place), len(usd) - 1)
    high, share = min(low + 1, len(usd) - 1), place - low
    step = slack_s / program.grid.step_s
    # Weights of each zone's states a tick later, apart for spells that went on and that ended.
    then = np.zeros((zones, 2, 2 * bins))
    for zone in range(zones):
        for kind in range(2):
            for age in range(bins):
                weight = beliefs[zone, kind, age]
                if weight < _UNLIKELY:
                    continue
                stays = weight * (1.0 - ends[zone, kind, age])
                then[zone, 0, kind * bins + age] += stays * (1.0 - onward[age])
                then[zone, 0, kind * bins + min(age + 1, bins - 1)] += stays * onward[age]
                then[zone, 1, (1 - kind) * bins] += weight * ends[zone, kind, age]
    found = 0.0
    # Each zone's spell has ended or not: the bits of a number.
    for ended in range(2**zones):
        is_lost = _FIRST <= held <= zones and (ended >> (held - _FIRST)) & 1
        fallen = _NOTHING if is_lost else held
        for joint in range(usd.shape[1]):
            weight = 1.0
            for zone in range(zones):
                weight *= then[zone, (ended >> zone) & 1, _state(joint, zone, zones, 2 * bins)]
                if weight <= _UNLIKELY_TOGETHER:
                    break
            if weight > _UNLIKELY_TOGETHER:
                at_low = between(usd[low, joint, fallen], step)
                at_high = between(usd[high, joint, fallen], step)
                found += weight * ((1.0 - share) * at_low + share * at_high)
    return found
