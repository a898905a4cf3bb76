"""The least cost over several zones when all of the record is known: an exact program, in compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide._compiling import compiled, inner

_NEVER = 1e9


@inner
def _lower(
    best: Any,
    later: Any,
    shift_s: float,
    left_s: float,
    tick_s: float,
    step_s: float,
    usd: float,
    moved_usd: float,
    overhead_s: float,
) -> None:
    """Put a choice into the least costs, at every slack for which it can be kept.

    Args:
        best: Least costs so far, by slack.
        later: What follows, by slack.
        shift_s: Slack that the choice takes.
        left_s, tick_s, step_s: Time left, and the grid.
        usd: The machine's price an hour; 0: nothing is rented.
        moved_usd: For a move.
        overhead_s: Of the machine's start.
    """
    steps = len(best)
    low = int(shift_s / step_s + 1.0 - 1e-9)
    whole = int(shift_s / step_s)
    share = shift_s / step_s - whole
    # From this step of slack on, the work ends in this tick.
    ends = steps
    if usd > 0.0:
        ends = min(max(int(np.ceil((left_s + overhead_s - tick_s) / step_s - 1e-9)), 0), steps)
    fixed = moved_usd + usd * tick_s / 3600.0
    if low == whole:
        for step in range(low, ends):
            best[step] = min(best[step], fixed + later[step - whole])
    else:
        for step in range(low, ends):
            cost = fixed + (1.0 - share) * later[step - whole] + share * later[step - whole - 1]
            best[step] = min(best[step], cost)
    for step in range(max(low, ends), steps):
        used_s = max(left_s - step * step_s + overhead_s, 0.0)
        best[step] = min(best[step], moved_usd + usd * used_s / 3600.0)


@compiled
def hindsight_zones(
    available: Any,
    spot_usd: Any,
    first: int,
    tick_s: float,
    work_s: float,
    deadline_s: float,
    restart_s: float,
    start_s: Any,
    on_demand_usd: float,
    place_of: Any,
    egress_usd: Any,
    steps: int,
    step_s: float,
) -> float:
    """The least cost of a run, in USD; slack on a grid, a line between its steps.

    What is held is nothing, an on-demand machine in a place, or a zone's spot machine; the checkpoint lies where
    the last machine was. On-demand machines are rented where it lies, for they cost the same everywhere.

    Args:
        As in `run_zones`; steps, step_s: Of slack: how many, and their width.
    """
    zones, places = len(available), len(egress_usd)
    ticks = int(np.ceil(deadline_s / tick_s - 1e-9))
    # Nothing held, by place; on demand, by place; spot, by zone.
    later, now = np.zeros((2 * places + zones, steps)), np.zeros((2 * places + zones, steps))
    begun = np.zeros(steps)
    fresh = np.zeros(steps)
    for left in range(1, ticks + 1):
        left_s = deadline_s - (ticks - left) * tick_s
        tick = first + ticks - left
        for held in range(2 * places + zones + 1):
            is_fresh = held == 2 * places + zones
            best = begun if is_fresh else now[held]
            best[:] = _NEVER
            place = held % places if held < 2 * places else (0 if is_fresh else place_of[held - 2 * places])
            _lower(best, fresh if is_fresh else later[place], tick_s, left_s, tick_s, step_s, 0.0, 0.0, 0.0)
            overhead_s = 0.0 if places <= held < 2 * places else restart_s
            _lower(best, later[places + place], overhead_s, left_s, tick_s, step_s, on_demand_usd, 0.0, overhead_s)
            if tick < available.shape[1]:
                for zone in range(zones):
                    if not available[zone, tick]:
                        continue
                    kept = held == 2 * places + zone
                    overhead_s = 0.0 if kept else restart_s if is_fresh else start_s[place, place_of[zone]]
                    moved = 0.0 if kept or is_fresh else egress_usd[place, place_of[zone]]
                    goes = tick + 1 >= available.shape[1] or not available[zone, tick + 1]
                    then = later[place_of[zone]] if goes else later[2 * places + zone]
                    _lower(best, then, overhead_s, left_s, tick_s, step_s, spot_usd[zone, tick], moved, overhead_s)
            # Where the work is done already nothing is to be paid.
            done = min(max(int(np.ceil(left_s / step_s - 1e-9)), 0), steps)
            best[done:] = 0.0
        later, now = now, later
        fresh, begun = begun, fresh
    place_ = (deadline_s - work_s) / step_s
    low = min(int(place_), steps - 2)
    share = place_ - low
    return float((1.0 - share) * fresh[low] + share * fresh[low + 1])
