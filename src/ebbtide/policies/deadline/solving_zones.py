"""The backward induction behind `deadline` over several zones, in compiled code.

It goes back from the deadline tick by tick. A state is the time left, the slack (time left beyond the work left),
what is held, the zone of it, and the age of that zone's spell (the time for which it has been up or down).

Only the zone that is held, was held last or is watched is tracked. A policy that asks in each tick knows that the
other zones it would take have been down for as long, so each comes up at the rate of such spells, which falls with
the age; zones it would not have taken are up as often as in the long run. So the state grows with the number of
zones, not exponentially, and keeps heavy tails.

A zone may stand for machines of any speed, so for some of a gang's machines. A machine that is not as fast as one
on demand uses up slack while it works; a faster one gains some.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.base.compiled_records import (
    MISSED_USD,
    NOTHING,
    ON_DEMAND,
    SPOT,
    WATCHING,
    Moments,
    SlackState,
    ZonesProgram,
    ZonesRoom,
    ZonesTask,
)
from ebbtide.base.compiling import compiled, inner
from ebbtide.policies.deadline.solving import between

# Ages of an up spell that are less likely than this are left out of means.
_UNLIKELY = 1e-6


@inner
def slack_after(task: ZonesTask, zone: int, slack_s: float, overhead_s: float, tick_s: float) -> float:
    """The slack in seconds after a tick on a zone's spot machine whose start takes `overhead_s`."""
    speed: float = task.speed[zone]
    return slack_s - speed * overhead_s + (speed - 1.0) * tick_s


@inner
def ends_in_time(task: ZonesTask, zone: int, slack_s: float, to_do_s: float, overhead_s: float) -> bool:
    """Return whether a zone's spot machine, if it lasts, does all the work left before the deadline."""
    return bool(slack_s - overhead_s - to_do_s * (1.0 / task.speed[zone] - 1.0) >= 0.0)


@inner
def tick_on_spot(
    task: ZonesTask, zone: int, slack_s: float, to_do_s: float, overhead_s: float, tick_s: float
) -> tuple[float, float, bool]:
    """Result of a tick on a zone's spot machine whose start takes `overhead_s`.

    Returns:
        Seconds until all work left is done, the slack after the tick in seconds, and whether that is sure to be
        in time: an on-demand start fits then, or the job ends in the tick.
    """
    used_s = to_do_s / task.speed[zone] + overhead_s
    then_s = slack_after(task, zone, slack_s, overhead_s, tick_s)
    is_sure = then_s >= task.restart_s
    if used_s <= tick_s:
        is_sure = ends_in_time(task, zone, slack_s, to_do_s, overhead_s)
    return used_s, then_s, is_sure


@compiled
def solved_zones(program: ZonesProgram) -> Any:
    """The cost of a run from each state on, at the start of a tick and before any zone is asked.

    Returns:
        Expected cost plus gamma times its standard deviation, USD; shape (ticks + 1, held, zones, bins of age,
        steps of slack). `WATCHING` is among what is held if zones are watched.
    """
    grid, zones, bins = program.grid, len(program.task.spot_usd), len(program.chances.onward)
    watches = program.task.look_s < np.inf
    kinds = 4 if watches else 3
    found = np.zeros((grid.ticks + 1, kinds, zones, bins, grid.steps), dtype=np.float32)
    shape = (kinds, zones, bins, grid.steps)
    now, later = Moments(np.zeros(shape), np.zeros(shape)), Moments(np.zeros(shape), np.zeros(shape))
    room = _room(len(program.task.egress_usd), zones, bins)
    for left in range(1, grid.ticks + 1):
        later, now = now, later
        left_s = left * grid.tick_s
        first = max(int(np.ceil((left_s - program.most_to_do_s) / grid.step_s)), 0)
        for step in range(first, grid.steps):
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
            _hold_spot(now, room, here, program, SPOT)
            if watches:
                _watch_on(room, later, here, program)
                _hold_spot(now, room, here, program, WATCHING)
        _fill_scores(found[left], now, program.gamma, min(first, grid.steps - 1))
    return found


