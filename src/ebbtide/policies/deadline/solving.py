"""The backward inductions behind `deadline` in compiled code: for one zone that is watched, and for several.

Both go back from the deadline tick by tick. A state is the time left, the slack (time left beyond the work left),
what is held, and the age of the zone's spell (the time for which it has been up or down).

Over several zones, only the zone that is held or was held last is tracked. A policy that asks in each tick knows
that the other zones it would take have been down for as long, so each comes up at the rate of such spells, which
falls with the age; zones it would not have taken are up as often as in the long run. So the state grows with the
number of zones, not exponentially, and keeps heavy tails.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide._compiled_records import (
    MISSED_USD,
    NOTHING,
    ON_DEMAND,
    SPOT,
    Moments,
    SlackGrid,
    SlackState,
    SpellChances,
    ZonesProgram,
    ZonesRoom,
    ZoneTask,
)
from ebbtide._compiling import compiled, inner

# Ages of an up spell that are less likely than this are left out of means.
_UNLIKELY = 1e-6


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


# One zone.


@inner
def after_choice(choice: int, held: int, slack_s: float, tick_s: float, restart_s: float) -> float:
    """The slack at the end of a tick, in seconds."""
    if choice == NOTHING:
        return slack_s - tick_s
    return slack_s if choice == held else slack_s - restart_s


@inner
def is_safe(choice: int, held: int, slack_s: float, left_s: float, tick_s: float, restart_s: float) -> bool:
    """Whether the deadline is sure to be met: an on-demand start fits after this tick, or the job ends in it."""
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


# Several zones.


@compiled
def solved_zones(program: ZonesProgram) -> Any:
    """The cost of a run from each state on, at the start of a tick and before any zone is asked.

    Returns:
        Expected cost plus gamma times its standard deviation, USD; shape (ticks + 1, held, zones, bins of age,
        steps of slack).
    """
    grid, zones, bins = program.grid, len(program.task.spot_usd), len(program.chances.onward)
    found = np.zeros((grid.ticks + 1, 3, zones, bins, grid.steps), dtype=np.float32)
    shape = (3, zones, bins, grid.steps)
    now, later = Moments(np.zeros(shape), np.zeros(shape)), Moments(np.zeros(shape), np.zeros(shape))
    room = _room(len(program.task.egress_usd), zones, bins)
    for left in range(1, grid.ticks + 1):
        later, now = now, later
        left_s = left * grid.tick_s
        for step in range(grid.steps):
            slack_s = step * grid.step_s
            here = SlackState(step, slack_s, left_s - slack_s, program.chances.parts[left])
            if here.to_do_s <= 0.0:
                now.means[:, :, :, step] = 0.0
                now.squares[:, :, :, step] = 0.0
                continue
            _take(room, later, here, program)
            _be_refused(room, later, here, program)
            _keep(room, later, here, program)
            _hold_no_spot(now, room, here, program)
            _hold_spot(now, room, here, program)
        _fill_scores(found[left], now, program.gamma)
    return found


@inner
def _room(places: int, zones: int, bins: int) -> ZonesRoom:
    by_new, by_met = np.empty((places, zones), dtype=np.int64), np.empty((places, bins, zones), dtype=np.int64)
    for place in range(places):
        by_new[place], by_met[place] = np.arange(zones), np.arange(zones)
    taken, met, by_age = np.empty((places, 3, zones)), np.empty((places, bins, 3, zones)), np.empty((bins, 2))
    refused, kept = np.empty((3, zones, bins, 3)), np.empty((zones, bins, 3))
    return ZonesRoom(taken, met, by_new, by_met, refused, kept, by_age)


@inner
def _older(values: Any, age: int, onward: float, place: float) -> float:
    """The interpolated value a tick later: in the same bin of age, or in the next."""
    found: float = between(values[age], place)
    if onward > 0.0:
        found = (1.0 - onward) * found + onward * between(values[age + 1], place)
    return found


@inner
def _sort(order: Any, values: Any) -> None:
    """Sort indices by their values with insertion sort: from step to step the order hardly changes."""
    for place in range(1, len(order)):
        one = order[place]
        before = place - 1
        while before >= 0 and values[order[before]] > values[one]:
            order[before + 1] = order[before]
            before -= 1
        order[before + 1] = one


@inner
def _score(mean: float, square: float, gamma: float) -> float:
    """The expected cost plus gamma times its standard deviation, USD, from mean and mean square."""
    if gamma == 0.0:
        return mean
    return mean + gamma * float(np.sqrt(max(square - mean * mean, 0.0)))


@inner
def _take(room: ZonesRoom, later: Moments, here: SlackState, program: ZonesProgram) -> None:
    """Fill in the cost of taking each zone's spot machine, and the order of zones by it, for each place."""
    tick_s, step_s, task, gamma = program.grid.tick_s, program.grid.step_s, program.task, program.gamma
    start_s, place_of, egress_usd, spot_usd = task.start_s, task.place_of, task.egress_usd, task.spot_usd
    taken, met, ages, by_age, bins = room.taken, room.met, program.chances.ages, room.by_age, room.met.shape[1]
    means, squares = later.means, later.squares
    for place in range(len(egress_usd)):
        for zone in range(len(spot_usd)):
            overhead_s = start_s[place, place_of[zone]]
            then_s, used_s = here.slack_s - overhead_s, here.to_do_s + overhead_s
            at_last = used_s <= tick_s
            for kind in range(3):
                taken[place, kind, zone] = MISSED_USD
                for since in range(bins):
                    met[place, since, kind, zone] = MISSED_USD
            if then_s < (0.0 if at_last else task.restart_s):
                continue
            cost = egress_usd[place, place_of[zone]] + spot_usd[zone] * min(tick_s, used_s) / 3600.0
            by_age[:] = 0.0
            if not at_last:
                there = then_s / step_s
                for age in range(bins):
                    by_age[age, 0] = between(means[SPOT, zone, age], there)
                    by_age[age, 1] = between(squares[SPOT, zone, age], there)
            _put(taken[place], zone, by_age[0, 0], by_age[0, 1], cost, gamma)
            for since in range(bins):
                mean, square = 0.0, 0.0
                for age in range(bins):
                    if ages[zone, since, age] > _UNLIKELY:
                        mean += ages[zone, since, age] * by_age[age, 0]
                        square += ages[zone, since, age] * by_age[age, 1]
                _put(met[place, since], zone, mean, square, cost, gamma)
        _sort(room.by_new[place], taken[place, 2])
        for since in range(bins):
            _sort(room.by_met[place, since], met[place, since, 2])


