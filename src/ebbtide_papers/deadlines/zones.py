"""Deadlines with several zones: every policy and the optimum from the same starts, with costs of moves.

The first third of a record is the past (less for short records), on which the probe interval is selected; starts
are drawn from the rest. `deadline` has models of all that was recorded until shortly before a start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from ebbtide.base.compiled_records import FAILOVER, TABLE, ZonesTape
from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import (
    PARTS_OF_DAY,
    SpellModel,
    fit_spells,
    part_of_day,
    spells_of_probes,
)
from ebbtide.forecasts.capacity.records import ZoneRecords
from ebbtide.market.price_series import Floats
from ebbtide.policies.deadline.costs import ZonesProblem, zones_problem
from ebbtide.policies.deadline.table import ZoneTable, solve_zones
from ebbtide_papers.deadlines.deadline_hindsight import least_cost
from ebbtide_papers.deadlines.deadline_runs import run_zones

# The policy of runs in which the job works on any number of its machines.
ELASTIC = "deadline, any number of machines"

# The policy with models that are not fitted anew.
FIRST_THIRD = "deadline, model of the first third"

WORK_H, DEADLINE_H, RESTART_H = 40.0, 60.0, 0.2
_PAST = 1.0 / 3.0

# Resolution of slack in the optimum's program, seconds.
_STEP_S = 120.0

# Candidate intervals at which other zones may be probed while a spot machine is held.
ASK_EVERY_S = (0.0, 1800.0, 2 * HOUR_S, 6 * HOUR_S)

# The interval if the past is too short to try them.
_USUAL_S = 2 * HOUR_S

# What a look costs where a zone is watched before its machines are kept: they are charged for a minute at least.
LOOK_S = 60.0

# Number of runs on the past to select among them.
_TRIED = 40

# Some of a gang's machines, where a job works on any number of them, as shares of all; and the length of the ticks
# of their table, seconds: over so many zones, one of shorter ticks takes long to solve.
_PARTS = (1.0, 0.75, 0.5, 0.25)
_PARTS_TICK_S = 900.0

# Models are fitted anew so often, or so many times over a long record.
_REFIT_S, _MOST_FITS = 6 * HOUR_S, 40


@dataclass(frozen=True)
class ZoneRuns:
    """The runs of one policy from all starts; arrays of shape (starts,).

    Attributes:
        usd: Cost of each run, USD, egress included.
        egress_usd: Egress cost of each run, USD.
        late_h: Hours after the deadline of each run; 0: in time.
        started: Number of machines started in each run.
        asked: Number of requests for spot machines in each run.
    """

    usd: Floats
    egress_usd: Floats
    late_h: Floats
    started: Floats
    asked: Floats

    @classmethod
    def of(cls, runs: Iterable[tuple[float, float, float, int, int]]) -> ZoneRuns:
        """Runs from the tuples that the compiled runs return."""
        return cls(*np.array(list(runs), dtype=float).T)


@dataclass(frozen=True)
class ZonesStudy:
    """The results of all policies on one set of zones.

    Attributes:
        records: Records of capacity and prices of the zones.
        problem: The problem to solve, at the past's mean prices.
        ask_every_s: The probe interval selected on the past, seconds.
        look_s: What a look at a watched zone costs, seconds of its machines; infinity: on the past, watching
            did not pay.
        runs: Runs by policy; single zones as `uniform-progress ZONE`.
    """

    records: ZoneRecords
    problem: ZonesProblem
    ask_every_s: float
    look_s: float
    runs: Mapping[str, ZoneRuns]


def study_zones(
    records: ZoneRecords,
    checkpoint_bytes: int,
    starts: int,
    seed: int,
    gamma: float = 0.0,
    *,
    elastic: bool = False,
) -> ZonesStudy:
    """Run every policy from the same starts.

    Args:
        records: Records of capacity and prices of the zones.
        checkpoint_bytes: Size of the checkpoint that a move transfers, bytes.
        starts: Number of random starts after the past.
        seed: Seed of the starts.
        gamma: The parameter gamma of `deadline`.
        elastic: Whether there are runs, too, in which the job works on any number of its machines.

    Raises:
        InputError: The record is too short.
    """
    whole = int(np.ceil(DEADLINE_H * HOUR_S / records.tick_s))
    past = min(int(records.ticks * _PAST), (records.ticks - whole) // 2)
    if past * records.tick_s < DAY_S:
        raise InputError(
            f"{records.name}: a record of {records.ticks * records.tick_s / HOUR_S:.0f} h is too short for a past "
            f"of a day and runs of {DEADLINE_H:g} h from as many starts"
        )
    problem = _problem(records, past, checkpoint_bytes)
    own, pooled = past_models(records, past)
    random = np.random.default_rng(seed)
    every_s, look_s = _USUAL_S, math.inf
    if past > whole:
        tried = random.integers(0, past - whole, _TRIED)
        every_s, look_s = _chosen_pace(records, problem, own, tried, gamma)
    plain, problem = problem, replace(problem, look_s=look_s)
    table = solve_zones(problem, own, ask_every_s=every_s, gamma=gamma)
    drawn = random.integers(past, records.ticks - whole, starts)
    others = solve_zones(problem, pooled, ask_every_s=every_s, gamma=gamma)
    runs = {
        "deadline": _refitted(records, problem, past, drawn, every_s, gamma),
        FIRST_THIRD: ZoneRuns.of(by_table(records, table, drawn, every_s)),
        "deadline, model of the first third and the time of day": _by_part_of_day(
            records, problem, own, drawn, every_s, gamma
        ),
        "deadline, model of the other zones": ZoneRuns.of(by_table(records, others, drawn, every_s)),
        "next-cheapest failover": ZoneRuns.of(by_failover(records, problem, drawn)),
    }
    if math.isfinite(look_s):
        runs["deadline, no zone watched"] = _refitted(records, plain, past, drawn, every_s, gamma)
    for zone, name in enumerate(records.zones):
        runs[f"uniform-progress {name}"] = ZoneRuns.of(
            by_failover(records.alone(zone), problem.alone(zone), drawn)
        )
    on_demand = (WORK_H + RESTART_H) * records.on_demand_usd
    none = np.zeros(starts)
    runs["on-demand"] = ZoneRuns(np.full(starts, on_demand), none, none, np.ones(starts), none)
    runs["optimum"] = ZoneRuns(_optimum(records, problem, drawn), none, none, none, none)
    if elastic:
        runs |= _in_parts(records, past, drawn, every_s, gamma, checkpoint_bytes)
    return ZonesStudy(records, problem, every_s, look_s, runs)


def _problem(records: ZoneRecords, past: int, checkpoint_bytes: int) -> ZonesProblem:
    """The problem to solve, at the mean prices of the past."""
    return zones_problem(
        list(zip(records.zones, records.places, strict=True)),
        records.spot_usd[:, :past].mean(axis=1).tolist(),
        records.on_demand_usd,
        work_h=WORK_H,
        deadline_h=DEADLINE_H,
        restart_h=RESTART_H,
        checkpoint_bytes=checkpoint_bytes,
        speed=records.speed,
    )


def _in_parts(
    records: ZoneRecords, past: int, starts: np.ndarray, every_s: float, gamma: float, checkpoint_bytes: int
) -> dict[str, ZoneRuns]:
    """Runs of a job that works on any number of its machines, as much slower as they are fewer, and the optimum.

    The models are those of the first third: a table over so many zones takes long to solve.
    """
    sizes = [max(round(records.machines * share), 1) for share in _PARTS]
    parts = records.in_parts(sizes)
    problem, (models, _) = _problem(parts, past, checkpoint_bytes), past_models(parts, past)
    table = solve_zones(problem, models, ask_every_s=every_s, gamma=gamma, tick_s=_PARTS_TICK_S)
    none = np.zeros(len(starts))
    return {
        ELASTIC: ZoneRuns.of(by_table(parts, table, starts, every_s)),
        "optimum, any number of machines": ZoneRuns(_optimum(parts, problem, starts), none, none, none, none),
    }


def _chosen_pace(
    records: ZoneRecords, problem: ZonesProblem, models: Sequence[SpellModel], starts: np.ndarray, gamma: float
) -> tuple[float, float]:
    """The probe interval, and the cost of a look, both in seconds, with the lowest cost from these starts.

    Of two that cost the same the longer interval, and not to watch.
    """
    costs = {}
    for look_s in (math.inf, LOOK_S):
        for every_s in ASK_EVERY_S:
            table = solve_zones(replace(problem, look_s=look_s), models, ask_every_s=every_s, gamma=gamma)
            runs = ZoneRuns.of(by_table(records, table, starts, every_s))
            costs[every_s, look_s] = float(runs.usd.mean())
    least = min(costs.values()) + 1e-9
    every_s, look_s = max((pace for pace, usd in costs.items() if usd <= least), key=lambda pace: pace[::-1])
    return every_s, look_s


def past_models(records: ZoneRecords, past: int) -> tuple[list[SpellModel], list[SpellModel]]:
    """Models of each zone from the past: of its own spells with partial pooling, and of the other zones' only."""
    times_s = records.times_s()[:past]
    spells = [spells_of_probes(times_s, up[:past], 1.5 * records.tick_s) for up in records.available]
    others = [spells[:zone] + spells[zone + 1 :] for zone in range(len(spells))]
    own = [fit_spells(spells[zone], others[zone]) for zone in range(len(spells))]
    return own, [fit_spells(None, others[zone]) for zone in range(len(spells))]