@inner
def _room(places: int, zones: int, bins: int) -> ZonesRoom:
    by_new, by_met = np.empty((places, zones), dtype=np.int64), np.empty((places, bins, zones), dtype=np.int64)
    for place in range(places):
        by_new[place], by_met[place] = np.arange(zones), np.arange(zones)
    taken, met, by_age = np.empty((places, 3, zones)), np.empty((places, bins, 3, zones)), np.empty((bins, 4))
    refused, kept, again = np.empty((3, zones, bins, 3)), np.empty((zones, bins, 3)), np.empty((zones, bins, 3))
    return ZonesRoom(taken, met, by_new, by_met, refused, kept, again, by_age)


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
    """Fill in the cost of taking or watching each zone's machine, and the order of zones by it, for each place."""
    tick_s, step_s, task, gamma = program.grid.tick_s, program.grid.step_s, program.task, program.gamma
    start_s, place_of, egress_usd, spot_usd = task.start_s, task.place_of, task.egress_usd, task.spot_usd
    taken, met, ages, by_age, bins = room.taken, room.met, program.chances.ages, room.by_age, room.met.shape[1]
    means, squares = later.means, later.squares
    watches = task.look_s < np.inf and here.slack_s - tick_s >= task.restart_s
    for place in range(len(egress_usd)):
        for zone in range(len(spot_usd)):
            overhead_s = start_s[place, place_of[zone]]
            used_s, then_s, may_take = tick_on_spot(task, zone, here.slack_s, here.to_do_s, overhead_s, tick_s)
            at_last = used_s <= tick_s
            for kind in range(3):
                taken[place, kind, zone] = MISSED_USD
                for since in range(bins):
                    met[place, since, kind, zone] = MISSED_USD
            moved_usd = egress_usd[place, place_of[zone]]
            cost = moved_usd + spot_usd[zone] * min(tick_s, used_s) / 3600.0
            look_usd = spot_usd[zone] * min(task.look_s, tick_s) / 3600.0
            by_age[:] = 0.0
            for age in range(bins):
                if may_take and not at_last:
                    there = then_s / step_s
                    by_age[age, 0] = between(means[SPOT, zone, age], there)
                    by_age[age, 1] = between(squares[SPOT, zone, age], there)
                if watches:
                    there = (here.slack_s - tick_s) / step_s
                    by_age[age, 2] = between(means[WATCHING, zone, age], there)
                    by_age[age, 3] = between(squares[WATCHING, zone, age], there)
            if may_take:
                _put(taken[place], zone, by_age[0, 0], by_age[0, 1], cost, gamma)
            if watches:
                _put_if_less(taken[place], zone, by_age[0, 2], by_age[0, 3], look_usd, gamma)
            for since in range(bins):
                mean, square, other, other_square = 0.0, 0.0, 0.0, 0.0
                for age in range(bins):
                    if ages[zone, since, age] > _UNLIKELY:
                        mean += ages[zone, since, age] * by_age[age, 0]
                        square += ages[zone, since, age] * by_age[age, 1]
                        other += ages[zone, since, age] * by_age[age, 2]
                        other_square += ages[zone, since, age] * by_age[age, 3]
                if may_take:
                    _put(met[place, since], zone, mean, square, cost, gamma)
                if watches:
                    _put_if_less(met[place, since], zone, other, other_square, look_usd, gamma)
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
def _put_if_less(into: Any, zone: int, mean: float, square: float, cost: float, gamma: float) -> None:
    """The same, if the score is less than the one that is there."""
    total = mean + cost
    total_square = square + 2.0 * cost * mean + cost * cost
    score = _score(total, total_square, gamma)
    if score < into[2, zone]:
        into[0, zone], into[1, zone], into[2, zone] = total, total_square, score


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
    tick_s, step_s, task, gamma = program.grid.tick_s, program.grid.step_s, program.task, program.gamma
    slack_s, to_do_s, spot_usd, onward = here.slack_s, here.to_do_s, task.spot_usd, program.chances.onward
    means, squares, refused, kept = later.means, later.squares, room.refused, room.kept
    for zone in range(kept.shape[0]):
        used_s, then_s, may_keep = tick_on_spot(task, zone, slack_s, to_do_s, 0.0, tick_s)
        at_last = used_s <= tick_s
        for age in range(kept.shape[1]):
            mean, square = refused[NOTHING, zone, age, 0], refused[NOTHING, zone, age, 1]
            score = refused[NOTHING, zone, age, 2]
            if may_keep:
                cost = spot_usd[zone] * min(tick_s, used_s) / 3600.0
                other, other_square = 0.0, 0.0
                if not at_last:
                    other = _older(means[SPOT, zone], age, onward[age], then_s / step_s)
                    other_square = _older(squares[SPOT, zone], age, onward[age], then_s / step_s)
                other_square += 2.0 * cost * other + cost * cost
                other += cost
                if _score(other, other_square, gamma) < score:
                    mean, square, score = other, other_square, _score(other, other_square, gamma)
            kept[zone, age, 0] = mean
            kept[zone, age, 1] = square
            kept[zone, age, 2] = score


