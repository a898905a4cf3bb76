"""Deadlines in one zone: every policy and the optimum from the same starts, on recorded availability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ebbtide.base.compiled_records import ALWAYS_ON_DEMAND, GREEDY, TABLE, UNIFORM_PROGRESS, ZonesTape
from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import SpellModel, Spells, fit_spells, spells_of
from ebbtide.forecasts.capacity.models import default_spell_models
from ebbtide.forecasts.capacity.records import ZoneRecord
from ebbtide.market.price_series import Floats
from ebbtide.policies.deadline.costs import DeadlineProblem
from ebbtide.policies.deadline.table import DeadlineTable, solve_deadline
from ebbtide_papers.deadlines.deadline_hindsight import in_one_zone, least_cost
from ebbtide_papers.deadlines.deadline_runs import run_zone

WORK_H = 48.0
DEADLINES_H = (52.0, 70.0)
RESTARTS_H = (0.02, 0.05, 0.1, 0.2)
ON_DEMAND_USD, SPOT_USD = 3.06, 0.9701

# Resolution of slack in the optimum's program, seconds.
_STEP_S = 60.0

RULES = {
    "on-demand": ALWAYS_ON_DEMAND,
    "greedy": GREEDY,
    "uniform-progress": UNIFORM_PROGRESS,
}


@dataclass(frozen=True)
class ZoneResult:
    """Results for one deadline and restart time in one zone.

    Attributes:
        zone: The record of the zone.
        problem: The problem to solve.
        usd: Cost of each run, USD, by policy; shape (starts,).
        late_h: Hours after the deadline of each run, by policy; shape (starts,).
    """

    zone: str
    problem: DeadlineProblem
    usd: Mapping[str, Floats]
    late_h: Mapping[str, Floats]


def study_zone(record: ZoneRecord, models: Mapping[str, SpellModel], starts: Sequence[int]) -> list[ZoneResult]:
    """Every policy in every cell, from the same starts.

    Args:
        record: Recorded availability of the zone.
        models: Models of its spells, by the policy's name with each.
        starts: Start of each run, as ticks of the record.
    """
    cells = []
    for deadline_h in DEADLINES_H:
        for restart_h in RESTARTS_H:
            problem = DeadlineProblem(WORK_H, deadline_h, restart_h, SPOT_USD, ON_DEMAND_USD)
            usd, late = {}, {}
            for name, rule in RULES.items():
                usd[name], late[name] = _runs(record, problem, starts, rule, None)
            for name, model in models.items():
                table = solve_deadline(problem, model)
                usd[name], late[name] = _runs(record, problem, starts, TABLE, table)
            usd["optimum"] = _optimum(record, problem, starts)
            late["optimum"] = np.zeros(len(starts))
            cells.append(ZoneResult(record.name, problem, usd, late))
    return cells


def draw_ticks(record: ZoneRecord, number: int, seed: int, after_tick: int = 0) -> list[int]:
    """Random starts, as ticks, from which the longest deadline ends within the record."""
    last = len(record.available) - int(np.ceil(max(DEADLINES_H) * HOUR_S / record.gap_s))
    if last <= after_tick:
        raise InputError(f"record {record.name} is too short for a deadline of {max(DEADLINES_H):g} h")
    return [int(tick) for tick in np.random.default_rng(seed).integers(after_tick, last, number)]


def left_out_model(records: Sequence[ZoneRecord], place: int) -> SpellModel:
    """The model fitted on all other zones (no record of the same zone); the default model if there is none."""
    others = _others(records, place)
    return fit_spells(None, others) if others else default_spell_models().otherwise


def own_past_model(records: Sequence[ZoneRecord], place: int, until_tick: int) -> SpellModel:
    """The model fitted on the zone's own record up to a tick, partially pooled with the other zones."""
    record = records[place]
    return fit_spells(spells_of(record.available[:until_tick], record.gap_s), _others(records, place))


def _others(records: Sequence[ZoneRecord], place: int) -> list[Spells]:
    """Spells observed in all other zones."""
    zone = records[place].name.split()[0]
    return [_spells(one) for one in records if one.name.split()[0] != zone]


def _spells(record: ZoneRecord) -> Spells:
    return spells_of(record.available, record.gap_s)


def _runs(
    record: ZoneRecord, problem: DeadlineProblem, starts: Sequence[int], rule: int, table: DeadlineTable | None
) -> tuple[Floats, Floats]:
    ages_s = record.ages_s()
    found = [
        run_zone(rule, problem, record.available, record.gap_s, first, ages_s[first], table) for first in starts
    ]
    return np.array([usd for usd, _, _ in found]), np.array([late for _, late, _ in found])


def _optimum(record: ZoneRecord, problem: DeadlineProblem, starts: Sequence[int]) -> Floats:
    available = np.asarray(record.available, dtype=bool)[None, :]
    prices = np.full(available.shape, problem.spot_usd_per_hour)
    tape, alone = ZonesTape(available, prices, record.gap_s), in_one_zone(problem)

    def least(first: int) -> float:
        return least_cost(alone, tape, first, _STEP_S)

    # Compiled code runs in parallel threads.
    with ThreadPoolExecutor() as pool:
        return np.array(list(pool.map(least, starts)))
