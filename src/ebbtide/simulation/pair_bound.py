"""The least cost of a job with a deadline in two zones without foresight: an exact program, in compiled code.

`solved_zones`, behind `deadline` and `ZonesAdvisor`, tracks one zone at a time, since the states of several at
once grow exponentially with their number. For two zones they still fit. This program knows how the spells of both
zones end at every age, and sees both in each tick, but not what comes: no policy can expect a lower cost without
knowing more than ages, if the zones are independent. What the others cost more is what their tables leave out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebbtide._compiled_records import MISSED_USD, PairProgram, SlackGrid
from ebbtide._compiling import compiled, inner
from ebbtide._utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.spells.fitting import AGE_BINS_S, DOWN, UP, SpellModel, onward_in
from ebbtide.market.price_series import Floats
from ebbtide.policies.deadline.problem import ZonesProblem
from ebbtide.policies.deadline.solving import between
from ebbtide.simulation.advised_runs import AdvisedRun

# What is held: nothing, the spot machine of the first or of the second zone, or an on-demand machine.
_NOTHING, _FIRST, _SECOND, _ON_DEMAND = range(4)

# Times that differ by less are the same, seconds.
_SAME_S = 1e-3

# Weights of a belief, and of a pair of states, below these are left out of means.
_UNLIKELY, _UNLIKELY_PAIR = 1e-6, 1e-7

# A machine that is held is kept where another costs no less than this below it, USD.
_LEAST_USD = 1e-6


@dataclass(frozen=True)
class PairTable:
    """The least expected cost from every state on.

    Attributes:
        problem: The job and its two zones.
        models: How the spells of each zone last.
        usd: Expected cost, USD, charged by whole ticks; shape (ticks + 1, states of the first zone, states of the
            second, held, steps of slack). A state is a bin of age of a down spell, then of an up spell.
        tick_s: Length of the table's ticks and width of its steps of slack, seconds.
    """

    problem: ZonesProblem
    models: tuple[SpellModel, SpellModel]
    usd: np.ndarray
    tick_s: float

    def at_start(self, states: tuple[int, int]) -> float:
        """Expected cost of a run that begins with both zones in these states, USD."""
        row = self.usd[-1, states[0], states[1], _NOTHING]
        return float(np.interp(self.problem.slack_s / self.tick_s, np.arange(len(row)), row))


def solve_pair(problem: ZonesProblem, models: Sequence[SpellModel], tick_s: float = 600.0) -> PairTable:
    """Solve for the costs of a job in two zones of one place.

    Args:
        problem: The job and its zones.
        models: How the spells of each zone last; the time of day is left out.
        tick_s: Length of the table's ticks, seconds.

    Raises:
        InputError: There are not two zones, or they are in two places.
    """
    if len(problem.zones) != 2 or len(models) != 2:
        raise InputError(f"the exact program is for two zones, not {len(problem.zones)}")
    if len(set(problem.place_of)) > 1:
        raise InputError(f"{' and '.join(problem.zones)} are in two places; the exact program is for one")
    grid = SlackGrid(
        math.ceil(problem.deadline_h * HOUR_S / tick_s - 1e-9),
        tick_s,
        math.ceil(problem.slack_s / tick_s - 1e-9) + 2,
        tick_s,
    )
    program = PairProgram(grid, problem.task, _ends(models, tick_s), onward_in(tick_s))
    return PairTable(problem, (models[0], models[1]), _solved(program), tick_s)


def run_pair(table: PairTable, available: np.ndarray, tick_s: float, first: int) -> AdvisedRun:
    """One run of who knows the table, over what was recorded.

    For how long the zones had been up or down at its start is not known; it is believed to be as usual.

    Args:
        table: The solved table.
        available: Whether each zone has a spot machine, tick by tick of the record; shape (2, ticks).
        tick_s: Length of the record's ticks, seconds; decisions and charges come in these.
        first: Index of the tick at which the run starts.

    Raises:
        InputError: The record ends before the run does.
    """
    models = table.models
    prior = np.zeros((2, 2, len(AGE_BINS_S)))
    for zone, model in enumerate(models):
        for kind in (DOWN, UP):
            prior[zone, kind] = model.ages(kind)
    grid = SlackGrid(len(table.usd) - 1, table.tick_s, table.usd.shape[-1], table.tick_s)
    program = PairProgram(grid, table.problem.task, _ends(models, tick_s), onward_in(tick_s))
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


@inner
def _fallen(held: int, zone: int, kind: int) -> int:
    """What is held after a spell of a zone has ended."""
    return _NOTHING if kind == 1 and held == _FIRST + zone else held


@compiled
def _solved(program: PairProgram) -> Any:
    """The least expected cost from each state on, USD; see `PairTable`."""
    grid, ends, onward = program.grid, program.ends, program.onward
    bins, steps, states = len(onward), grid.steps, 2 * len(onward)
    found = np.zeros((grid.ticks + 1, states, states, 4, steps), dtype=np.float32)
    half = np.zeros((states, states, 4, steps), dtype=np.float32)
    expected = np.zeros_like(half)
    for left in range(1, grid.ticks + 1):
        # A tick passes in the second zone, then in the first: they are independent.
        _pass_in_second(half, found[left - 1], ends[1], onward)
        _pass_in_first(expected, half, ends[0], onward)
        for one in range(states):
            for other in range(states):
                for held in range(4):
                    into = found[left, one, other, held]
                    _fill(into, expected[one, other], one >= bins, other >= bins, held, left, program)
    return found


@inner
def _pass_in_second(into: Any, later: Any, ends: Any, onward: Any) -> None:
    """Fill in expected costs before what happens in the second zone within a tick."""
    bins = len(onward)
    for one in range(len(later)):
        for other in range(2 * bins):
            kind, age = other // bins, other % bins
            then, fresh = kind * bins + min(age + 1, bins - 1), (1 - kind) * bins
            for held in range(4):
                fallen = _fallen(held, 1, kind)
                rows = later[one, other, held], later[one, then, held], later[one, fresh, fallen]
                _mix(into[one, other, held], rows, ends[kind, age], onward[age])


@inner
def _pass_in_first(into: Any, later: Any, ends: Any, onward: Any) -> None:
    """Fill in expected costs before what happens in the first zone within a tick."""
    bins = len(onward)
    for one in range(2 * bins):
        kind, age = one // bins, one % bins
        then, fresh = kind * bins + min(age + 1, bins - 1), (1 - kind) * bins
        for other in range(later.shape[1]):
            for held in range(4):
                rows = (
                    later[one, other, held],
                    later[then, other, held],
                    later[fresh, other, _fallen(held, 0, kind)],
                )
                _mix(into[one, other, held], rows, ends[kind, age], onward[age])


@inner
def _mix(into: Any, rows: Any, ends: float, onward: float) -> None:
    """Fill in the mean of the costs where a spell goes on, in its bin of age or the next, and where it ends."""
    same, older, ended = rows
    for step in range(len(into)):
        stays = (1.0 - onward) * same[step] + onward * older[step]
        into[step] = (1.0 - ends) * stays + ends * ended[step]


@inner
def _fill(
    into: Any, expected: Any, first_up: bool, second_up: bool, held: int, left: int, program: PairProgram
) -> None:
    """Fill in the least cost of all choices that keep the deadline, USD, at each slack."""
    grid, task = program.grid, program.task
    tick_s, step_s, restart_s = grid.tick_s, grid.step_s, task.restart_s
    for step in range(len(into)):
        slack_s = step * step_s
        to_do_s = left * tick_s - slack_s
        if to_do_s <= _SAME_S:
            into[step] = 0.0
            continue
        best: float = MISSED_USD
        if slack_s - tick_s >= restart_s - _SAME_S:
            best = between(expected[_NOTHING], (slack_s - tick_s) / step_s)
        for choice in range(_FIRST, _ON_DEMAND + 1):
            if (choice == _FIRST and not first_up) or (choice == _SECOND and not second_up):
                continue
            start_s = 0.0 if choice == held else restart_s
            then_s = slack_s - start_s
            at_last = to_do_s + start_s <= tick_s + _SAME_S
            if then_s < _reserve_s(choice, at_last, restart_s) - _SAME_S:
                continue
            usd = task.on_demand_usd if choice == _ON_DEMAND else task.spot_usd[choice - _FIRST]
            cost = usd * tick_s / 3600.0
            if not at_last:
                cost += between(expected[choice], then_s / step_s)
            best = min(best, cost)
        into[step] = best


@inner
def _reserve_s(choice: int, at_last: bool, restart_s: float) -> float:
    """Slack that is to be left after a start, seconds: a spot machine may be gone in the next tick."""
    return 0.0 if choice == _ON_DEMAND or at_last else restart_s


@compiled
def _run(
    usd: Any, program: PairProgram, prior: Any, available: Any, tick_s: float, first: int
) -> tuple[float, int, int]:
    """Cost in USD, ticks that it took (-1: the record ends before), and machines started."""
    task = program.task
    usable_s = np.floor(task.deadline_s / tick_s + 1e-9) * tick_s
    beliefs = np.zeros_like(prior)
    rates = np.array([0.0, task.spot_usd[0], task.spot_usd[1], task.on_demand_usd])
    left_s, starting_s, spent_usd, held, started, ticks = task.work_s, 0.0, 0.0, _NOTHING, 0, 0
    while left_s > 1e-6:
        if first + ticks >= available.shape[1]:
            return spent_usd, -1, started
        up = available[:, first + ticks]
        for zone in range(2):
            _see(beliefs[zone], prior[zone], program.ends[zone], program.onward, up[zone], ticks == 0)
            if held == _FIRST + zone and not up[zone]:
                held, starting_s = _NOTHING, 0.0
        rest_s = usable_s - ticks * tick_s
        spare_s = rest_s - left_s
        best, choice = np.inf, _ON_DEMAND
        if spare_s - tick_s >= task.restart_s - _SAME_S:
            best, choice = _later(usd, program, beliefs, _NOTHING, spare_s - tick_s, rest_s - tick_s), _NOTHING
        for one in range(_FIRST, _ON_DEMAND + 1):
            if one < _ON_DEMAND and not up[one - _FIRST]:
                continue
            start_s = starting_s if one == held else task.restart_s
            at_last = left_s + start_s <= tick_s + _SAME_S
            if spare_s - start_s < _reserve_s(one, at_last, task.restart_s) - _SAME_S:
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
def _later(usd: Any, program: PairProgram, beliefs: Any, held: int, slack_s: float, left_s: float) -> float:
    """Expected cost from the next tick on, USD, interpolated between the table's ticks and steps of slack."""
    ends, onward, bins = program.ends, program.onward, len(program.onward)
    place = max(left_s / program.grid.tick_s, 0.0)
    low = min(int(place), len(usd) - 1)
    high, share = min(low + 1, len(usd) - 1), place - low
    step = slack_s / program.grid.step_s
    # Weights of each zone's states a tick later, apart for spells that went on and that ended.
    then = np.zeros((2, 2, 2 * bins))
    for zone in range(2):
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
    for ended in range(2):
        for other_ended in range(2):
            fallen = held
            if (held == _FIRST and ended == 1) or (held == _SECOND and other_ended == 1):
                fallen = _NOTHING
            for one in range(2 * bins):
                if then[0, ended, one] < _UNLIKELY:
                    continue
                for other in range(2 * bins):
                    weight = then[0, ended, one] * then[1, other_ended, other]
                    if weight > _UNLIKELY_PAIR:
                        at_low = between(usd[low, one, other, fallen], step)
                        at_high = between(usd[high, one, other, fallen], step)
                        found += weight * ((1.0 - share) * at_low + share * at_high)
    return found
