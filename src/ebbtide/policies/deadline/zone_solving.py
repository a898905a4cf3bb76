"""The program behind `deadline` in compiled code: solved backwards over ticks, zone by zone.

All that is tracked of a market is the zone that is held or was held last: whether its spell is up or down, and the
spell's age. Of the other zones a policy that asks each tick knows that those it would take have been down for as
long, so each comes up at the rate of such spells, which falls with the age; those it would not have taken stand as
they do in the long run. That makes the state grow with the number of zones, not with the power of it, and keeps
heavy tails.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide._compiling import compiled, inner
from ebbtide.policies.deadline.grid import between

# What is held of a zone: nothing (it is down), an on-demand machine where it lies (it is down), its spot machine.
NOTHING, ON_DEMAND, SPOT = 0, 1, 2

# More than any run costs: what would miss the deadline.
NEVER = 1e9


@inner
def _older(values: Any, age: int, onward: float, place: float) -> float:
    """A tick later: in the same bin of age, or in the next."""
    found: float = between(values[age], place)
    if onward > 0.0:
        found = (1.0 - onward) * found + onward * between(values[age + 1], place)
    return found


@inner
def _sort(order: Any, values: Any) -> None:
    """By insertion: from step to step the order hardly changes."""
    for place in range(1, len(order)):
        one = order[place]
        before = place - 1
        while before >= 0 and values[order[before]] > values[one]:
            order[before + 1] = order[before]
            before -= 1
        order[before + 1] = one


@inner
def _score(mean: float, square: float, gamma: float) -> float:
    """Expected cost plus gamma times its standard deviation."""
    if gamma == 0.0:
        return mean
    return mean + gamma * float(np.sqrt(max(square - mean * mean, 0.0)))


@compiled
def solved_zones(
    ticks: int,
    tick_s: float,
    steps: int,
    step_s: float,
    restart_s: float,
    start_s: Any,
    on_demand_usd: float,
    spot_usd: Any,
    place_of: Any,
    egress_usd: Any,
    ends: Any,
    onward: Any,
    arrives: Any,
    share_up: Any,
    ages: Any,
    parts: Any,
    gamma: float,
) -> Any:
    """What a run costs from each state on, at a tick's start and before anything is asked.

    Args:
        ticks, tick_s: To the deadline: how many, and their length.
        steps, step_s: Of slack: how many, and their width.
        restart_s, start_s: Of a machine where the checkpoint is, and by places; shape (places, places).
        on_demand_usd, spot_usd: An hour's; of spot shape (zones,).
        place_of: Of each zone.
        egress_usd: By places.
        ends: The probability that a spell ends within a tick; shape (parts of the day, zones, kinds, bins of age).
        onward: That it comes into the next bin, if it does not end; shape (bins,).
        arrives: That a zone comes up within a tick that has been down for that long or longer; shape (parts,
            zones, bins).
        share_up: Of each zone, in the long run.
        ages: Of an up spell met at any time; shape (zones, bins).
        parts: Part of the day, by ticks left.
        gamma: USD of expected cost that a USD of standard deviation is worth.

    Returns:
        USD by ticks left, what is held, zone, bin of age and slack.
    """
    zones, bins, places = len(spot_usd), len(onward), len(egress_usd)
    found = np.zeros((ticks + 1, 3, zones, bins, steps), dtype=np.float32)
    # Mean and mean square of the cost, now and a tick later.
    means, squares = np.zeros((3, zones, bins, steps)), np.zeros((3, zones, bins, steps))
    later_means, later_squares = np.zeros_like(means), np.zeros_like(means)
    # Taking a zone's machine: its mean, square and score, of a new spell and of one met at any time.
    taken, met = np.empty((places, 3, zones)), np.empty((places, 3, zones))
    by_new, by_met = np.empty((places, zones), dtype=np.int64), np.empty((places, zones), dtype=np.int64)
    for place in range(places):
        by_new[place], by_met[place] = np.arange(zones), np.arange(zones)
    refused = np.empty((2, zones, bins, 3))
    for left in range(1, ticks + 1):
        later_means, means = means, later_means
        later_squares, squares = squares, later_squares
        left_s, part = left * tick_s, parts[left]
        for step in range(steps):
            slack_s = step * step_s
            to_do_s = left_s - slack_s
            if to_do_s <= 0.0:
                means[:, :, :, step] = 0.0
                squares[:, :, :, step] = 0.0
                continue
            for place in range(places):
                for zone in range(zones):
                    overhead_s = start_s[place, place_of[zone]]
                    then_s, used_s = slack_s - overhead_s, to_do_s + overhead_s
                    at_last = used_s <= tick_s
                    for kind in range(3):
                        taken[place, kind, zone] = met[place, kind, zone] = NEVER
                    if then_s < (0.0 if at_last else restart_s):
                        continue
                    cost = egress_usd[place, place_of[zone]] + spot_usd[zone] * min(tick_s, used_s) / 3600.0
                    mean, square, mean_met, square_met = 0.0, 0.0, 0.0, 0.0
                    if not at_last:
                        there = then_s / step_s
                        mean = between(later_means[SPOT, zone, 0], there)
                        square = between(later_squares[SPOT, zone, 0], there)
                        for age in range(bins):
                            if ages[zone, age] > 1e-6:
                                mean_met += ages[zone, age] * between(later_means[SPOT, zone, age], there)
                                square_met += ages[zone, age] * between(later_squares[SPOT, zone, age], there)
                    taken[place, 0, zone] = mean + cost
                    taken[place, 1, zone] = square + 2.0 * cost * mean + cost * cost
                    taken[place, 2, zone] = _score(taken[place, 0, zone], taken[place, 1, zone], gamma)
                    met[place, 0, zone] = mean_met + cost
                    met[place, 1, zone] = square_met + 2.0 * cost * mean_met + cost * cost
                    met[place, 2, zone] = _score(met[place, 0, zone], met[place, 1, zone], gamma)
                _sort(by_new[place], taken[place, 2])
                _sort(by_met[place], met[place, 2])
            for zone in range(zones):
                place = place_of[zone]
                for age in range(bins):
                    # What is left to choose when nobody gives a spot machine.
                    for held in range(2):
                        mean, square, score = NEVER, NEVER * NEVER, NEVER
                        if slack_s - tick_s >= restart_s:
                            there = (slack_s - tick_s) / step_s
                            mean = _older(later_means[NOTHING, zone], age, onward[age], there)
                            square = _older(later_squares[NOTHING, zone], age, onward[age], there)
                            score = _score(mean, square, gamma)
                        overhead_s = 0.0 if held == ON_DEMAND else restart_s
                        if slack_s >= overhead_s:
                            cost = on_demand_usd * min(tick_s, to_do_s + overhead_s) / 3600.0
                            other, other_square = 0.0, 0.0
                            if to_do_s + overhead_s > tick_s:
                                there = (slack_s - overhead_s) / step_s
                                other = _older(later_means[ON_DEMAND, zone], age, onward[age], there)
                                other_square = _older(later_squares[ON_DEMAND, zone], age, onward[age], there)
                            other_square += 2.0 * cost * other + cost * cost
                            other += cost
                            if _score(other, other_square, gamma) < score:
                                mean, square, score = other, other_square, _score(other, other_square, gamma)
                        refused[held, zone, age, 0] = mean
                        refused[held, zone, age, 1] = square
                        refused[held, zone, age, 2] = score
                for age in range(bins):
                    for held in range(2):
                        mean, square, stays = 0.0, 0.0, 1.0
                        base = refused[held, zone, age]
                        for other in by_new[place]:
                            if taken[place, 2, other] >= base[2]:
                                break
                            chance = ends[part, zone, 0, age] if other == zone else arrives[part, other, age]
                            mean += stays * chance * taken[place, 0, other]
                            square += stays * chance * taken[place, 1, other]
                            stays *= 1.0 - chance
                        means[held, zone, age, step] = mean + stays * base[0]
                        squares[held, zone, age, step] = square + stays * base[1]
                    # Held: it goes on, or a better one comes up; or it goes.
                    mean, square, score = refused[NOTHING, zone, age, 0], refused[NOTHING, zone, age, 1], NEVER
                    score = refused[NOTHING, zone, age, 2]
                    if slack_s >= restart_s or to_do_s <= tick_s:
                        cost = spot_usd[zone] * min(tick_s, to_do_s) / 3600.0
                        other_mean, other_square = 0.0, 0.0
                        if to_do_s > tick_s:
                            other_mean = _older(later_means[SPOT, zone], age, onward[age], slack_s / step_s)
                            other_square = _older(later_squares[SPOT, zone], age, onward[age], slack_s / step_s)
                        other_square += 2.0 * cost * other_mean + cost * cost
                        other_mean += cost
                        if _score(other_mean, other_square, gamma) < score:
                            mean, square = other_mean, other_square
                            score = _score(mean, square, gamma)
                    moved, moved_square, stays = 0.0, 0.0, 1.0
                    for other in by_new[place]:
                        if taken[place, 2, other] >= score:
                            break
                        if other != zone:
                            chance = arrives[part, other, age]
                            moved += stays * chance * taken[place, 0, other]
                            moved_square += stays * chance * taken[place, 1, other]
                            stays *= 1.0 - chance
                    held_mean, held_square = moved + stays * mean, moved_square + stays * square
                    fell, fell_square, stays = 0.0, 0.0, 1.0
                    base = refused[NOTHING, zone, 0]
                    for other in by_met[place]:
                        if met[place, 2, other] >= base[2]:
                            break
                        if other != zone:
                            # One that would have been taken before is known to have been down.
                            known = taken[place, 2, other] < score
                            chance = arrives[part, other, age] if known else share_up[other]
                            fell += stays * chance * met[place, 0, other]
                            fell_square += stays * chance * met[place, 1, other]
                            stays *= 1.0 - chance
                    fell += stays * base[0]
                    fell_square += stays * base[1]
                    gone = ends[part, zone, 1, age]
                    means[SPOT, zone, age, step] = (1.0 - gone) * held_mean + gone * fell
                    squares[SPOT, zone, age, step] = (1.0 - gone) * held_square + gone * fell_square
        for held in range(3):
            for zone in range(zones):
                for age in range(bins):
                    for step in range(steps):
                        found[left, held, zone, age, step] = _score(
                            means[held, zone, age, step], squares[held, zone, age, step], gamma
                        )
    return found
