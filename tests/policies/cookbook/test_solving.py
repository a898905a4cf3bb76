"""Cookbooks against trying every action in every state, and against playing them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import InputError
from ebbtide.jobs.job import Amdahl, SpeedupTable
from ebbtide.jobs.workflow import Workflow, WorkflowJob
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem, Holdings
from ebbtide.policies.cookbook.solving import solve

# With these a step always ends at a multiple of half a machine-hour: a level of work.
FIRST = SpeedupTable(table={1: 1.0, 2: 2.0, 3: 2.0})
SECOND = SpeedupTable(table={1: 1.0, 2: 1.0, 3: 3.0})
UNIT_H = 0.5


def random_problem(
    seed: int,
    *,
    steps: int = 3,
    prices: int = 3,
    most: int = 3,
    charge_steps: int = 1,
    risk_aversion: float = 0.0,
    by_second: bool = False,
) -> CookbookProblem:
    random = np.random.default_rng(seed)
    levels = np.sort(random.uniform(0.01, 1.0, prices))
    transition = random.dirichlet(np.ones(prices), (steps, prices))
    market = ChargeModel.at_step_start(levels, transition, 1.0)
    if by_second:
        # The mean of the price at both ends, and a variance beside.
        charge = (levels[None, :, None] + levels[None, None, :]) / 2 * np.ones((steps, 1, 1))
        mean = (transition * charge).sum(axis=2)
        spread = (transition * charge**2).sum(axis=2) - mean**2
        market = ChargeModel(levels, transition, charge, spread)
    jobs = WorkflowJob(name="a", work_h=2, speedup=FIRST), WorkflowJob(name="b", work_h=3, speedup=SECOND)
    return CookbookProblem(
        Workflow(name="w", jobs=jobs),
        market,
        most=most,
        work_unit_h=UNIT_H,
        charge_steps=charge_steps,
        risk_aversion=risk_aversion,
    )


def brute_force(problem: CookbookProblem) -> dict[int, float]:
    """The least expected cost from the start by price, over all policies: a state's action may be any."""
    market, steps, kappa = problem.market, problem.market.steps, problem.charge_steps

    @cache
    def least(step: int, price: int, left: float, charged: tuple[int, ...]) -> float:
        if step == steps:
            return 0.0 if left <= 1e-9 else math.inf
        best = math.inf
        for more in range(problem.most + 1):
            size = sum(charged[1:]) + more
            if size > problem.most:
                continue
            then = float(problem.workflow.progress(left, sum(charged), size, problem.step_h))
            usd = 0.0
            for after in range(len(market.prices)):
                chance = market.transition[step, price, after]
                usd += chance * (
                    more * market.charge[step, price, after]
                    + least(step + 1, after, round(then, 9), (*charged[1:], more))
                )
            best = min(best, usd)
        return best

    return {price: least(0, price, problem.workflow.work_h, (0,) * kappa) for price in range(len(market.prices))}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_the_least_expected_cost_is_that_of_trying_every_policy(seed: int, by_second: bool) -> None:
    problem = random_problem(seed, by_second=by_second)
    found = solve(problem).mean_usd[0, -1, 0]
    for price, usd in brute_force(problem).items():
        assert found[price] == pytest.approx(usd, rel=1e-5)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_also_where_a_charge_lasts_two_steps(seed: int) -> None:
    problem = random_problem(seed, steps=4, charge_steps=2, most=2)
    found = solve(problem).mean_usd[0, -1, 0]
    for price, usd in brute_force(problem).items():
        assert found[price] == pytest.approx(usd, rel=1e-5)


def play(problem: CookbookProblem, runs: int, seed: int) -> np.ndarray:
    """Costs of following a cookbook from the first price, drawn."""
    book, market = solve(problem), problem.market
    holdings = Holdings.of(problem.most, problem.charge_steps)
    random = np.random.default_rng(seed)
    costs = np.zeros(runs)
    for run in range(runs):
        level, holding, price = len(problem.levels_h) - 1, 0, 0
        for step in range(market.steps):
            more = int(book.actions[step, level, holding, price])
            after = random.choice(len(market.prices), p=market.transition[step, price])
            costs[run] += more * market.charge[step, price, after]
            size = int(holdings.sizes[holding, more])
            left = float(problem.workflow.progress(problem.levels_h[level], holdings.held[holding], size, 1.0))
            level = round(left / UNIT_H)
            holding, price = int(holdings.leads_to[holding, more]), int(after)
        assert level == 0
    return costs


