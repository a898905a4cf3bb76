"""Runs of a scheduler that follows `DeadlineAdvisor`, over recorded availability of one zone, in compiled code.

Decisions and charges come in whole ticks of the record. A machine that is started works once its start is over; a
spot machine is gone at the first tick at which none is available.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ebbtide._compiled_records import NOTHING, ON_DEMAND, SPOT, AdvisorMoment, AdvisorTables, ZoneTask
from ebbtide._compiling import compiled
from ebbtide._utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.policies.deadline.advising import chosen, first_belief, next_belief
from ebbtide.policies.deadline.advisor import DeadlineAdvisor


@dataclass(frozen=True)
class AdvisedRun:
    """One run.

    Attributes:
        usd: Cost, USD, charged by whole ticks.
        hours: Hours until the tick in which the work was done had ended.
        late_h: Hours of these beyond the deadline; 0: in time.
        started: Number of machines started.
    """

    usd: float
    hours: float
    late_h: float
    started: int


def run_advised(advisor: DeadlineAdvisor, available: np.ndarray, first: int) -> AdvisedRun:
    """One run of a scheduler that does what it is advised.

    Args:
        advisor: The advisor, with a tick; what it has seen before is not used, and it is left as it is.
        available: Whether the zone has a spot machine in each tick of the advisor; shape (ticks,).
        first: Index of the tick at which the run starts.

    Raises:
        InputError: The advisor has no tick, or the record ends before the run does.
    """
    if advisor.tick_h is None:
        raise InputError("the advisor has no tick_h; runs over a record go by its ticks")
    tick_s, belief = advisor.tick_h * HOUR_S, advisor.prior
    usd, ticks, started = _run(
        advisor.tables, advisor.problem.task, belief, np.asarray(available), tick_s, first, advisor.usable_s
    )
    if ticks < 0:
        raise InputError(f"the record of {len(available)} ticks ends before a run from tick {first} does")
    hours = ticks * advisor.tick_h
    return AdvisedRun(usd, hours, max(hours - advisor.usable_s / HOUR_S, 0.0), started)


@compiled
def _run(
    tables: AdvisorTables,
    task: ZoneTask,
    prior: tuple[Any, Any, Any],
    available: Any,
    tick_s: float,
    first: int,
    usable_s: float,
) -> tuple[float, int, int]:
    """Cost in USD, ticks that it took (-1: the record ends before), and machines started."""
    ages, share_up, weights = prior
    left_s, starting_s, usd, held, started, was_up = task.work_s, 0.0, 0.0, NOTHING, 0, 0
    up = 1 if available[first] else 0
    belief = first_belief(ages, share_up, weights, up)
    ticks = 0
    while left_s > 1e-6:
        if first + ticks >= len(available):
            return usd, -1, started
        up = 1 if available[first + ticks] else 0
        if ticks > 0:
            belief = next_belief(tables, belief, was_up, up, tick_s)
        was_up = up
        if held == SPOT and up == 0:
            held, starting_s = NOTHING, 0.0
        now = AdvisorMoment(usable_s - ticks * tick_s, left_s, held, starting_s, up, tick_s, 0.0)
        choice = chosen(tables, task, belief, now)[0]
        if choice == NOTHING:
            held, starting_s = NOTHING, 0.0
        else:
            if choice != held:
                starting_s = task.restart_s
                started += 1
            held = choice
            usd += (task.on_demand_usd if choice == ON_DEMAND else task.spot_usd) * tick_s / 3600.0
            left_s -= max(tick_s - starting_s, 0.0)
            starting_s = max(starting_s - tick_s, 0.0)
        ticks += 1
    return usd, ticks, started
