"""How fast allocations are solved for a thousand jobs and a hundred instance types, beside the bare program."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import linprog
from tests.benchmarks.floors import tell

from ebbtide.policies.dynamic_pricing.objectives import (
    CostObjective,
    max_total_throughput,
    min_cost,
    min_makespan,
    min_makespan_at_once,
)
from ebbtide.policies.dynamic_pricing.problem import AllocationProblem, Layout, Rows

JOBS, TYPES = 1_000, 100


def problem(slos: bool) -> AllocationProblem:
    random = np.random.default_rng(0)
    rates = random.lognormal(3.0, 1.0, (JOBS, TYPES)) * (random.random((JOBS, TYPES)) < 0.9)
    steps = random.lognormal(7.0, 1.0, JOBS)
    quotas = random.integers(2, 30, TYPES)
    needs_h = steps / rates.max(axis=1) * random.uniform(3.0, 10.0, JOBS)
    slo_h = np.where(random.random(JOBS) < 0.5, np.inf, needs_h) if slos else None
    return AllocationProblem.of(rates, random.lognormal(0.0, 0.8, TYPES), quotas=quotas, steps=steps, slo_h=slo_h)


def bare_s(asked: AllocationProblem) -> float:
    """HiGHS alone on the constraints of 4.1."""
    layout = Layout(asked)
    rows = Rows.joined([layout.time(), layout.quotas(), layout.slos()])
    began = time.perf_counter()
    linprog(-layout.rates / layout.rates.max(), A_ub=rows.matrix, b_ub=rows.limits, method="highs")  # type: ignore[arg-type]
    return time.perf_counter() - began


@pytest.mark.parametrize("slos", [False, True])
@pytest.mark.parametrize(
    ("name", "solve"),
    [
        ("max total throughput", max_total_throughput),
        ("min cost, total", min_cost),
        ("min cost, linear", lambda asked: min_cost(asked, CostObjective.LINEAR)),
    ],
)
def test_one_program(benchmark, name: str, solve: Callable[[AllocationProblem], object], slos: bool) -> None:
    asked = problem(slos)
    benchmark.pedantic(lambda: solve(asked), rounds=1)
    told = f"{JOBS} jobs x {TYPES} types{', SLOs' if slos else ''}; target 5 s; floor: HiGHS alone on 4.1"
    tell(name, told, benchmark.stats.stats.median, bare_s(asked))


def test_makespan_by_bisection(benchmark) -> None:
    asked = problem(slos=False)
    shares, makespan_h = min_makespan_at_once(asked)
    budget_usd = 0.95 * float(asked.usd_rate(shares).sum()) * makespan_h
    benchmark.pedantic(lambda: min_makespan(asked, budget_usd), rounds=1)
    began = time.perf_counter()
    min_makespan_at_once(asked, budget_usd)
    told = f"{JOBS} jobs x {TYPES} types in a budget; target 60 s; floor: as one program"
    tell("min makespan by bisection", told, benchmark.stats.stats.median, time.perf_counter() - began)