@pytest.mark.parametrize("risk_aversion", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("by_second", [False, True])
def test_mean_and_variance_are_those_of_playing_it(risk_aversion: float, by_second: bool) -> None:
    problem = random_problem(11, steps=4, risk_aversion=risk_aversion, by_second=by_second)
    book = solve(problem)
    costs = play(problem, 4_000, 5)
    mean, deviation = float(book.mean_usd[0, -1, 0, 0]), float(book.deviation_usd[0, -1, 0, 0])
    error = costs.std() / math.sqrt(len(costs))
    assert abs(costs.mean() - mean) < 3.0 * error
    fourth = ((costs - costs.mean()) ** 4).mean()
    assert abs(costs.var() - deviation**2) < 3.0 * math.sqrt((fourth - costs.var() ** 2) / len(costs))


def test_who_fears_risk_pays_more_and_has_less_of_it() -> None:
    bold, careful = (solve(random_problem(7, steps=5, prices=4, risk_aversion=gamma)) for gamma in (0.0, 2.0))
    assert careful.mean_usd[0, -1, 0, 0] > bold.mean_usd[0, -1, 0, 0]
    assert careful.deviation_usd[0, -1, 0, 0] < bold.deviation_usd[0, -1, 0, 0]


def test_on_demand_beside_spot_is_never_dearer() -> None:
    problem = random_problem(3, steps=4)
    plus = replace(problem, market=problem.market.with_on_demand(0.3))
    assert (solve(plus).mean_usd[0, -1, 0] <= solve(problem).mean_usd[0, -1, 0] + 1e-6).all()
    alone = replace(problem, market=problem.market.with_on_demand(0.0))
    assert solve(alone).mean_usd[0, -1, 0] == pytest.approx([0.0] * 3)


def test_what_cannot_be_done_in_time_is_told() -> None:
    problem = random_problem(1, steps=1)
    with pytest.raises(InputError, match="5 machine-hours cannot be done in 1 h with 3 machines"):
        solve(problem)
    book = solve(random_problem(1, steps=2))
    # With the last step to go, three machine-hours of the second job can be done, and no more.
    assert np.isfinite(book.mean_usd[1, :7]).all()
    assert np.isinf(book.mean_usd[1, 7:]).all()


def test_finer_work_changes_little() -> None:
    random = np.random.default_rng(2)
    market = ChargeModel.at_step_start(np.linspace(0.02, 1.0, 6), random.dirichlet(np.ones(6), (8, 6)), 1.0)
    work = Workflow(name="w", jobs=(WorkflowJob(name="a", work_h=20, speedup=Amdahl(parallel=0.95)),))
    coarse, fine = (
        solve(CookbookProblem(work, market, most=20, work_unit_h=unit)).mean_usd[0, -1, 0] for unit in (1.0, 0.1)
    )
    assert coarse == pytest.approx(fine, rel=0.05)


def test_bids_are_the_highest_of_the_next_ceilings() -> None:
    book = solve(random_problem(5, steps=5, prices=4))
    ceilings, bids = book.ceilings(), book.skyline(ahead=2)
    assert bids.shape == ceilings.shape
    for step in range(5):
        np.testing.assert_array_equal(bids[step], ceilings[step : step + 3].max(axis=0))
    # Nothing is left to do: nothing is worth a cent.
    assert (ceilings[:, 0] == book.problem.market.prices[0]).all()


def test_of_equal_costs_the_one_that_is_done_first_is_taken() -> None:
    """At a constant price, waiting costs nothing, and gains nothing."""
    work = Workflow(name="w", jobs=(WorkflowJob(name="a", work_h=4, speedup=Amdahl(parallel=1.0)),))
    prices, steps = np.array([0.1]), 8
    market = ChargeModel.at_step_start(prices, np.ones((steps, 1, 1)), 1.0)
    for risk_aversion in (0.0, 1.0):
        book = solve(CookbookProblem(work, market, most=2, work_unit_h=1.0, risk_aversion=risk_aversion))
        assert book.actions[0, -1, 0, 0] == 2
        assert book.mean_usd[0, -1, 0, 0] == pytest.approx(0.4)


def test_a_market_with_shortages_by_hand() -> None:
    """A machine costs 0.1 USD an hour while there are any, and 1 USD in a shortage; either lasts or not by chance."""
    prices = np.array([0.1, 0.2])
    transition = np.array([[[0.5, 0.5], [0.25, 0.75]]] * 3)
    market = ChargeModel.at_step_start(prices, transition, 1.0).with_shortages(0.4, 0.2, 1.0)
    assert market.prices.tolist() == [0.1, 0.2, np.inf, np.inf]
    assert market.transition[0].tolist() == [
        pytest.approx([0.4, 0.4, 0.1, 0.1]),
        pytest.approx([0.2, 0.6, 0.05, 0.15]),
        pytest.approx([0.2, 0.2, 0.3, 0.3]),
        pytest.approx([0.1, 0.3, 0.15, 0.45]),
    ]
    assert market.mean_charge[0].tolist() == pytest.approx([0.1, 0.2, 1.0, 1.0])
    assert (market.place(0.19), market.place(0.19, is_short=True)) == (1, 3)
    # One hour of work in two: at once for 0.1, or later for what an hour costs then, 0.8 x 0.15 + 0.2 x 1.
    work = Workflow(name="w", jobs=(WorkflowJob(name="a", work_h=1, speedup=Amdahl(parallel=1.0)),))
    short = ChargeModel(market.prices, market.transition[:2], market.charge[:2], market.charge_variance[:2])
    book = solve(CookbookProblem(work, short, most=1, work_unit_h=1.0))
    assert book.expected_usd(0.0, 0.1, 1.0, 0) == pytest.approx(0.1)
    # In a shortage it waits, unless it is the last hour.
    later = 0.6 * 1.0 + 0.4 * 0.5 * (0.1 + 0.2)
    assert book.expected_usd(0.0, 0.1, 1.0, 0, is_short=True) == pytest.approx(later)
    assert book.expected_usd(1.0, 0.1, 1.0, 0, is_short=True) == pytest.approx(1.0)
