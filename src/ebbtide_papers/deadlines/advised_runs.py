"""Runs of a scheduler that follows an advisor, over recorded availability of one zone or of several.

Decisions and charges come in whole ticks of the record. A machine that is started works once its start is over; a
spot machine is gone at the first tick at which none is available.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ebbtide.base.compiled_records import NOTHING, ON_DEMAND, SPOT, AdvisorMoment, AdvisorTables, ZoneTask
from ebbtide.base.compiling import compiled
from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.policies.deadline.advising import chosen, first_belief, next_belief
from ebbtide.policies.deadline.advisor import DeadlineAdvisor, Kind
from ebbtide.policies.deadline.advisor_inputs import ASKS_EVERY_S
from ebbtide.policies.deadline.zones_advisor import ZonesAdvisor

# Work of less than this is done, hours: hours as a scheduler counts them are not exact.
_DONE_H = 1e-9
_SAME_S = 1e-3


@dataclass(frozen=True)
class AdvisedRun:
    """Result of an advised run.

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


def run_advised(
    advisor: DeadlineAdvisor, available: np.ndarray, first: int, tick_h: float | None = None
) -> AdvisedRun:
    """Simulate a run of a scheduler that follows an advisor.

    Args:
        advisor: The advisor; what it has seen before is not used, and it is left as it is.
        available: Whether the zone has a spot machine in each tick of the record; shape (ticks,).
        first: Index of the tick at which the run starts.
        tick_h: Hours of a tick of the record, if the advisor has not been told of ticks: it counts on charges by
            the second, and on being asked as often as such a scheduler asks.

    Raises:
        InputError: Ticks are not known, or longer than the advisor counts on; or the record ends before the run
            does.
    """
    asks_s = ASKS_EVERY_S if advisor.tick_h is None else advisor.tick_h * HOUR_S
    each_h = advisor.tick_h if tick_h is None else tick_h
    if each_h is None:
        raise InputError("the advisor has no tick_h; runs over a record go by its ticks")
    if each_h * HOUR_S > asks_s + _SAME_S:
        raise InputError(f"ticks of {each_h * HOUR_S:g} s are longer than the {asks_s:g} s the advisor counts on")
    unseen_s = asks_s if advisor.tick_h is None else 0.0
    usd, ticks, started = _run(
        advisor.tables,
        advisor.problem.task,
        advisor.prior,
        np.asarray(available),
        each_h * HOUR_S,
        first,
        (advisor.usable_s, asks_s, unseen_s),
    )
    if ticks < 0:
        raise InputError(f"the record of {len(available)} ticks ends before a run from tick {first} does")
    hours = ticks * each_h
    # Where the deadline is no whole number of ticks, the work may end within the last.
    last_h = each_h if advisor.tick_h is None else 0.0
    return AdvisedRun(usd, hours, max(hours - last_h - advisor.usable_s / HOUR_S, 0.0), started)


def run_advised_zones(advisor: ZonesAdvisor, available: np.ndarray, first: int) -> AdvisedRun:
    """Simulate a run of a scheduler that sees every zone in each tick and follows an advisor.

    Args:
        advisor: The advisor, with a tick; it begins another run.
        available: Whether each zone has a spot machine in each tick of the advisor; shape (zones, ticks).
        first: Index of the tick at which the run starts.

    Raises:
        InputError: The advisor has no tick, or the record ends before the run does.
    """
    if advisor.tick_h is None:
        raise InputError("the advisor has no tick_h; runs over a record go by its ticks")
    advisor.begin()
    problem, tick_h = advisor.problem, advisor.tick_h
    spot_usd = dict(zip(advisor.zones, problem.spot_usd_per_hour, strict=True))
    held: tuple[Kind, str] | None = None
    done_h, starting_h, usd, ticks, started = 0.0, 0.0, 0.0, 0, 0
    while done_h < problem.work_h - _DONE_H:
        if first + ticks >= available.shape[1]:
            raise InputError(f"the record of {available.shape[1]} ticks ends before a run from tick {first} does")
        seen = dict(zip(advisor.zones, available[:, first + ticks].astype(bool).tolist(), strict=True))
        if held is not None and held[0] == "spot" and not seen[held[1]]:
            held, starting_h = None, 0.0
        advice = advisor.choose(ticks * tick_h, done_h, held, seen, starting_h)
        if advice == "wait":
            held, starting_h = None, 0.0
        else:
            kind, zone = advice
            # Every zone is seen: there is none to be looked at.
            assert kind != "look"
            if (kind, zone) != held:
                starting_h = problem.restart_h
                started += 1
            held = kind, zone
            usd += (spot_usd[zone] if kind == "spot" else problem.on_demand_usd_per_hour) * tick_h
            done_h += max(tick_h - starting_h, 0.0)
            starting_h = max(starting_h - tick_h, 0.0)
        ticks += 1
    hours = ticks * tick_h
    return AdvisedRun(usd, hours, max(hours - problem.deadline_h, 0.0), started)


@compiled
def _run(
    tables: AdvisorTables,
    task: ZoneTask,
    prior: tuple[Any, Any, Any],
    available: Any,
    tick_s: float,
    first: int,
    times_s: tuple[float, float, float],
) -> tuple[float, int, int]:
    """Cost in USD, ticks that it took (-1: the record ends before), and machines started.

    Times: until the last tick that may be used ends, and those of `AdvisorMoment`, seconds.
    """
    ages, share_up, weights = prior
    usable_s, asks_s, unseen_s = times_s
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
        now = AdvisorMoment(usable_s - ticks * tick_s, left_s, held, starting_s, up, asks_s, unseen_s)
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
