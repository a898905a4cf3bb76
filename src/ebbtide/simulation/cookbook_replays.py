"""Cookbooks played on simulated prices by the hundred thousand (Cümülön-D 5.4, 6.2).

Charges are by the tick, a change takes effect at once, and no machine is ever taken (bids at infinity).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebbtide._compiling import compiled, inner
from ebbtide.errors import InputError
from ebbtide.forecasts.price_chain import Levels
from ebbtide.market.price_series import Floats
from ebbtide.policies.cookbook.cookbook import Cookbook

_CHUNK = 2_000


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
    """Follow a cookbook from step to step: what it says at the beginning of each holds to the end of it.

    Work between two levels is taken for the upper: what can be done from there can be done from below it.

    Args:
        book: Solved for charges by the tick.
        traces: Places in its prices, shape (runs, ticks); as many ticks as its steps have.
        tick_s: How long a tick is.
        workers: Threads.

    Raises:
        InputError: The traces are shorter than the cookbook, or its charges last several steps.
    """
    ticks = _step_ticks(book, traces, tick_s)
    return _played(book, traces, tick_s, ticks, ticks, workers)


def play_dynamically(book: Cookbook, traces: Levels, tick_s: float, *, workers: int = 2) -> Played:
    """Follow a cookbook at every tick, as its dynamic mode does where charges are short (5.4).

    It is asked whenever the price has changed, a machine is about to be charged again, or half a step has passed;
    between two steps it says what lies between what it says at each, but never so few that the next step could not
    be begun in time. The arguments are those of `play_strictly`.
    """
    ticks = _step_ticks(book, traces, tick_s)
    return _played(book, traces, tick_s, ticks, 1, workers)


def _step_ticks(book: Cookbook, traces: Levels, tick_s: float) -> int:
    if book.problem.charge_steps != 1:
        raise InputError("cookbooks whose charges last several steps are played by the engine")
    return step_ticks(book, traces, tick_s)


def step_ticks(book: Cookbook, traces: Levels, tick_s: float) -> int:
    """Ticks in a step.

    Raises:
        InputError: The traces are shorter than the cookbook.
    """
    problem = book.problem
    ticks = round(problem.step_h * 3600.0 / tick_s)
    steps = problem.market.steps
    if traces.shape[1] < steps * ticks:
        raise InputError(f"traces of {traces.shape[1]} ticks are too short for {steps} steps of {ticks}")
    return ticks


def can_begin(book: Cookbook) -> np.ndarray:
    """Whether each step can be begun in time, by work left and machines held; after the last, only with none left.

    Shape (steps + 1, levels, holdings).
    """
    can = np.isfinite(book.mean_usd[..., 0])
    done = np.zeros((1, *can.shape[1:]), dtype=bool)
    done[0, 0] = True
    return np.concatenate([can, done])


def in_parts(play: Callable[..., None], given: tuple[Any, ...], traces: Levels, workers: int) -> Played:
    """Let compiled code play some traces at a time, on several threads."""
    cost, hours = np.empty(len(traces)), np.empty(len(traces))
    parts = [slice(first, first + _CHUNK) for first in range(0, len(traces), _CHUNK)]
    with ThreadPoolExecutor(workers) as pool:
        playing = [pool.submit(play, *given, traces[part], cost[part], hours[part]) for part in parts]
    for part_done in playing:
        part_done.result()
    return Played(cost, hours)


def _played(book: Cookbook, traces: Levels, tick_s: float, ticks: int, every: int, workers: int) -> Played:
    problem, workflow = book.problem, book.problem.workflow
    given = (
        book.actions,
        can_begin(book),
        problem.levels_h,
        problem.market.prices,
        workflow.speeds(problem.most),
        workflow.left_after_h(),
        workflow.start_work_h,
        workflow.stop_work_h,
        ticks,
        every,
        tick_s / 3600.0,
    )
    return in_parts(_play, given, traces, workers)


@inner
def work(
    left: float, extra: float, size: int, time: float, speeds: Any, ends_h: Any
) -> tuple[float, float, float]:
    """What is left of the work, of overhead and of the time (`Workflow.progress`)."""
    for job in range(len(ends_h)):
        own = left - ends_h[job]
        if own <= 1e-9:
            continue
        need = (own + extra) / speeds[job, size]
        if need > time:
            worked = speeds[job, size] * time
            return left - max(worked - extra, 0.0), max(extra - worked, 0.0), 0.0
        time -= need
        left, extra = ends_h[job], 0.0
    return left, extra, time


@inner
def _level(levels_h: Any, left: float) -> Any:
    level: Any = np.searchsorted(levels_h, left - 1e-9)
    return min(level, len(levels_h) - 1)


@inner
def choice(
    actions: Any,
    can: Any,
    levels_h: Any,
    speeds: Any,
    ends_h: Any,
    start_work_h: float,
    stop_work_h: float,
    step: int,
    share: float,
    step_h: float,
    price: int,
    left: float,
    extra: float,
    held: int,
) -> Any:
    """How many machines at a share of a step."""
    level, most = _level(levels_h, left), speeds.shape[1] - 1
    if not can[step, level, held]:
        return most
    size = actions[step, level, held, price] + 0
    if share > 0.0 and step + 1 < actions.shape[0] and can[step + 1, level, held]:
        after = actions[step + 1, level, held, price]
        size = math.floor((1.0 - share) * size + share * after + 0.5 + 1e-9)
    while size < most:
        then = left + extra
        if size > 0:
            spent = extra + start_work_h * max(size - held, 0) + stop_work_h * max(held - size, 0)
            then, spent, _ = work(left, spent, size, (1.0 - share) * step_h, speeds, ends_h)
            then += spent
        if can[step + 1, _level(levels_h, then), size] and then <= levels_h[-1] + 1e-9:
            break
        size += 1
    return size


@compiled
def _play(
    actions: Any,
    can: Any,
    levels_h: Any,
    prices: Any,
    speeds: Any,
    ends_h: Any,
    start_work_h: float,
    stop_work_h: float,
    ticks: int,
    every: int,
    tick_h: float,
    traces: Any,
    cost: Any,
    hours: Any,
) -> None:
    for run in range(traces.shape[0]):
        left, held, extra, usd, finished = levels_h[-1], 0, 0.0, 0.0, np.inf
        asked = -ticks
        for tick in range(actions.shape[0] * ticks):
            price = traces[run, tick]
            changed = tick == 0 or price != traces[run, tick - 1]
            due = tick % ticks == 0 if every == ticks else changed or held > 0 or 2 * (tick - asked) >= ticks
            if due:
                if tick % ticks == 0 and every == ticks:
                    # What of the overhead is not worked off in a step is work that is left (Definition 1).
                    left, extra = left + extra, 0.0
                size = choice(
                    actions,
                    can,
                    levels_h,
                    speeds,
                    ends_h,
                    start_work_h,
                    stop_work_h,
                    tick // ticks,
                    (tick % ticks) / ticks,
                    ticks * tick_h,
                    price,
                    left,
                    extra,
                    held,
                )
                if size > 0:
                    # With none there is nothing to work it off (Definition 1).
                    extra += start_work_h * max(size - held, 0) + stop_work_h * max(held - size, 0)
                held, asked = size, tick
            if held == 0:
                continue
            left, extra, unused = work(left, extra, held, tick_h, speeds, ends_h)
            usd += held * prices[price] * (tick_h - unused)
            if left <= 1e-9:
                finished = (tick + 1) * tick_h - unused
                break
        cost[run], hours[run] = usd, finished