def by_table(
    records: ZoneRecords, table: ZoneTable, starts: Sequence[int] | np.ndarray, ask_every_s: float
) -> list[tuple[float, float, float, int, int]]:
    """Runs of `deadline` from each start."""
    return _run(TABLE, records, table.problem, starts, ask_every_s, table)


def by_failover(
    records: ZoneRecords, problem: ZonesProblem, starts: Sequence[int] | np.ndarray
) -> list[tuple[float, float, float, int, int]]:
    """Runs of Uniform Progress with failover to the next-cheapest zone; with one zone, without failover."""
    return _run(FAILOVER, records, problem, starts, 0.0, None)


def _refitted(
    records: ZoneRecords, problem: ZonesProblem, past: int, starts: np.ndarray, every_s: float, gamma: float
) -> ZoneRuns:
    """Runs of `deadline` with models and mean prices of what was recorded shortly before each start."""
    ticks = max(int(_REFIT_S / records.tick_s), (records.ticks - past) // _MOST_FITS, 1)
    known = past + (starts - past) // ticks * ticks
    found: list[tuple[float, float, float, int, int]] = [(0.0, 0.0, 0.0, 0, 0)] * len(starts)
    for until in np.unique(known).tolist():
        models, _ = past_models(records, until)
        usual_usd = records.spot_usd[:, :until].mean(axis=1)
        table = solve_zones(
            replace(problem, spot_usd_per_hour=tuple(usual_usd.tolist())), models, ask_every_s=every_s, gamma=gamma
        )
        places = np.flatnonzero(known == until)
        for place, run in zip(places, by_table(records, table, starts[places], every_s), strict=True):
            found[place] = run
    return ZoneRuns.of(found)


def _by_part_of_day(
    records: ZoneRecords,
    problem: ZonesProblem,
    models: Sequence[SpellModel],
    starts: np.ndarray,
    every_s: float,
    gamma: float,
) -> ZoneRuns:
    """Runs of `deadline` with a table for each part of the day in which runs start."""
    times_s = records.times_s()[starts]
    parts = part_of_day(times_s)
    found: list[tuple[float, float, float, int, int]] = [(0.0, 0.0, 0.0, 0, 0)] * len(starts)
    for part in range(PARTS_OF_DAY):
        places = np.flatnonzero(parts == part)
        if not len(places):
            continue
        # The middle of the part.
        begins_s = (part + 0.5) * DAY_S / PARTS_OF_DAY
        table = solve_zones(problem, models, begins_s=begins_s, ask_every_s=every_s, gamma=gamma)
        for place, run in zip(places, by_table(records, table, starts[places], every_s), strict=True):
            found[place] = run
    return ZoneRuns.of(found)


def _run(
    rule: int,
    records: ZoneRecords,
    problem: ZonesProblem,
    starts: Sequence[int] | np.ndarray,
    every_s: float,
    table: ZoneTable | None,
) -> list[tuple[float, float, float, int, int]]:
    tape = _tape(records)
    return [run_zones(rule, problem, tape, int(first), every_s, table) for first in starts]


def _tape(records: ZoneRecords) -> ZonesTape:
    return ZonesTape(records.available, records.spot_usd, records.tick_s)


def _optimum(records: ZoneRecords, problem: ZonesProblem, starts: np.ndarray) -> Floats:
    tape = _tape(records)

    def least(first: int) -> float:
        return least_cost(problem, tape, first, _STEP_S)

    # Compiled code runs in parallel threads.
    with ThreadPoolExecutor() as pool:
        return np.array(list(pool.map(least, map(int, starts))))
