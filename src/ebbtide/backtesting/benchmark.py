"""`ebbtide benchmark`: every policy on every record of a folder, for each kind of work, from the same starts.

A cell is a policy on a record for a kind of work. Its regret is its mean cost over that of the cheapest policy
that missed nothing there, less 1; who missed more than that policy has saved nothing by it. The default policy is
judged by its mean and its worst regret, and must miss nothing. Who fails in a run has missed it.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ebbtide.backtesting.benchmark_records import BenchmarkRecord, UnusedFile, read_benchmark_records
from ebbtide.backtesting.benchmark_rounds import Failed, Rounds, Task
from ebbtide.backtesting.benchmark_starts import LEAST_STARTS, MOST_STARTS, CellRuns, mean_costs_usd
from ebbtide.backtesting.benchmark_work import AUCTION_STARTS, KINDS, BenchmarkWork, works_of
from ebbtide.base.cores import one_thread
from ebbtide.base.files import write_text
from ebbtide.base.json_values import json_text
from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError, PolicyError
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.api.protocol import Policy, check_fits
from ebbtide.policies.backoff import backing_off
from ebbtide.policies.for_job import policy_for
from ebbtide.policies.registry import DEFAULT_NAME, POLICIES
from ebbtide.policies.registry import policy as policy_named
from ebbtide.replay.scenario import Scenario

# Policies of the quick benchmark: simple rules, and what they are compared with.
_QUICK = ("on-demand", "cheapest-spot", "reactive", "deepspotcloud-migrate", "deadline", "next-cheapest")
_QUICK_RECORDS = 5

# A run that is not done after so many days has missed, and so has one that much later than its last deadline.
_MOST_D, _LATE_D = 8.0, 1.0

# Tasks that wait for a worker, for each of them.
_AHEAD = 4

# Where the cheapest policy paid nothing, this share of the cost of the dearest stands for its cost.
_OF_DEAREST = 0.01

# A cost above the budget by less is a rounding error.
_NO_MONEY_USD = 1e-6


@dataclass(frozen=True)
class Cell:
    """Results of a policy on one record, for one kind of work.

    Attributes:
        data: Name of the record.
        kind: Kind of work.
        policy: Name of the policy.
        cost_usd: Mean cost of a start, USD; with fewer starts than the cheapest policy, by their ratio.
        hours: Mean hours until the work was done, or until the record or the budget ended.
        misses: Starts whose work was not done in time, or not at all.
        over_budget: Starts that cost more than the budget.
        starts: Number of starts.
        regret: Mean cost over that of the cheapest policy that missed nothing, less 1; 0 at least.
    """

    data: str
    kind: str
    policy: str
    cost_usd: float
    hours: float
    misses: int
    over_budget: int
    starts: int
    regret: float = math.nan


@dataclass(frozen=True)
class PolicySummary:
    """Summary of all cells of a policy.

    Attributes:
        name: Name of the policy.
        mean_regret: Mean regret over its cells.
        worst_regret: The largest regret.
        misses: Runs that were not done in time, those in which it failed among them.
        over_budget: Runs that cost more than the budget.
        cells: Number of cells.
        failed: Cells that are missing because the policy failed.
    """

    name: str
    mean_regret: float
    worst_regret: float
    misses: int
    over_budget: int
    cells: int
    failed: int = 0


@dataclass(frozen=True)
class Benchmark:
    """All cells.

    Attributes:
        cells: By record, kind and cost.
        left_out: Files and parts of them without records, and why.
        starts: First starts of each cell; in auctions twice as many.
        unserved: Policies that cannot serve a kind of work, and why.
        failed: Policies that failed in a run, and how.
    """

    cells: tuple[Cell, ...]
    left_out: tuple[UnusedFile, ...]
    starts: int
    unserved: tuple[UnusedFile, ...] = ()
    failed: tuple[Failed, ...] = ()

    def judged(self, name: str) -> PolicySummary:
        """Summarise the cells of a policy."""
        own = [cell for cell in self.cells if cell.policy == name]
        regrets = [cell.regret for cell in own]
        failed = sum(one.policy == name for one in self.failed)
        return PolicySummary(
            name,
            float(np.mean(regrets)) if own else math.nan,
            max(regrets, default=math.nan),
            sum(cell.misses for cell in own) + failed,
            sum(cell.over_budget for cell in own),
            len(own),
            failed,
        )

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies with a cell, or a failure in its place, by mean regret."""
        names = dict.fromkeys([*(cell.policy for cell in self.cells), *(one.policy for one in self.failed)])
        return tuple(sorted(names, key=lambda name: (self.judged(name).misses > 0, self.judged(name).mean_regret)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `default` judges the default policy."""
        return {
            "cells": [asdict(cell) for cell in self.cells],
            "default": asdict(self.judged(DEFAULT_NAME)),
            "policies": [asdict(self.judged(name)) for name in self.policies],
            "starts": self.starts,
            "left_out": [asdict(one) for one in (*self.left_out, *self.unserved)],
            "failed": [asdict(one) for one in self.failed],
        }

    def write_json(self, path: str | Path) -> None:
        """Write `to_dict` as JSON, atomically."""
        write_text(path, json_text(self.to_dict()))


def benchmark(
    folder: str | Path,
    *,
    policies: Sequence[str] = (),
    kinds: Sequence[str] = KINDS,
    starts: int = 1,
    seed: int = 0,
    quick: bool = False,
    only: str = "",
    workers: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> Benchmark:
    """Replay every policy on every record of a folder, for each kind of work.

    Args:
        folder: Folder of Parquet files (see `benchmark_records`).
        policies: Names in the registry; none: all of them, and the default.
        kinds: Kinds of work, of `KINDS`.
        starts: First starts of each cell, the same for all policies; in auctions twice as many. Policies
            that these cannot tell apart get more.
        seed: Seed of the starts and of all random numbers.
        quick: A few records and simple policies, and one start.
        only: Only records with this in their name.
        workers: Number of processes.
        on_progress: Called with the number of cells done, and of all.

    Raises:
        InputError: No file of the folder has a record, or a name is unknown.
    """
    # A wrong name is told before anything is read.
    for name in policies:
        policy_named(name)
    records, left_out = read_benchmark_records(folder)
    records = [record for record in records if only in record.name]
    if not records:
        raise InputError(f"no record of {folder} has {only!r} in its name")
    names = tuple(policies) or (_QUICK if quick else tuple(POLICIES))
    if DEFAULT_NAME not in names:
        names = (DEFAULT_NAME, *names)
    if quick:
        places = np.linspace(0, len(records) - 1, min(_QUICK_RECORDS, len(records))).round().astype(int)
        records, starts = [records[place] for place in places.tolist()], 1
    chosen = tuple(records)
    kinds_of: dict[tuple[int, int], str] = {}
    rounds: dict[tuple[int, int], Rounds] = {}
    for number, record in enumerate(chosen):
        works = works_of(record, kinds, MOST_STARTS, seed)
        missing = [kind for kind in kinds if kind not in {work.kind for work in works}]
        left_out += [UnusedFile(f"{record.name}: {kind}", "too few machines at once") for kind in missing]
        for place, work in enumerate(works):
            kinds_of[number, place] = work.kind
            first = 1 if quick else starts * (AUCTION_STARTS if record.is_auction else 1)
            where, first = (number, place), min(first, MOST_STARTS)
            most, least = (1, 1) if quick else (MOST_STARTS, LEAST_STARTS if work.promises else 1)
            rounds[where] = Rounds(where, names, DEFAULT_NAME, first, most, least)
    first_tasks = [task for one in rounds.values() for task in one.tasks]
    done, total = 0, len(first_tasks)

    def note(task: Task, found: CellRuns | UnusedFile) -> Sequence[Task]:
        nonlocal done, total
        more = rounds[task.record, task.work].note(task, found)
        done, total = done + 1, total + len(more)
        if on_progress:
            on_progress(done, total)
        return more

    _replay_all(first_tasks, note, _Replayed(chosen, tuple(kinds), seed), workers)
    cells = [
        cell
        for (number, place), one in rounds.items()
        if one.replays
        for cell in _cells(chosen[number].name, kinds_of[number, place], one.replays)
    ]
    none = [one for each in rounds.values() for one in each.left_out]
    failed = tuple(one for one in none if isinstance(one, Failed))
    unserved = tuple(one for one in none if not isinstance(one, Failed))
    return Benchmark(_with_regrets(cells), tuple(left_out), starts, unserved, failed)


def _cells(record: str, kind: str, group: Mapping[str, CellRuns]) -> list[Cell]:
    """The cells of a group, their regrets not known yet."""
    means_usd = mean_costs_usd(group)
    return [
        Cell(
            record,
            kind,
            name,
            means_usd[name],
            float(np.mean(one.hours)),
            one.misses,
            one.over_budget,
            one.starts,
        )
        for name, one in group.items()
    ]


@dataclass(frozen=True)
class _Replayed:
    """Records and kinds of work that a process replays."""

    records: tuple[BenchmarkRecord, ...] = ()
    kinds: tuple[str, ...] = ()
    seed: int = 0
    # The works of each record, once they are asked for.
    works: dict[int, tuple[BenchmarkWork, ...]] = field(default_factory=dict)

    def works_of(self, number: int) -> tuple[BenchmarkWork, ...]:
        """The works of a record, by its index."""
        if number not in self.works:
            self.works[number] = works_of(self.records[number], self.kinds, MOST_STARTS, self.seed)
        return self.works[number]


_REPLAYED = _Replayed()


def _replay_all(
    tasks: Sequence[Task],
    note: Callable[[Task, CellRuns | UnusedFile], Sequence[Task]],
    replayed: _Replayed,
    workers: int,
) -> None:
    """Replay tasks, and those that come of them, which are begun first: the longest cells are not the last."""
    queue = deque(tasks)
    if workers < 2:
        _begin(replayed)
        with one_thread():
            while queue:
                task = queue.popleft()
                queue.extendleft(reversed(note(task, _replays(task))))
        return
    # Workers get the records once, whole: reading and cutting them takes longer than many a cell.
    how = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(workers, how, _begin_worker, (replayed,)) as pool:
        waiting: dict[Future[CellRuns | UnusedFile], Task] = {}
        try:
            while queue or waiting:
                while queue and len(waiting) < _AHEAD * workers:
                    task = queue.popleft()
                    waiting[pool.submit(_replays, task)] = task
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    queue.extendleft(reversed(note(waiting.pop(future), future.result())))
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(replayed: _Replayed) -> None:
    global _REPLAYED
    _REPLAYED = replayed


def _begin_worker(replayed: _Replayed) -> None:
    # What policies say of each run would be said a thousand times.
    logging.disable(logging.WARNING)
    _begin(replayed)


def _replays(task: Task) -> CellRuns | UnusedFile:
    record, seed = _REPLAYED.records[task.record], _REPLAYED.seed
    work = _REPLAYED.works_of(task.record)[task.work]
    where = f"{record.name}: {work.kind}: {task.policy}"
    try:
        policy = policy_for(work.asked, task.policy, catalogue=record.catalogue)
        check_fits(policy, work.jobs)
        return replays_of(record, work, policy, work.starts_s[task.first : task.end], seed)
    except InputError as error:
        return UnusedFile(where, error.problem)
    except PolicyError as error:
        # A defect of one policy; the others are still to be judged.
        return Failed(where, str(error), task.policy)


def replays_of(
    record: BenchmarkRecord, work: BenchmarkWork, policy: Policy, starts_s: Sequence[float], seed: int = 0
) -> CellRuns:
    """The runs of one policy from some starts, seconds since 1970.

    Raises:
        InputError: The policy refuses the work.
    """
    # As in live runs, none asks a market that refuses again and again.
    asked = backing_off(policy)
    outcomes = [_replayed(record, work, asked, start_s, seed) for start_s in starts_s]
    most_usd = math.inf if work.asked.budget_usd is None else work.asked.budget_usd + _NO_MONEY_USD
    return CellRuns(
        tuple(outcome.cost_usd for outcome in outcomes),
        tuple(outcome.makespan_s / HOUR_S for outcome in outcomes),
        sum(not _is_kept(outcome, work) for outcome in outcomes),
        sum(outcome.cost_usd > most_usd for outcome in outcomes),
    )


def _replayed(record: BenchmarkRecord, work: BenchmarkWork, policy: Policy, start_s: float, seed: int) -> Outcome:
    """Replay a policy from one start; a run that takes far longer than any of this work may is cut off."""
    prices = record.prices
    due_s = max(work.due_h) * HOUR_S + _LATE_D * DAY_S
    ends_s = min(start_s + min(_MOST_D * DAY_S, due_s), prices.end_s)
    scenario = Scenario(
        work.jobs,
        prices.window(prices.start_s, ends_s),
        record.billing,
        record.availability,
        catalogue=record.catalogue,
        seed=seed,
        curves=work.curves,
        goals=Goals.of(work.asked),
    )
    return scenario.run(policy, start_s)


def _is_kept(outcome: Outcome, work: BenchmarkWork) -> bool:
    """Return whether all jobs finished, each in its time."""
    if not outcome.finished:
        return False
    pairs = zip(outcome.jobs, work.due_h, strict=True)
    return all(job.finished_s - outcome.start_s <= due_h * HOUR_S + 1.0 for job, due_h in pairs)


def _with_regrets(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The cells with their regrets, by record, kind and cost."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.data, cell.kind), []).append(cell)
    found: list[Cell] = []
    for group in groups.values():
        # Where every policy missed something, those that missed least are the measure.
        least = min(cell.misses + cell.over_budget for cell in group)
        best_usd = min(cell.cost_usd for cell in group if cell.misses + cell.over_budget == least)
        if best_usd <= 0.0:
            # All that it used was refunded; what others pay is compared with a part of what the dearest pays.
            best_usd = _OF_DEAREST * max(cell.cost_usd for cell in group)
        for cell in sorted(group, key=lambda cell: (cell.cost_usd, cell.policy)):
            regret = cell.cost_usd / best_usd - 1.0 if best_usd > 0.0 else 0.0
            # Who is cheaper than the measure has missed more than it: that is not to save.
            found.append(replace(cell, regret=max(regret, 0.0)))
    return tuple(found)
