"""Cookbooks played on simulated prices by the hundred thousand, in strict mode (Cümülön-D 5.4, 6.2)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebbtide.compiling import compiled
from ebbtide.errors import InputError
from ebbtide.market.price_chain import Levels
from ebbtide.market.price_series import Floats
from ebbtide.policies.cookbook.cookbook import Cookbook

_CHUNK = 5_000


@dataclass(frozen=True, eq=False)
class Played:
    """What came of a cookbook, a value for each trace.

    Attributes:
        cost_usd: Charged tick by tick.
        hours: Until all was done; infinity: the deadline was missed.
    """

    cost_usd: Floats
    hours: Floats

    @property
    def missed(self) -> int:
        """How many deadlines."""
        return int(np.isinf(self.hours).sum())


def play_strictly(book: Cookbook, traces: Levels, tick_s: float, *, workers: int = 2) -> Played:
    """Follow a cookbook from step to step, charged by the tick, no machine ever taken (bids at infinity).

    Work between two levels is taken for the upper: what can be done from there can be done from below it.

    Args:
        book: Solved for charges by the tick.
        traces: Places in its prices, shape (runs, ticks); as many ticks as its steps have.
        tick_s: How long a tick is.
        workers: Threads.

    Raises:
        InputError: The traces are shorter than the cookbook, or charges last longer than a step.
    """
    problem = book.problem
    ticks = round(problem.step_h * 3600.0 / tick_s)
    steps = problem.market.steps
    if problem.charge_steps != 1:
        raise InputError("cookbooks whose charges last several steps are played by the engine")
    if traces.shape[1] < steps * ticks:
        raise InputError(f"traces of {traces.shape[1]} ticks are too short for {steps} steps of {ticks}")
    workflow = problem.workflow
    ends_h = np.array([workflow.work_h - done for done in np.cumsum([job.work_h for job in workflow.jobs])])
    cost, hours = np.empty(len(traces)), np.empty(len(traces))
    given = (book.actions, problem.levels_h, problem.market.prices, workflow.speeds(problem.most), ends_h,
             workflow.start_work_h, workflow.stop_work_h, ticks, tick_s / 3600.0)  # fmt: skip
    parts = [slice(first, first + _CHUNK) for first in range(0, len(traces), _CHUNK)]
    with ThreadPoolExecutor(workers) as pool:
        done = [pool.submit(_play, *given, traces[part], cost[part], hours[part]) for part in parts]
    for part_done in done:
        part_done.result()
    return Played(cost, hours)


@compiled
def _play(
    actions: Any, levels_h: Any, prices: Any, speeds: Any, ends_h: Any, start_work_h: float, stop_work_h: float,
    ticks: int, tick_h: float, traces: Any, cost: Any, hours: Any,
) -> None:  # fmt: skip
    steps = actions.shape[0]
    for run in range(traces.shape[0]):
        left, held, usd, finished = levels_h[-1], 0, 0.0, np.inf
        for step in range(steps):
            level = 0
            while levels_h[level] < left - 1e-9:
                level += 1
            size = actions[step, level, held, traces[run, step * ticks]]
            extra = start_work_h * max(size - held, 0) + stop_work_h * max(held - size, 0)
            for tick in range(ticks):
                if size == 0:
                    break
                usd_tick = size * prices[traces[run, step * ticks + tick]] * tick_h
                time = tick_h
                for job in range(len(ends_h)):
                    own = left - ends_h[job]
                    if own <= 1e-9:
                        continue
                    need = (own + extra) / speeds[job, size]
                    if need > time:
                        worked = speeds[job, size] * time
                        left -= max(worked - extra, 0.0)
                        extra = max(extra - worked, 0.0)
                        time = 0.0
                        break
                    time -= need
                    left, extra = ends_h[job], 0.0
                usd += usd_tick * (1.0 - time / tick_h)
                if left <= 1e-9:
                    finished = (step * ticks + tick + 1) * tick_h - time
                    break
            # What of the overhead is not worked off is work that is left (Definition 1).
            left += extra if size > 0 else 0.0
            held = size
            if finished < np.inf:
                break
        cost[run], hours[run] = usd, finished
