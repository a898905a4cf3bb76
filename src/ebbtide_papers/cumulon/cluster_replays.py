"""Clusters on simulated prices as Amazon charged for them: whole periods, delays, bids (Cümülön-D, 6.5 to 6.8).

A requested machine starts after the delay, if its bid is then not below the price, and is charged by whole periods
from then on. It is revoked at once when the price exceeds its bid, its last partial period free of charge. One
that is released stops at the end of a period that is paid (delayed release, 5.4). Decisions are made the delay
ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ebbtide.base.compiled_records import Book, Books, ClusterRules, MachineBatches
from ebbtide.base.compiling import compiled, inner
from ebbtide.forecasts.price_chain import Levels
from ebbtide.policies.cookbook.bids import Bids
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide_papers.cumulon.cookbook_replays import CookbookCosts, book_of, choice, in_parts, step_ticks, work

# Room for groups of machines that were requested together.
_MOST_BATCHES = 512


@dataclass(frozen=True)
class Rules:
    """Rules by which a cluster is run and charged.

    Attributes:
        tick_s: Length of a tick in seconds.
        period_ticks: Number of ticks in a charge period.
        delay_ticks: Number of ticks from a decision to its effect.
        fixed_size: Number of machines to hold always; 0: as the cookbook says.
        on_demand_usd: Price of an on-demand machine, USD per hour; infinity: none is used.
    """

    tick_s: float = 300.0
    period_ticks: int = 12
    delay_ticks: int = 2
    fixed_size: int = 0
    on_demand_usd: float = np.inf


def play_cluster(
    book: Cookbook, traces: Levels, bids: Bids, rules: Rules | None = None, *, workers: int = 2
) -> CookbookCosts:
    """Run a cluster on every trace, by a cookbook in dynamic mode or at a fixed size.

    On-demand machines, where they are used, are rented while spot costs more, and where another try for spot would
    come too late for the deadline.

    Args:
        book: The cookbook to follow; for a fixed size, only its workflow and deadline are used.
        traces: Indices of its prices; shape (runs, ticks).
        bids: Bids for spot machines by step and work left.
        rules: How machines are started and charged; None for the defaults.
        workers: Number of threads to use.

    Raises:
        InputError: The traces are shorter than the cookbook.
    """
    given = rules or Rules()
    ticks = step_ticks(book, traces, given.tick_s)
    plain = book_of(book, ticks, given.tick_s, max(book.problem.most, given.fixed_size))
    charging = ClusterRules(
        bids.table, given.period_ticks, given.delay_ticks, given.fixed_size, given.on_demand_usd
    )
    return in_parts(_play, (plain, charging), traces, workers)


@inner
def _has_gone(comes: int, tick: int, ahead: int, period: int) -> bool:
    """Return whether a batch is charged in ticks `tick` to `ahead`, so that machines leaving then have gone."""
    return comes < ahead and (ahead - comes) // period > (tick - 1 - comes) // period


@inner
def _move_batch(batches: MachineBatches, source: int, target: int) -> None:
    if source != target:
        batches.count[target], batches.comes[target] = batches.count[source], batches.comes[source]
        batches.bid[target], batches.going[target] = batches.bid[source], batches.going[source]
        batches.listed[target], batches.paid[target] = batches.listed[source], batches.paid[source]


@inner
def _revoke(
    batches: MachineBatches, number: int, tick: int, price: float, period: int, stop_work_h: float, books: Books
) -> tuple[int, Books]:
    """Remove batches whose bid is below the price, their partial period free of charge.

    Returns:
        Number of batches left, overhead and cost after that.
    """
    extra, usd, kept = books.extra, books.usd, 0
    for n in range(number):
        count, comes = batches.count[n], batches.comes[n]
        if comes <= tick and not batches.listed[n] and batches.bid[n] < price:
            if comes < tick:
                extra += stop_work_h * count
            if (tick - comes) % period:
                usd -= count * batches.paid[n]
        else:
            _move_batch(batches, n, kept)
            kept += 1
    return kept, Books(extra, usd)


@inner
def _present(batches: MachineBatches, number: int, effect: int, period: int) -> tuple[int, int, int]:
    """Machines present when a change takes effect: all, those that can be revoked, those about to be charged."""
    held, unsure, due = 0, 0, 0
    for n in range(number):
        staying = batches.count[n] - batches.going[n]
        held += staying
        if not batches.listed[n] and batches.bid[n] < np.inf:
            unsure += staying
        if batches.comes[n] < effect and (effect - batches.comes[n]) % period == 0:
            due += staying
    return held, unsure, due


@inner
def _left_then(
    batches: MachineBatches, number: int, tick: int, left: float, extra: float, book: Book, rules: ClusterRules
) -> tuple[float, float]:
    """Work and overhead left when a change takes effect, machine-hours, if no machine is revoked until then."""
    count, comes, going = batches.count, batches.comes, batches.going
    most = book.speeds.shape[1] - 1
    for ahead in range(tick, tick + rules.delay):
        running = 0
        for n in range(number):
            if comes[n] <= ahead:
                running += count[n] - (going[n] if _has_gone(comes[n], tick, ahead, rules.period) else 0)
                if comes[n] == ahead:
                    extra += book.start_work_h * count[n]
        if running > 0:
            left, extra, _ = work(left, extra, min(running, most), book.tick_h, book.speeds, book.ends_h)
    return left, extra


@inner
def _release(
    batches: MachineBatches,
    number: int,
    effect: int,
    free: int,
    wants_listed: bool,
    urgent: bool,
    rules: ClusterRules,
) -> int:
    """Mark machines that stop at the end of their period: those too many, and those of the more expensive kind.

    Returns:
        Number of machines of the more expensive kind, to be replaced.
    """
    count, going, listed = batches.count, batches.going, batches.listed
    swapped = 0
    for n in range(number):
        if batches.comes[n] < effect and (effect - batches.comes[n]) % rules.period == 0:
            if urgent and not listed[n] and batches.bid[n] < np.inf:
                # It can be revoked, so it is not relied on any more.
                going[n] = count[n]
                continue
            goes = min(free, count[n] - going[n])
            free -= goes
            if listed[n] != wants_listed and rules.on_demand_usd < np.inf:
                swapped += count[n] - going[n] - goes
                goes = count[n] - going[n]
            going[n] += goes
    return swapped


@inner
def _decide(
    batches: MachineBatches,
    number: int,
    tick: int,
    place: int,
    left: float,
    extra: float,
    book: Book,
    rules: ClusterRules,
) -> int:
    """Release and request machines, with effect the delay ahead; returns the number of batches."""
    ticks, tick_h, most, effect = book.ticks, book.tick_h, book.speeds.shape[1] - 1, tick + rules.delay
    price, last = book.prices[place], book.actions.shape[0] * ticks
    step, share = effect // ticks, (effect % ticks) / ticks
    held, unsure, _ = _present(batches, number, effect, rules.period)
    then, spent = _left_then(batches, number, tick, left, extra, book, rules)
    # Urgent: the deadline could not be met if all machines that can be revoked were revoked just before the next
    # decision, which is at most half a step from now.
    rest_h = max(last - (effect + ticks // 2 + rules.delay), 0) * tick_h
    undone, _, _ = work(then, spent + book.start_work_h * most, most, rest_h, book.speeds, book.ends_h)
    urgent = undone > 1e-9
    if urgent:
        held -= unsure
    size = rules.fixed_size
    if rules.fixed_size == 0:
        size = choice(book, step, share, place, then, spent, min(held, most))
    level = min(np.searchsorted(book.levels_h, then - 1e-9), len(book.levels_h) - 1)
    wants_listed = rules.on_demand_usd < np.inf and (price > rules.on_demand_usd or urgent)
    offer = np.inf if urgent else rules.bids[step, level]
    swapped = _release(batches, number, effect, max(held - size, 0), wants_listed, urgent, rules)
    more = max(size - held, 0) + swapped
    if more > 0 and number < _MOST_BATCHES and (wants_listed or offer >= price):
        batches.count[number], batches.comes[number], batches.bid[number] = more, effect, offer
        batches.going[number], batches.listed[number], batches.paid[number] = 0, wants_listed, 0.0
        number += 1
    return number


@inner
def _charge(
    batches: MachineBatches, number: int, tick: int, price: float, book: Book, rules: ClusterRules, books: Books
) -> tuple[int, int, Books]:
    """Start, charge and stop machines at a tick.

    Returns:
        Number of batches left, number of machines that run, overhead and cost after that.
    """
    count, going, comes, paid = batches.count, batches.going, batches.comes, batches.paid
    extra, usd, kept, running = books.extra, books.usd, 0, 0
    for n in range(number):
        if comes[n] <= tick and (tick - comes[n]) % rules.period == 0:
            if comes[n] == tick:
                extra += book.start_work_h * count[n]
            else:
                extra += book.stop_work_h * going[n]
                count[n] -= going[n]
            going[n] = 0
            paid[n] = (rules.on_demand_usd if batches.listed[n] else price) * rules.period * book.tick_h
            usd += count[n] * paid[n]
        if count[n] > 0:
            if comes[n] <= tick:
                running += count[n]
            _move_batch(batches, n, kept)
            kept += 1
    return kept, running, Books(extra, usd)


@compiled
def _play(book: Book, rules: ClusterRules, traces: Any, cost: Any, hours: Any) -> None:
    """Fill in cost in USD and hours of each trace."""
    ticks, most = book.ticks, book.speeds.shape[1] - 1
    last = book.actions.shape[0] * ticks
    batches = MachineBatches(
        np.zeros(_MOST_BATCHES, np.int64),
        np.zeros(_MOST_BATCHES, np.int64),
        np.zeros(_MOST_BATCHES),
        np.zeros(_MOST_BATCHES, np.int64),
        np.zeros(_MOST_BATCHES, np.bool_),
        np.zeros(_MOST_BATCHES),
    )
    for run in range(traces.shape[0]):
        number, left, books, finished, asked = 0, book.levels_h[-1], Books(0.0, 0.0), np.inf, -ticks
        for tick in range(last):
            place = traces[run, tick]
            price = book.prices[place]
            kept, books = _revoke(batches, number, tick, price, rules.period, book.stop_work_h, books)
            changed = tick == 0 or place != traces[run, tick - 1] or kept < number
            number = kept
            effect = tick + rules.delay
            if effect < last:
                due = _present(batches, number, effect, rules.period)[2]
                if changed or due > 0 or 2 * (tick - asked) >= ticks:
                    asked = tick
                    number = _decide(batches, number, tick, place, left, books.extra, book, rules)
            number, running, books = _charge(batches, number, tick, price, book, rules, books)
            if running > 0:
                size = min(running, most)
                left, extra, unused = work(left, books.extra, size, book.tick_h, book.speeds, book.ends_h)
                books = Books(extra, books.usd)
                if left <= 1e-9:
                    finished = (tick + 1) * book.tick_h - unused
                    break
        cost[run], hours[run] = books.usd, finished
