"""Clusters on simulated prices as Amazon charged for them: whole periods, delays, bids (Cümülön-D, 6.5 to 6.8).

A machine asked for comes after the delay, if its bid is then not below the price, and is charged by whole periods
from there on; it goes at once when the price exceeds its bid, its last partial period free of charge. One that is
given back goes at the end of a period that is paid (delayed release, 5.4). Decisions are made the delay ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ebbtide._compiling import compiled, inner
from ebbtide.forecasts.price_chain import Levels
from ebbtide.policies.cookbook.bids import Bids
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.simulation.cookbook_replays import Played, can_begin, choice, in_parts, step_ticks, work

_MOST_BATCHES = 512


@dataclass(frozen=True)
class Rules:
    """How a cluster is run and charged.

    Attributes:
        tick_s: How long a tick is.
        period_ticks: A charge period.
        delay_ticks: From asking for a change to its effect.
        fixed_size: So many machines always, instead of what the cookbook says.
        on_demand_usd: Of an hour on demand; infinity: there is none.
    """

    tick_s: float = 300.0
    period_ticks: int = 12
    delay_ticks: int = 2
    fixed_size: int = 0
    on_demand_usd: float = np.inf


def play_cluster(
    book: Cookbook, traces: Levels, bids: Bids, rules: Rules | None = None, *, workers: int = 2
) -> Played:
    """Run a cluster on every trace, by a cookbook in dynamic mode or at a fixed size.

    On demand, where there is that, is taken while spot costs more, and where another try for spot would come too
    late for the deadline.

    Args:
        book: What to do; of a fixed size only its workflow and deadline count.
        traces: Places in its prices, shape (runs, ticks).
        bids: For spot machines.
        rules: Of running and charging.
        workers: Threads.

    Raises:
        InputError: The traces are shorter than the cookbook.
    """
    given = rules or Rules()
    problem, workflow = book.problem, book.problem.workflow
    ticks = step_ticks(book, traces, given.tick_s)
    arguments = (
        book.actions,
        can_begin(book),
        problem.levels_h,
        problem.market.prices,
        workflow.speeds(max(problem.most, given.fixed_size)),
        workflow.left_after_h(),
        workflow.start_work_h,
        workflow.stop_work_h,
        bids.table,
        ticks,
        given.tick_s / 3600.0,
        given.period_ticks,
        given.delay_ticks,
        given.fixed_size,
        given.on_demand_usd,
    )
    return in_parts(_play, arguments, traces, workers)


@inner
def _has_gone(comes: int, tick: int, ahead: int, period: int) -> bool:
    """Whether a batch's charge comes between a tick and one ahead: what was to go at it has gone."""
    return comes < ahead and (ahead - comes) // period > (tick - 1 - comes) // period


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
    bids: Any,
    ticks: int,
    tick_h: float,
    period: int,
    delay: int,
    fixed_size: int,
    on_demand_usd: float,
    traces: Any,
    cost: Any,
    hours: Any,
) -> None:
    steps, most = actions.shape[0], speeds.shape[1] - 1
    last = steps * ticks
    # Batches of machines: how many, when they come, up to what price, how many of them go at their next charge,
    # whether they are on demand, what their period cost.
    count, comes = np.zeros(_MOST_BATCHES, np.int64), np.zeros(_MOST_BATCHES, np.int64)
    bid, going = np.zeros(_MOST_BATCHES), np.zeros(_MOST_BATCHES, np.int64)
    listed, paid = np.zeros(_MOST_BATCHES, np.bool_), np.zeros(_MOST_BATCHES)
    for run in range(traces.shape[0]):
        batches, left, extra, usd, finished, asked = 0, levels_h[-1], 0.0, 0.0, np.inf, -ticks
        for tick in range(last):
            place = traces[run, tick]
            price = prices[place]
            changed = tick == 0 or place != traces[run, tick - 1]
            # What the price takes.
            kept = 0
            for n in range(batches):
                if comes[n] <= tick and not listed[n] and bid[n] < price:
                    if comes[n] < tick:
                        extra += stop_work_h * count[n]
                    if (tick - comes[n]) % period:
                        usd -= count[n] * paid[n]
                    changed = True
                else:
                    if kept != n:
                        count[kept], comes[kept], bid[kept] = count[n], comes[n], bid[n]
                        going[kept], listed[kept], paid[kept] = going[n], listed[n], paid[n]
                    kept += 1
            batches = kept
            # What will be there when a change takes effect, what of it may be taken, what is about to be charged.
            effect = tick + delay
            held, unsure, due = 0, 0, 0
            for n in range(batches):
                held += count[n] - going[n]
                if not listed[n] and bid[n] < np.inf:
                    unsure += count[n] - going[n]
                if comes[n] < effect and (effect - comes[n]) % period == 0:
                    due += count[n] - going[n]
            if effect < last and (changed or due > 0 or 2 * (tick - asked) >= ticks):
                asked = tick
                step, share = effect // ticks, (effect % ticks) / ticks
                then, spent = left, extra
                for ahead in range(tick, effect):
                    running = 0
                    for n in range(batches):
                        if comes[n] <= ahead:
                            running += count[n] - (going[n] if _has_gone(comes[n], tick, ahead, period) else 0)
                            if comes[n] == ahead:
                                spent += start_work_h * count[n]
                    if running > 0:
                        then, spent, _ = work(then, spent, min(running, most), tick_h, speeds, ends_h)
                # Whether the deadline could not be met if all that can be taken went just before this is asked
                # again, at most half a step from now.
                rest_h = max(last - (effect + ticks // 2 + delay), 0) * tick_h
                undone, _, _ = work(then, spent + start_work_h * most, most, rest_h, speeds, ends_h)
                urgent = undone > 1e-9
                if urgent:
                    held -= unsure
                size = fixed_size
                if fixed_size == 0:
                    size = choice(
                        actions,
                        can,
                        levels_h,
                        speeds,
                        ends_h,
                        start_work_h,
                        stop_work_h,
                        step,
                        share,
                        ticks * tick_h,
                        place,
                        then,
                        spent,
                        min(held, most),
                    )
                level = min(np.searchsorted(levels_h, then - 1e-9), len(levels_h) - 1)
                wants_listed = on_demand_usd < np.inf and (price > on_demand_usd or urgent)
                offer = np.inf if urgent else bids[step, level]
                # At the end of their period go those that are too many, and those of the kind that is dearer now.
                free = max(held - size, 0)
                swapped = 0
                for n in range(batches):
                    if comes[n] < effect and (effect - comes[n]) % period == 0:
                        if urgent and not listed[n] and bid[n] < np.inf:
                            # It is not counted on any more.
                            going[n] = count[n]
                            continue
                        goes = min(free, count[n] - going[n])
                        free -= goes
                        if listed[n] != wants_listed and on_demand_usd < np.inf:
                            swapped += count[n] - going[n] - goes
                            goes = count[n] - going[n]
                        going[n] += goes
                more = max(size - held, 0) + swapped
                if more > 0 and batches < _MOST_BATCHES and (wants_listed or offer >= price):
                    count[batches], comes[batches], bid[batches] = more, effect, offer
                    going[batches], listed[batches], paid[batches] = 0, wants_listed, 0.0
                    batches += 1
            # What comes, what is charged, what goes.
            kept, running = 0, 0
            for n in range(batches):
                if comes[n] <= tick and (tick - comes[n]) % period == 0:
                    if comes[n] == tick:
                        extra += start_work_h * count[n]
                    else:
                        extra += stop_work_h * going[n]
                        count[n] -= going[n]
                    going[n] = 0
                    paid[n] = (on_demand_usd if listed[n] else price) * period * tick_h
                    usd += count[n] * paid[n]
                if count[n] > 0:
                    if comes[n] <= tick:
                        running += count[n]
                    if kept != n:
                        count[kept], comes[kept], bid[kept] = count[n], comes[n], bid[n]
                        going[kept], listed[kept], paid[kept] = going[n], listed[n], paid[n]
                    kept += 1
            batches = kept
            if running > 0:
                left, extra, unused = work(left, extra, min(running, most), tick_h, speeds, ends_h)
                if left <= 1e-9:
                    finished = (tick + 1) * tick_h - unused
                    break
        cost[run], hours[run] = usd, finished
