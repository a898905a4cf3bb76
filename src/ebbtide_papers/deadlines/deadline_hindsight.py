"""The least cost of a job with a deadline when the whole record is known: an exact program, in compiled code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ebbtide.base.compiled_records import MISSED_USD, HindsightChoice, HindsightMoment, ZonesTape, ZonesTask
from ebbtide.base.compiling import compiled, inner
from ebbtide.errors import InputError
from ebbtide.policies.deadline.costs import DeadlineProblem, ZonesProblem
from ebbtide.policies.deadline.solving_zones import slack_after


def least_cost(problem: ZonesProblem, tape: ZonesTape, first: int, step_s: float) -> float:
    """The least cost of a run over several zones, USD; slack is on a grid, interpolated between its steps.

    Args:
        problem: The job and its zones.
        tape: Recorded availability and prices.
        first: Index of the tick at which the run starts.
        step_s: Width of a step of slack in seconds.

    Raises:
        InputError: A spot machine is faster than one on demand.
    """
    if any(speed > 1.0 for speed in problem.speed):
        raise InputError(f"speed is {problem.speed}; hindsight is known for machines no faster than one on demand")
    return _least_cost(tape, first, problem.task, math.ceil(problem.slack_s / step_s) + 2, step_s)


def in_one_zone(problem: DeadlineProblem) -> ZonesProblem:
    """The problem of one zone as one over several zones."""
    here = np.zeros((1, 1))
    return ZonesProblem(
        problem.work_h,
        problem.deadline_h,
        problem.restart_h,
        problem.on_demand_usd_per_hour,
        ("zone",),
        (problem.spot_usd_per_hour,),
        (0,),
        here,
        here,
    )


@inner
def _lower(best: Any, later: Any, moment: HindsightMoment, choice: HindsightChoice) -> None:
    """Lower the least costs to those of a choice, at every slack at which it can be kept.

    Args:
        best: Least costs so far, USD; shape (steps,).
        later: Costs from the next tick on, USD; shape (steps,).
        moment: The time left, and the grid.
        choice: What is rented, and what that takes.
    """
    steps, usd, tick_s, step_s = len(best), choice.usd, moment.tick_s, moment.step_s
    low = int(choice.shift_s / step_s + 1.0 - 1e-9)
    whole = int(choice.shift_s / step_s)
    share = choice.shift_s / step_s - whole
    # From this step of slack on, the work ends in this tick.
    ends = steps
    if usd > 0.0:
        works_s = choice.speed * (tick_s - choice.overhead_s)
        ends = min(max(int(np.ceil((moment.left_s - works_s) / step_s - 1e-9)), 0), steps)
    fixed = choice.moved_usd + usd * tick_s / 3600.0
    if low == whole:
        for step in range(low, ends):
            best[step] = min(best[step], fixed + later[step - whole])
    else:
        for step in range(low, ends):
            cost = fixed + (1.0 - share) * later[step - whole] + share * later[step - whole - 1]
            best[step] = min(best[step], cost)
    for step in range(max(low, ends), steps):
        used_s = max((moment.left_s - step * step_s) / choice.speed + choice.overhead_s, 0.0)
        best[step] = min(best[step], choice.moved_usd + usd * used_s / 3600.0)


@compiled
def _least_cost(tape: ZonesTape, first: int, task: ZonesTask, steps: int, step_s: float) -> float:
    """The least cost in USD.

    What is held is nothing, an on-demand machine in a place, or a zone's spot machine; the checkpoint lies where
    the last machine was. On-demand machines are rented there, since they cost the same everywhere.
    """
    zones, places, record_ticks = len(tape.available), len(task.egress_usd), tape.available.shape[1]
    tick_s = tape.tick_s
    ticks = int(np.ceil(task.deadline_s / tick_s - 1e-9))
    # Rows: nothing held, by place; on demand, by place; spot, by zone.
    later, now = np.zeros((2 * places + zones, steps)), np.zeros((2 * places + zones, steps))
    begun = np.zeros(steps)
    fresh = np.zeros(steps)
    for left in range(1, ticks + 1):
        moment = HindsightMoment(task.deadline_s - (ticks - left) * tick_s, tick_s, step_s)
        tick = first + ticks - left
        for held in range(2 * places + zones + 1):
            is_fresh = held == 2 * places + zones
            best = begun if is_fresh else now[held]
            best[:] = MISSED_USD
            place = held % places if held < 2 * places else (0 if is_fresh else task.place_of[held - 2 * places])
            _lower(best, fresh if is_fresh else later[place], moment, HindsightChoice(tick_s, 0.0, 0.0, 0.0, 1.0))
            overhead_s = 0.0 if places <= held < 2 * places else task.restart_s
            on_demand = HindsightChoice(overhead_s, task.on_demand_usd, 0.0, overhead_s, 1.0)
            _lower(best, later[places + place], moment, on_demand)
            if tick < record_ticks:
                for zone in range(zones):
                    if not tape.available[zone, tick]:
                        continue
                    there = task.place_of[zone]
                    kept = held == 2 * places + zone
                    overhead_s = 0.0 if kept else task.restart_s if is_fresh else task.start_s[place, there]
                    moved_usd = 0.0 if kept or is_fresh else task.egress_usd[place, there]
                    goes = tick + 1 >= record_ticks or not tape.available[zone, tick + 1]
                    then = later[there] if goes else later[2 * places + zone]
                    shift_s = -slack_after(task, zone, 0.0, overhead_s, tick_s)
                    usd, speed = tape.spot_usd[zone, tick], task.speed[zone]
                    spot = HindsightChoice(shift_s, usd, moved_usd, overhead_s, speed)
                    _lower(best, then, moment, spot)
            # Where the work is done already, nothing is paid.
            done = min(max(int(np.ceil(moment.left_s / step_s - 1e-9)), 0), steps)
            best[done:] = 0.0
        later, now = now, later
        fresh, begun = begun, fresh
    place_ = (task.deadline_s - task.work_s) / step_s
    low = min(int(place_), steps - 2)
    share = place_ - low
    return float((1.0 - share) * fresh[low] + share * fresh[low + 1])
