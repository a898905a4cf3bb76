"""Cost of `ZonesAdvisor` on recorded zones that it was not fitted to, and the lowest cost without foresight.

The setting is that of the public benchmark over several zones: 24 h of work, the state of every zone is seen in
each tick, decisions and charges come in whole ticks. For two zones the exact program gives a bound: the least cost
for a policy that knows how the spells of these very zones end at each age, but not the future.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ebbtide.base.compiled_records import FAILOVER, ZonesTape
from ebbtide.base.utc import HOUR_S
from ebbtide.forecasts.capacity.fitting import SpellModel, fit_spells, spells_of
from ebbtide.forecasts.capacity.records import ZoneRecord
from ebbtide.forecasts.capacity.zone_types import ZoneTypes
from ebbtide.market.price_series import Floats
from ebbtide.policies.deadline.costs import ZonesProblem
from ebbtide.policies.deadline.zones_advisor import ZonesAdvisor
from ebbtide_papers.deadlines.advised_runs import AdvisedRun, run_advised_zones
from ebbtide_papers.deadlines.advisor_study import types_from
from ebbtide_papers.deadlines.deadline_hindsight import least_cost
from ebbtide_papers.deadlines.deadline_runs import run_zones
from ebbtide_papers.deadlines.study import ON_DEMAND_USD, SPOT_USD
from ebbtide_papers.deadlines.zones_bound import run_bound, solve_bound

WORK_H = 24.0
DEADLINES_H = (36.0, 48.0)
RESTARTS_H = (0.05, 0.2)

ADVISED, BOUND, FAILS_OVER, OPTIMUM = "advised", "bound of two zones", "next-cheapest failover", "optimum"

# Starts of a set that are run in each cell, and pairs of zones, at most.
STARTS, MOST_PAIRS = 16, 15

# Resolution of slack in the optimum's program, seconds.
_STEP_S = 120.0


@dataclass(frozen=True)
class AdvisedZones:
    """Results for one set of zones, over all deadlines and restart times.

    Attributes:
        zones: Names of the zones.
        usd: Cost of each run, USD, by policy; the bound is known for two zones. Shape (runs,).
        misses: Runs on advice that were late.
    """

    zones: tuple[str, ...]
    usd: Mapping[str, Floats]
    misses: int


def sets_together(records: Sequence[ZoneRecord], most_pairs: int = MOST_PAIRS) -> list[tuple[ZoneRecord, ...]]:
    """Pairs of zones that were recorded together, and larger sets, with another zone to learn from."""
    zones = {_zone(record) for record in records}
    return [
        chosen
        for group in _together(records)
        for chosen in _sets(group, most_pairs)
        if len({_zone(record) for record in chosen}) < len(zones) and _starts_until(chosen) > 0
    ]


def study_advised_zones(
    records: Sequence[ZoneRecord], chosen: Sequence[ZoneRecord], starts: int, seed: int
) -> AdvisedZones:
    """Every policy on one set of zones, from the same starts.

    Args:
        records: Records of all zones; models are of those that are not in the set.
        chosen: The set, one of `sets_together`.
        starts: Number of starts in each cell, `STARTS` at most.
        seed: Seed of the starts.
    """
    names = {_zone(record) for record in chosen}
    others = [spells_of(one.available, one.gap_s) for one in records if _zone(one) not in names]
    own = [fit_spells(spells_of(one.available, one.gap_s), others) for one in chosen]
    firsts = np.random.default_rng(seed).integers(0, _starts_until(chosen), min(starts, STARTS)).tolist()
    return _studied(chosen, firsts, types_from(others), own)


def _starts_until(records: Sequence[ZoneRecord]) -> int:
    """The tick before which a run has to start that is to end within all records."""
    ticks = min(len(record.available) for record in records)
    return ticks - int(np.ceil(max(DEADLINES_H) * HOUR_S / records[0].gap_s)) - 1


def _zone(record: ZoneRecord) -> str:
    return record.name.split()[0]


def _together(records: Sequence[ZoneRecord]) -> list[list[ZoneRecord]]:
    """Records of different zones over the same time."""
    groups: dict[tuple[str, float], dict[str, ZoneRecord]] = {}
    for record in records:
        key = record.name.split(maxsplit=1)[-1], record.gap_s
        groups.setdefault(key, {})[_zone(record)] = record
    return [[zones[name] for name in sorted(zones)] for zones in groups.values() if len(zones) > 1]


def _sets(group: Sequence[ZoneRecord], most_pairs: int) -> list[tuple[ZoneRecord, ...]]:
    """Pairs of zones, and the first three, four and so on."""
    pairs = list(itertools.combinations(group, 2))
    few = np.unique(np.linspace(0, len(pairs) - 1, min(len(pairs), most_pairs)).round().astype(int))
    return [pairs[place] for place in few.tolist()] + [tuple(group[:count]) for count in range(3, len(group) + 1)]


def _studied(
    records: Sequence[ZoneRecord], firsts: Sequence[int], types: ZoneTypes, own: Sequence[SpellModel]
) -> AdvisedZones:
    ticks = min(len(record.available) for record in records)
    available = np.array([record.available[:ticks] for record in records], dtype=bool)
    gap_s, zones = records[0].gap_s, tuple(map(_zone, records))
    tape = ZonesTape(available, np.full(available.shape, SPOT_USD), gap_s)
    usd: dict[str, list[float]] = {ADVISED: [], FAILS_OVER: [], OPTIMUM: []}
    misses = 0
    for deadline_h, restart_h in itertools.product(DEADLINES_H, RESTARTS_H):
        problem = _problem(zones, deadline_h, restart_h)
        advisor = ZonesAdvisor(
            zones,
            work_h=WORK_H,
            deadline_h=deadline_h,
            restart_h=restart_h,
            spot_usd_per_hour=SPOT_USD,
            on_demand_usd_per_hour=ON_DEMAND_USD,
            tick_h=gap_s / HOUR_S,
            models=types,
        )
        runs = [run_advised_zones(advisor, available, first) for first in firsts]
        misses += sum(run.late_h > 1e-9 for run in runs)
        usd[ADVISED] += [run.usd for run in runs]
        if len(zones) == 2:
            usd.setdefault(BOUND, []).extend(run.usd for run in _bound(problem, own, available, gap_s, firsts))
        usd[FAILS_OVER] += [run_zones(FAILOVER, problem, tape, first, 0.0, None)[0] for first in firsts]
        usd[OPTIMUM] += _optimum(problem, tape, firsts)
    return AdvisedZones(zones, {name: np.array(costs) for name, costs in usd.items()}, misses)


def _problem(zones: tuple[str, ...], deadline_h: float, restart_h: float) -> ZonesProblem:
    """Zones at one price, between which a move costs a restart only."""
    nowhere, prices = np.zeros((1, 1)), (SPOT_USD,) * len(zones)
    places = (0,) * len(zones)
    return ZonesProblem(WORK_H, deadline_h, restart_h, ON_DEMAND_USD, zones, prices, places, nowhere, nowhere)


def _bound(
    problem: ZonesProblem, own: Sequence[SpellModel], available: np.ndarray, gap_s: float, firsts: Sequence[int]
) -> list[AdvisedRun]:
    table = solve_bound(problem, own)
    return [run_bound(table, available, gap_s, first) for first in firsts]


def _optimum(problem: ZonesProblem, tape: ZonesTape, firsts: Sequence[int]) -> list[float]:
    # Compiled code runs in parallel threads.
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda first: least_cost(problem, tape, first, _STEP_S), firsts))