@inner
def _from_elsewhere(task: ZonesTask, zone: int) -> tuple[float, float]:
    """Seconds of a start in a zone, and what it moves, USD, if the checkpoint lies in another place; the mean.

    The table does not track where the checkpoint lies while a zone is watched.
    """
    own, places = task.place_of[zone], len(task.egress_usd)
    if places == 1:
        return task.start_s[own, own], 0.0
    overhead_s = (task.start_s[:, own].sum() - task.start_s[own, own]) / (places - 1)
    moved_usd = (task.egress_usd[:, own].sum() - task.egress_usd[own, own]) / (places - 1)
    return overhead_s, moved_usd


@inner
def _watch_on(room: ZonesRoom, later: Moments, here: SlackState, program: ZonesProgram) -> None:
    """Fill in the cost when the watched zone still has a machine: to take it, to watch on, or to leave it."""
    tick_s, step_s, task, gamma = program.grid.tick_s, program.grid.step_s, program.task, program.gamma
    slack_s, to_do_s, onward = here.slack_s, here.to_do_s, program.chances.onward
    means, squares, refused, again = later.means, later.squares, room.refused, room.again
    for zone in range(again.shape[0]):
        overhead_s, moved_usd = _from_elsewhere(task, zone)
        used_s, then_s, may_take = tick_on_spot(task, zone, slack_s, to_do_s, overhead_s, tick_s)
        at_last = used_s <= tick_s
        cost = moved_usd + task.spot_usd[zone] * min(tick_s, used_s) / 3600.0
        look_usd = task.spot_usd[zone] * min(task.look_s, tick_s) / 3600.0
        for age in range(again.shape[1]):
            mean, square = refused[NOTHING, zone, 0, 0], refused[NOTHING, zone, 0, 1]
            score = refused[NOTHING, zone, 0, 2]
            for choice in (SPOT, WATCHING):
                if not may_take if choice == SPOT else slack_s - tick_s < task.restart_s:
                    continue
                there = (then_s if choice == SPOT else slack_s - tick_s) / step_s
                usd = cost if choice == SPOT else look_usd
                other, other_square = 0.0, 0.0
                if choice == WATCHING or not at_last:
                    other = _older(means[choice, zone], age, onward[age], there)
                    other_square = _older(squares[choice, zone], age, onward[age], there)
                other_square += 2.0 * usd * other + usd * usd
                other += usd
                if _score(other, other_square, gamma) < score:
                    mean, square, score = other, other_square, _score(other, other_square, gamma)
            again[zone, age, 0] = mean
            again[zone, age, 1] = square
            again[zone, age, 2] = score


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
def _hold_spot(now: Moments, room: ZonesRoom, here: SlackState, program: ZonesProgram, held: int) -> None:
    """Fill in the cost where a machine is held or watched: it is kept, or a better one comes up, or it goes."""
    ends, arrives, up_since = program.chances.ends, program.chances.arrives, program.chances.up_since
    place_of, part, step, refused = program.task.place_of, here.part, here.step, room.refused
    kept = room.kept if held == SPOT else room.again
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
            means[held, zone, age, step] = (1.0 - gone) * held_mean + gone * fell
            squares[held, zone, age, step] = (1.0 - gone) * held_square + gone * fell_square


@inner
def _fill_scores(found: Any, now: Moments, gamma: float, first: int) -> None:
    """Fill in the scores of all states at a tick; below step `first` they are continued in a straight line."""
    means, squares = now.means, now.squares
    for held in range(found.shape[0]):
        for zone in range(found.shape[1]):
            for age in range(found.shape[2]):
                for step in range(first, found.shape[3]):
                    mean, square = means[held, zone, age, step], squares[held, zone, age, step]
                    found[held, zone, age, step] = _score(mean, square, gamma)
                here = found[held, zone, age]
                more = max(here[first] - here[first + 1], 0.0) if first + 1 < len(here) else 0.0
                for step in range(first):
                    here[step] = min(here[first] + (first - step) * more, MISSED_USD)
