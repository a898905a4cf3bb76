"""Cookbooks played on simulated prices by the hundred thousand (Cümülön-D 5.4, 6.2).

Charges are by the tick, a change takes effect at once, and no machine is ever revoked (bids at infinity).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebbtide.base.compiled_records import Book
from ebbtide.base.compiling import compiled, inner
from ebbtide.errors import InputError
from ebbtide.forecasts.price_chain import Levels
from ebbtide.market.price_series import Floats
from ebbtide.policies.cookbook.cookbook import Cookbook

_CHUNK = 2_000


@dataclass(frozen=True, eq=False)
class CookbookCosts:
    """Results of a cookbook, with one value for each trace.

    Attributes:
        cost_usd: Cost in USD, charged tick by tick; shape (runs,).
        hours: Hours until all work was done, infinity if the deadline was missed; shape (runs,).
    """

    cost_usd: Floats
    hours: Floats

    @property
    def missed(self) -> int:
        """The number of traces on which the deadline was missed."""
        return int(np.isinf(self.hours).sum())


def play_strictly(book: Cookbook, traces: Levels, tick_s: float, *, workers: int = 2) -> CookbookCosts:
    """Follow a cookbook from step to step: its action at the beginning of each holds to the step's end.

    Work between two levels is rounded up to the upper: what can be done from there can be done from below it.

    Args:
        book: A cookbook solved for charges by the tick.
        traces: Indices of its prices, shape (runs, ticks); at least as many ticks as its steps have.
        tick_s: Length of a tick in seconds.
        workers: Number of threads to use.

    Raises:
        InputError: The traces are shorter than the cookbook, or its charges last several steps.
    """
    ticks = _step_ticks(book, traces, tick_s)
    return _played(book, traces, tick_s, ticks, ticks, workers)


def play_dynamically(book: Cookbook, traces: Levels, tick_s: float, *, workers: int = 2) -> CookbookCosts:
    """Follow a cookbook at every tick, as its dynamic mode does where charges are short (5.4).

    It is asked whenever the price has changed, a machine is about to be charged again, or half a step has passed.
    Between two steps its actions are interpolated, but are never so few machines that the next step could not be
    begun in time. The arguments are those of `play_strictly`.
    """
    ticks = _step_ticks(book, traces, tick_s)
    return _played(book, traces, tick_s, ticks, 1, workers)


def _step_ticks(book: Cookbook, traces: Levels, tick_s: float) -> int:
    if book.problem.charge_steps != 1:
        raise InputError("cookbooks whose charges last several steps are played by the engine")
    return step_ticks(book, traces, tick_s)


def step_ticks(book: Cookbook, traces: Levels, tick_s: float) -> int:
    """The number of ticks in a step.

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
    """Table of whether each step can begin in time, by work left and machines held; after the last, no work left.

    Shape (steps + 1, levels, holdings).
    """
    can = np.isfinite(book.mean_usd[..., 0])
    done = np.zeros((1, *can.shape[1:]), dtype=bool)
    done[0, 0] = True
    return np.concatenate([can, done])


def in_parts(play: Callable[..., None], given: tuple[Any, ...], traces: Levels, workers: int) -> CookbookCosts:
    """Run a compiled function on several threads, each on some traces at a time."""
    cost, hours = np.empty(len(traces)), np.empty(len(traces))
    parts = [slice(first, first + _CHUNK) for first in range(0, len(traces), _CHUNK)]
    with ThreadPoolExecutor(workers) as pool:
        playing = [pool.submit(play, *given, traces[part], cost[part], hours[part]) for part in parts]
    for part_done in playing:
        part_done.result()
    return CookbookCosts(cost, hours)


def book_of(book: Cookbook, ticks: int, tick_s: float, most: int) -> Book:
    """A cookbook as compiled code takes it.

    Args:
        book: The cookbook to follow.
        ticks: Number of ticks in a step.
        tick_s: Length of a tick in seconds.
        most: Largest number of machines that speeds are needed for.
    """
    problem, workflow = book.problem, book.problem.workflow
    return Book(
        book.actions,
        can_begin(book),
        problem.levels_h,
        problem.market.prices,
        workflow.speeds(most),
        workflow.left_after_h(),
        workflow.start_work_h,
        workflow.stop_work_h,
        ticks,
        tick_s / 3600.0,
    )


def _played(book: Cookbook, traces: Levels, tick_s: float, ticks: int, every: int, workers: int) -> CookbookCosts:
    return in_parts(_play, (book_of(book, ticks, tick_s, book.problem.most), every), traces, workers)


@inner
def work(
    left: float, extra: float, size: int, time: float, speeds: Any, ends_h: Any
) -> tuple[float, float, float]:
    """Work and overhead (machine-hours) and time (hours) left after working, as in `Workflow.progress`."""
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
    """The index of the level of work left; between two levels, the upper."""
    level: Any = np.searchsorted(levels_h, left - 1e-9)
    return min(level, len(levels_h) - 1)


@inner
def choice(book: Book, step: int, share: float, price: int, left: float, extra: float, held: int) -> Any:
    """The number of machines to hold at a share of a step.

    Args:
        book: The cookbook to follow.
        step: Index of the step.
        share: Share of the step that has passed, 0 to 1.
        price: Index of the price.
        left: Work left in machine-hours.
        extra: Overhead left in machine-hours.
        held: Number of machines held so far.
    """
    actions, can, levels_h, speeds, ends_h = book.actions, book.can, book.levels_h, book.speeds, book.ends_h
    level, most = _level(levels_h, left), speeds.shape[1] - 1
    if not can[step, level, held]:
        return most
    size = actions[step, level, held, price] + 0
    if share > 0.0 and step + 1 < actions.shape[0] and can[step + 1, level, held]:
        after = actions[step + 1, level, held, price]
        size = math.floor((1.0 - share) * size + share * after + 0.5 + 1e-9)
    rest_h = (1.0 - share) * (book.ticks * book.tick_h)
    while size < most:
        then = left + extra
        if size > 0:
            spent = extra + book.start_work_h * max(size - held, 0) + book.stop_work_h * max(held - size, 0)
            then, spent, _ = work(left, spent, size, rest_h, speeds, ends_h)
            then += spent
        if can[step + 1, _level(levels_h, then), size] and then <= levels_h[-1] + 1e-9:
            break
        size += 1
    return size


@compiled
def _play(book: Book, every: int, traces: Any, cost: Any, hours: Any) -> None:
    """Fill in cost in USD and hours of each trace; `every` is the number of ticks between decisions."""
    levels_h, prices, speeds, ends_h = book.levels_h, book.prices, book.speeds, book.ends_h
    ticks, tick_h, start_work_h, stop_work_h = book.ticks, book.tick_h, book.start_work_h, book.stop_work_h
    for run in range(traces.shape[0]):
        left, held, extra, usd, finished = levels_h[-1], 0, 0.0, 0.0, np.inf
        asked = -ticks
        for tick in range(book.actions.shape[0] * ticks):
            price = traces[run, tick]
            changed = tick == 0 or price != traces[run, tick - 1]
            due = tick % ticks == 0 if every == ticks else changed or held > 0 or 2 * (tick - asked) >= ticks
            if due:
                if tick % ticks == 0 and every == ticks:
                    # Overhead that is not worked off in a step becomes work left (Definition 1).
                    left, extra = left + extra, 0.0
                size = choice(book, tick // ticks, (tick % ticks) / ticks, price, left, extra, held)
                if size > 0:
                    # Without machines nothing works it off (Definition 1).
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
