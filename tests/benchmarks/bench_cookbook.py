"""How fast cookbooks are solved and played, beside the bare sums that solving cannot do without."""

from __future__ import annotations

import time

import numpy as np
import pytest
from tests.benchmarks.floors import tell

from ebbtide.base.utc import HOUR_S, to_epoch_s
from ebbtide.forecasts.price_chain import PriceChain
from ebbtide.jobs.job import Amdahl
from ebbtide.jobs.workflow import Workflow, WorkflowJob
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
from ebbtide.policies.cookbook.solving import solve
from ebbtide_papers.cumulon.cookbook_replays import play_strictly
from ebbtide_papers.cumulon.oracle import least_costs

MONDAY_S = to_epoch_s("2014-01-06T00:00:00Z")
STEPS, PRICES, MOST, RUNS = 15, 100, 100, 100_000
WORK = Workflow(
    name="w", jobs=(WorkflowJob(name="a", work_h=36, speedup=Amdahl(parallel=0.98)),), start_work_h=0.05
)


@pytest.fixture(scope="module")
def chain() -> PriceChain:
    """A hundred prices, moving between neighbours, falling back to the least."""
    prices = np.concatenate([np.arange(1, 61) * 0.01, np.geomspace(0.62, 5, PRICES - 60)])
    rows = np.exp(-np.abs(np.arange(PRICES)[:, None] - np.arange(PRICES)[None]) / 1.5) * 0.05
    rows[:, :3] += 0.002
    np.fill_diagonal(rows, 0.0)
    rows[np.arange(PRICES), np.arange(PRICES)] = 1.0 - rows.sum(axis=1)
    return PriceChain(prices, np.tile(rows, (168, 1, 1)), 300.0)


def problem(chain: PriceChain, unit_h: float, gamma: float) -> CookbookProblem:
    market = ChargeModel(chain.prices, *chain.steps(MONDAY_S, STEPS, HOUR_S))
    return CookbookProblem(WORK, market, most=MOST, work_unit_h=unit_h, risk_aversion=gamma)


def bare_s(asked: CookbookProblem) -> float:
    """The expectations over the next price alone: three matrix products a step."""
    values = np.random.default_rng(0).random((len(asked.levels_h) * (MOST + 1), PRICES))
    began = time.perf_counter()
    for step in range(STEPS):
        for _ in range(3):
            values @ asked.market.transition[step].T
    return time.perf_counter() - began


@pytest.mark.parametrize(("unit_h", "target_s"), [(1.0, 3), (0.1, 30)])
@pytest.mark.parametrize("gamma", [0.0, 0.1])
def test_solving(benchmark, chain: PriceChain, unit_h: float, gamma: float, target_s: int) -> None:
    asked = problem(chain, unit_h, gamma)
    solve(problem(chain, 3.0, gamma))
    benchmark.pedantic(lambda: solve(asked), rounds=1)
    told = f"d = 15, {PRICES} prices, {len(asked.levels_h)} levels, N = {MOST}, gamma {gamma}; target {target_s} s; floor: expectations"
    tell("a cookbook", told, benchmark.stats.stats.median, bare_s(asked))


def test_playing(benchmark, chain: PriceChain) -> None:
    book = solve(problem(chain, 1.0, 0.0))
    traces = chain.simulate(MONDAY_S, 0.2, STEPS * 12, RUNS, seed=1)
    play_strictly(book, traces[:10], 300.0)
    benchmark.pedantic(lambda: play_strictly(book, traces, 300.0), rounds=1)
    began = time.perf_counter()
    traces.sum()
    floor_s = time.perf_counter() - began
    tell("strict mode", f"{RUNS:,} traces; target 5 s; floor: reading them", benchmark.stats.stats.median, floor_s)


def test_the_oracle(benchmark, chain: PriceChain) -> None:
    traces = chain.simulate(MONDAY_S, 0.2, STEPS * 12, RUNS, seed=1)
    least_costs(WORK, chain.prices, traces[:10], 300.0, MOST)
    benchmark.pedantic(lambda: least_costs(WORK, chain.prices, traces, 300.0, MOST), rounds=1)
    began = time.perf_counter()
    traces.sum()
    floor_s = time.perf_counter() - began
    tell("the oracle's bound", f"{RUNS:,} traces; floor: reading them", benchmark.stats.stats.median, floor_s)