@inner
def _put(into: Any, zone: int, mean: float, square: float, cost: float, gamma: float) -> None:
    """Write mean, mean square and score of a random cost plus a known one."""
    into[0, zone] = mean + cost
    into[1, zone] = square + 2.0 * cost * mean + cost * cost
    into[2, zone] = _score(into[0, zone], into[1, zone], gamma)


@inner
def _be_refused(room: ZonesRoom, later: Moments, here: SlackState, program: ZonesProgram) -> None:
    """Fill in the cost of the best choice when no zone gives a spot machine: to wait, or to go on demand."""
    tick_s, step_s, task, gamma = program.grid.tick_s, program.grid.step_s, program.task, program.gamma
    slack_s, to_do_s, restart_s, on_demand_usd = here.slack_s, here.to_do_s, task.restart_s, task.on_demand_usd
    means, squares, refused, onward = later.means, later.squares, room.refused, program.chances.onward
    for zone in range(refused.shape[1]):
        for age in range(refused.shape[2]):
            for held in (NOTHING, ON_DEMAND):
                mean, square, score = MISSED_USD, MISSED_USD * MISSED_USD, MISSED_USD
                if slack_s - tick_s >= restart_s:
                    there = (slack_s - tick_s) / step_s
                    mean = _older(means[NOTHING, zone], age, onward[age], there)
                    square = _older(squares[NOTHING, zone], age, onward[age], there)
                    score = _score(mean, square, gamma)
                overhead_s = 0.0 if held == ON_DEMAND else restart_s
                if slack_s >= overhead_s:
                    cost = on_demand_usd * min(tick_s, to_do_s + overhead_s) / 3600.0
                    other, other_square = 0.0, 0.0
                    if to_do_s + overhead_s > tick_s:
                        there = (slack_s - overhead_s) / step_s
                        other = _older(means[ON_DEMAND, zone], age, onward[age], there)
                        other_square = _older(squares[ON_DEMAND, zone], age, onward[age], there)
                    other_square += 2.0 * cost * other + cost * cost
                    other += cost
                    if _score(other, other_square, gamma) < score:
                        mean, square, score = other, other_square, _score(other, other_square, gamma)
                refused[held, zone, age, 0] = mean
                refused[held, zone, age, 1] = square
                refused[held, zone, age, 2] = score


