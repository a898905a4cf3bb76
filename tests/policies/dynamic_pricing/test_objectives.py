"""The linear programs against a fine grid of every allocation, and against each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import InputError
from ebbtide.market.price_series import Floats
from ebbtide.policies.dynamic_pricing.limits import eased
from ebbtide.policies.dynamic_pricing.objectives import (
    CostObjective,
    max_total_throughput,
    min_cost,
    min_makespan,
    min_makespan_at_once,
)
from ebbtide.policies.dynamic_pricing.problem import AllocationProblem

numbers = st.floats(0.2, 5.0)
problems = st.builds(
    lambda rates, prices, quotas, steps, slo: AllocationProblem.of(
        np.array(rates).reshape(2, 2), prices, quotas=quotas, steps=steps, slo_h=[slo, np.inf]
    ),
    st.lists(numbers, min_size=4, max_size=4),
    st.lists(numbers, min_size=2, max_size=2),
    st.lists(st.sampled_from([0.5, 1.0, 2.0, np.inf]), min_size=2, max_size=2),
    st.lists(numbers, min_size=2, max_size=2),
    st.sampled_from([np.inf, 2.0, 8.0]),
)

GRID = np.array(list(itertools.product(np.linspace(0, 1, 11), repeat=4))).reshape(-1, 2, 2)


def feasible(problem: AllocationProblem, shares: Floats, tolerance: float = 1e-6) -> np.ndarray:
    """Whether allocations, shape (..., m, n), keep every constraint."""
    paces = (problem.steps_per_hour * shares).sum(axis=-1)
    return np.asarray(
        (shares >= -tolerance).all(axis=(-1, -2))
        & (shares.sum(axis=-1) <= 1 + tolerance).all(axis=-1)
        & (shares.sum(axis=-2) <= problem.quotas + tolerance).all(axis=-1)
        & (paces >= problem.steps / problem.slo_h * (1 - tolerance)).all(axis=-1)
    )


def jobs_per_hour(problem: AllocationProblem, shares: Floats) -> Floats:
    return np.asarray(((problem.steps_per_hour * shares).sum(axis=-1) / problem.steps).sum(axis=-1))


def usd(problem: AllocationProblem, shares: Floats) -> Floats:
    return np.asarray((shares * problem.usd_per_hour).sum(axis=(-1, -2)))


def ratio(problem: AllocationProblem, shares: Floats) -> Floats:
    spent = usd(problem, shares)
    return np.divide(jobs_per_hour(problem, shares), spent, out=np.zeros_like(spent), where=spent > 1e-9)


def steps_per_hour(problem: AllocationProblem, shares: Floats) -> Floats:
    """4.1 as published: steps of all jobs count alike."""
    return np.asarray((problem.steps_per_hour * shares).sum(axis=(-1, -2)))


def linear(problem: AllocationProblem, shares: Floats) -> Floats:
    gains = problem.steps_per_hour / problem.usd_per_hour / problem.steps[:, None]
    return np.asarray((gains * shares).sum(axis=(-1, -2)))


@settings(max_examples=60, deadline=None)
@given(
    problems,
    st.sampled_from(
        [
            (max_total_throughput, steps_per_hour),
            (min_cost, ratio),
            (lambda problem: min_cost(problem, CostObjective.LINEAR), linear),
        ]
    ),
)
def test_no_allocation_on_a_grid_is_better(
    problem: AllocationProblem, pair: tuple[Callable[[AllocationProblem], Floats], Callable[..., Floats]]
) -> None:
    solve, value = pair
    able = feasible(problem, GRID, 1e-9)
    try:
        found = solve(problem)
    except InputError:
        assert not able.any()
        return
    assert feasible(problem, found)
    if able.any():
        best = value(problem, GRID[able]).max()
        assert value(problem, found[None])[0] >= best * (1 - 1e-6)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(problems, st.floats(1.0, 3.0))
def test_the_makespan_by_bisection_is_the_one_of_a_single_program(
    problem: AllocationProblem, spare: float
) -> None:
    problem = replace(problem, slo_h=np.full(len(problem.jobs), np.inf))
    least = float((problem.steps * (problem.usd_per_hour / problem.steps_per_hour).min(axis=1)).sum())
    shares, makespan_h = min_makespan(problem, spare * least)
    at_once, same_h = min_makespan_at_once(problem, spare * least)
    assert makespan_h == pytest.approx(same_h, rel=2e-3)
    for found, hours in ((shares, makespan_h), (at_once, same_h)):
        assert (problem.throughput(found) * hours >= problem.steps * (1 - 1e-6)).all()
        assert problem.usd_rate(found).sum() * hours <= spare * least * (1 + 1e-6)
        assert feasible(problem, found)
    with pytest.raises(InputError, match="budget of .* USD is too small: the work costs"):
        min_makespan(problem, 0.9 * least)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(problems)
def test_the_shortest_makespan_keeps_slos(problem: AllocationProblem) -> None:
    """As the other objectives do: by the throughput of the allocation, and no grid point within them is faster."""
    able = feasible(problem, GRID, 1e-9)
    try:
        shares, makespan_h = min_makespan(problem)
    except InputError:
        assert not able.any()
        return
    assert feasible(problem, shares, 1e-6)
    rates = (problem.steps_per_hour * GRID[able]).sum(axis=-1)
    took_h = np.divide(problem.steps, rates, out=np.full(rates.shape, np.inf), where=rates > 0).max(axis=-1)
    assert makespan_h <= took_h.min(initial=np.inf) * (1 + 1e-3)


def test_an_slo_that_needs_all_there_is_is_kept_and_the_other_job_waits() -> None:
    """Half a machine of each type: 0.5 x 2.5 + 0.5 x 1 = 1.75 steps an hour are just what job 0 needs."""
    problem = AllocationProblem.of(
        [[1.0, 2.5], [1.0, 1.0]], [1.0, 1.0], quotas=[0.5, 0.5], steps=[3.5, 1.0], slo_h=[2.0, np.inf]
    )
    shares, makespan_h = min_makespan(problem)
    assert shares == pytest.approx(np.array([[0.5, 0.5], [0.0, 0.0]]))
    assert makespan_h == np.inf


def test_a_job_that_waits_for_what_slos_leave_is_done_in_the_shortest_time() -> None:
    """Job 0 needs 2.5 steps an hour: half of type 1 does 2, a quarter of type 0 the rest.

    A quarter of type 0 is left, where job 1 does its 3 steps in 12 hours.
    """
    problem = AllocationProblem.of(
        [[2.0, 4.0], [1.0, 1.0]], [1.0, 1.0], quotas=[0.5, 0.5], steps=[5.0, 3.0], slo_h=[2.0, np.inf]
    )
    shares, makespan_h = min_makespan(problem)
    assert makespan_h == pytest.approx(12.0, rel=1e-3)
    assert feasible(problem, shares, 1e-6)


def test_slos_that_cannot_all_be_kept_are_eased_by_the_least_and_the_others_stay() -> None:
    problem = AllocationProblem.of(
        [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]], [1.0, 3.0], steps=[10.0, 10.0, 10.0], slo_h=[4.0, 8.0, np.inf]
    )
    found = eased(problem)
    # The fastest type does ten steps in five hours.
    assert found.slo_h[0] == pytest.approx(5.0, rel=1e-4)
    assert found.slo_h[1:].tolist() == [8.0, np.inf]
    assert min_cost(found, CostObjective.LINEAR).shape == (3, 2)


def test_the_papers_example_splits_time_between_a_cheap_and_a_fast_machine() -> None:
    """A budget between the two: part of the time on a K80, the rest on a V100 (3.1)."""
    problem = AllocationProblem.of([[1.0, 4.0]], [0.5, 3.0], steps=[100.0], types=["K80", "V100"])
    shares, makespan_h = min_makespan(problem, 60.0)
    # x on V100, y on K80, x + y = M: 4 x + y = 100, 3 x + 0.5 y = 60.
    x = (60 - 50) / (3 - 2)
    assert shares[0] * makespan_h == pytest.approx([100 - 4 * x, x], rel=1e-2)


def test_the_sum_of_ratios_is_exact_where_no_quota_binds_and_refused_where_one_does() -> None:
    free = AllocationProblem.of([[1.0, 4.0], [1.0, 2.0]], [1.0, 3.0])
    assert min_cost(free, CostObjective.PER_JOB).tolist() == [[0, 1], [1, 0]]
    tight = AllocationProblem.of([[1.0, 4.0], [1.0, 4.0]], [1.0, 3.0], quotas=[np.inf, 1])
    with pytest.raises(InputError, match="quota of 1 type 1 binds: 2 jobs would have them"):
        min_cost(tight, CostObjective.PER_JOB)
    late = AllocationProblem.of([[1.0, 2.0]], [1.0, 3.0], steps=[10.0], slo_h=[6.0])
    with pytest.raises(InputError, match="SLO of job 0 binds"):
        min_cost(late, CostObjective.PER_JOB)


def test_what_cannot_be_met_is_named() -> None:
    hopeless = AllocationProblem.of(
        [[1.0], [1.0]], [1.0], steps=[10.0, 10.0], slo_h=[5.0, np.inf], jobs=["bert", "resnet"]
    )
    with pytest.raises(InputError, match=r"in the way: SLO of bert: 10 steps in 5 h \(missed by 50%\)"):
        max_total_throughput(hopeless)
    scarce = AllocationProblem.of(
        [[1.0], [1.0], [1.0]], [1.0], steps=[10.0] * 3, slo_h=[10.0] * 3, quotas=[2], types=["p3.2xlarge"]
    )
    with pytest.raises(InputError, match=r"quota of 2 p3.2xlarge \(missed by 50%\)"):
        min_cost(scarce)
    none = AllocationProblem.of([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0], quotas=[np.inf, 0.0])
    with pytest.raises(InputError, match="jobs cannot all be done; in the way: "):
        min_makespan(none)


@pytest.mark.parametrize(
    ("rates", "prices", "more", "problem"),
    [
        ([[1.0, 2.0]], [1.0], {}, "usd_per_hour has 1 entries; 2 are needed"),
        ([[1.0], [0.0]], [1.0], {}, "job 1 has no rate on any of type 0"),
        ([[-1.0]], [1.0], {}, "finite and not negative"),
        ([[1.0]], [0.0], {}, "usd_per_hour must be finite and positive"),
        ([[1.0]], [1.0], {"quotas": [1.0, 2.0]}, "quotas has shape"),
        ([[1.0]], [1.0], {"slo_h": [0.0]}, "slo_h must be positive"),
        ([[1.0]], [1.0], {"steps": [np.nan]}, "steps must be finite and positive"),
    ],
)
def test_bad_problems_are_told(rates: list, prices: list, more: dict, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        AllocationProblem.of(rates, prices, **more)
