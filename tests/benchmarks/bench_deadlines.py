"""How long one zone's study takes, whole, and the optimum beside the bare sums that it cannot do without."""

from __future__ import annotations

import time

import numpy as np
import pytest
from tests.benchmarks.floors import tell

from ebbtide.base.compiled_records import ZonesTape
from ebbtide.base.utc import HOUR_S
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S
from ebbtide.forecasts.capacity.models import default_spell_models
from ebbtide.forecasts.capacity.records import ZoneRecord
from ebbtide.policies.deadline.costs import DeadlineProblem, ZonesProblem
from ebbtide.policies.deadline.table import solve_zones
from ebbtide_papers.deadlines.deadline_hindsight import in_one_zone, least_cost
from ebbtide_papers.deadlines.study import draw_ticks, study_zone

GAP_S, TICKS = 195.0, 20_158
MODEL = default_spell_models().otherwise


def bare_s(rows: int, steps: int) -> float:
    """So many rows of slack mixed and compared, a choice and kind of machine each, by NumPy."""
    values, best = np.random.default_rng(0).random((2, steps)), np.full(steps, 1e9)
    began = time.perf_counter()
    for _ in range(rows):
        np.minimum(best, values[0] * 0.5 + values[1] * 0.5, out=best)
    return time.perf_counter() - began


@pytest.fixture(scope="module")
def record() -> ZoneRecord:
    """As long as the longest public ones."""
    return ZoneRecord("drawn v100x1", MODEL.drawn(TICKS, GAP_S, np.random.default_rng(0)), GAP_S)


def test_one_zone(benchmark, record: ZoneRecord) -> None:
    """All policies, 300 starts, eight cells: within two minutes on two cores."""
    study_zone(record, {"deadline": MODEL}, draw_ticks(record, 1, 0))
    starts = draw_ticks(record, 300, 0)
    benchmark.pedantic(lambda: study_zone(record, {"deadline": MODEL}, starts), rounds=1)
    told = f"{300 * 8 * 4} runs and {300 * 8} optima; target 120 s; floor: the optima's sums by NumPy, with its temporaries"
    ticks = int((52 + 70) / 2 * HOUR_S / GAP_S)
    tell("a zone", told, benchmark.stats.stats.median, 300 * 8 * bare_s(ticks * 12 // 100, 800) * 100)


def test_the_optimum(benchmark, record: ZoneRecord) -> None:
    """One optimum; the floor: as many sums and comparisons of rows of slack."""
    steps, ticks = 1_322, int(70 * HOUR_S / GAP_S)
    up = record.available[None]
    tape = ZonesTape(up, np.full(up.shape, 0.97), GAP_S)
    problem = in_one_zone(DeadlineProblem(48.0, 70.0, 0.1, 0.97, 3.06))
    least_cost(problem, tape, 100, 60.0)
    benchmark.pedantic(lambda: least_cost(problem, tape, 100, 60.0), rounds=5)
    told = f"{ticks} ticks, {steps} steps of slack; floor: the sums by NumPy, with its temporaries"
    tell("an optimum", told, benchmark.stats.stats.median, bare_s(ticks * 12, steps))


@pytest.mark.parametrize("zones", [1, 3, 10])
def test_solving_for_several_zones(benchmark, zones: int) -> None:
    """Grows with the number of zones and what each is compared with, not with the power of it."""
    problem = ZonesProblem(
        40.0,
        60.0,
        0.2,
        3.06,
        tuple(map(str, range(zones))),
        tuple(1.0 + 0.05 * zone for zone in range(zones)),
        tuple(range(zones)),
        np.ones((zones, zones)) - np.eye(zones),
        np.zeros((zones, zones)),
    )
    solve_zones(problem, [MODEL] * zones)
    benchmark.pedantic(lambda: solve_zones(problem, [MODEL] * zones), rounds=3)
    ticks, steps, rows = 360, 122, 3 * zones * len(AGE_BINS_S)
    told = f"{zones} zones, 60 h, 20 h of slack; floor: a sum by NumPy for each state and other zone"
    tell("a table of zones", told, benchmark.stats.stats.median, bare_s(ticks * rows * zones, steps))