@inner
def _keep(room: ZonesRoom, later: Moments, here: SlackState, program: ZonesProgram) -> None:
    """Fill in the cost when a spot machine is held and no other is taken: to keep it, or to let it go."""
    tick_s, step_s, gamma = program.grid.tick_s, program.grid.step_s, program.gamma
    slack_s, to_do_s, spot_usd, onward = here.slack_s, here.to_do_s, program.task.spot_usd, program.chances.onward
    means, squares, refused, kept = later.means, later.squares, room.refused, room.kept
    may_keep = slack_s >= program.task.restart_s or to_do_s <= tick_s
    for zone in range(kept.shape[0]):
        for age in range(kept.shape[1]):
            mean, square = refused[NOTHING, zone, age, 0], refused[NOTHING, zone, age, 1]
            score = refused[NOTHING, zone, age, 2]
            if may_keep:
                cost = spot_usd[zone] * min(tick_s, to_do_s) / 3600.0
                other, other_square = 0.0, 0.0
                if to_do_s > tick_s:
                    other = _older(means[SPOT, zone], age, onward[age], slack_s / step_s)
                    other_square = _older(squares[SPOT, zone], age, onward[age], slack_s / step_s)
                other_square += 2.0 * cost * other + cost * cost
                other += cost
                if _score(other, other_square, gamma) < score:
                    mean, square, score = other, other_square, _score(other, other_square, gamma)
            kept[zone, age, 0] = mean
            kept[zone, age, 1] = square
            kept[zone, age, 2] = score


@inner
def _hold_no_spot(now: Moments, room: ZonesRoom, here: SlackState, program: ZonesProgram) -> None:
    """Fill in the cost where nothing or an on-demand machine is held: zones are asked in order of their cost."""
    ends, arrives, place_of = program.chances.ends, program.chances.arrives, program.task.place_of
    part, step, taken_by_place, refused = here.part, here.step, room.taken, room.refused
    means, squares, by_new = now.means, now.squares, room.by_new
    for zone in range(refused.shape[1]):
        taken, order = taken_by_place[place_of[zone]], by_new[place_of[zone]]
        for age in range(refused.shape[2]):
            for held in (NOTHING, ON_DEMAND):
                mean, square, stays = 0.0, 0.0, 1.0
                base = refused[held, zone, age]
                for other in order:
                    if taken[2, other] >= base[2]:
                        break
                    chance = ends[part, zone, 0, age] if other == zone else arrives[part, other, age]
                    mean += stays * chance * taken[0, other]
                    square += stays * chance * taken[1, other]
                    stays *= 1.0 - chance
                means[held, zone, age, step] = mean + stays * base[0]
                squares[held, zone, age, step] = square + stays * base[1]


@inner
def _hold_spot(now: Moments, room: ZonesRoom, here: SlackState, program: ZonesProgram) -> None:
    """Fill in the cost where a spot machine is held: it is kept, or a better one comes up, or it is revoked."""
    ends, arrives, up_since = program.chances.ends, program.chances.arrives, program.chances.up_since
    place_of, part, step, refused, kept = program.task.place_of, here.part, here.step, room.refused, room.kept
    means, squares = now.means, now.squares
    taken_by_place, met_by_place, by_new, by_met = room.taken, room.met, room.by_new, room.by_met
    for zone in range(kept.shape[0]):
        place = place_of[zone]
        taken, new_order = taken_by_place[place], by_new[place]
        for age in range(kept.shape[1]):
            met, met_order = met_by_place[place, age], by_met[place, age]
            score = kept[zone, age, 2]
            moved, moved_square, stays = 0.0, 0.0, 1.0
            for other in new_order:
                if taken[2, other] >= score:
                    break
                if other != zone:
                    chance = arrives[part, other, age]
                    moved += stays * chance * taken[0, other]
                    moved_square += stays * chance * taken[1, other]
                    stays *= 1.0 - chance
            held_mean, held_square = moved + stays * kept[zone, age, 0], moved_square + stays * kept[zone, age, 1]
            fell, fell_square, stays = 0.0, 0.0, 1.0
            base = refused[NOTHING, zone, 0]
            for other in met_order:
                if met[2, other] >= base[2]:
                    break
                if other != zone:
                    # A zone that would have been taken before is known to have been down.
                    known = taken[2, other] < score
                    chance = arrives[part, other, age] if known else up_since[other, age]
                    fell += stays * chance * met[0, other]
                    fell_square += stays * chance * met[1, other]
                    stays *= 1.0 - chance
            fell += stays * base[0]
            fell_square += stays * base[1]
            gone = ends[part, zone, 1, age]
            means[SPOT, zone, age, step] = (1.0 - gone) * held_mean + gone * fell
            squares[SPOT, zone, age, step] = (1.0 - gone) * held_square + gone * fell_square


@inner
def _fill_scores(found: Any, now: Moments, gamma: float) -> None:
    """Fill in the scores of all states at a tick."""
    means, squares = now.means, now.squares
    for held in range(found.shape[0]):
        for zone in range(found.shape[1]):
            for age in range(found.shape[2]):
                for step in range(found.shape[3]):
                    mean, square = means[held, zone, age, step], squares[held, zone, age, step]
                    found[held, zone, age, step] = _score(mean, square, gamma)
