"""The oracle against trying every plan."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import InputError
from ebbtide.jobs.job import Amdahl, SpeedupTable
from ebbtide.jobs.workflow import Workflow, WorkflowJob
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
from ebbtide.policies.cookbook.solving import solve
from ebbtide_papers.cumulon.oracle import least_costs

PRICES = np.array([0.1, 0.4, 1.0])
CONCAVE = SpeedupTable(table={1: 1.0, 2: 1.75, 3: 2.25})


def workflow(work_h: float, speedup: Amdahl | SpeedupTable = CONCAVE) -> Workflow:
    return Workflow(name="w", jobs=(WorkflowJob(name="a", work_h=work_h, speedup=speedup),))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=3, max_size=5), st.integers(1, 40))
def test_no_plan_is_cheaper_and_one_is_as_cheap(trace: list[int], quarters: int) -> None:
    """Plans whose last tick is used only in part: work that is done a tick is a quarter's multiple."""
    work_h = quarters / 4
    speeds = [0.0, 1.0, 1.75, 2.25]
    best = np.inf
    for plan in product(range(4), repeat=len(trace)):
        done, usd = (
            sum(speeds[n] for n in plan),
            sum(n * PRICES[place] for n, place in zip(plan, trace, strict=True)),
        )
        if done >= work_h - 1e-9:
            best = min(best, usd)
    (found,) = least_costs(workflow(work_h), PRICES, np.array([trace]), 3600.0, 3)
    assert found <= best + 1e-9
    # The plan may stop a machine within a tick: what that saves is less than one machine's tick.
    assert (best == np.inf) == (found == np.inf)
    if best < np.inf:
        assert best - found <= max(PRICES[place] for place in trace) + 1e-9


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from([0.1, 0.3, 0.4, 1.0]), min_size=2, max_size=4),
    st.sampled_from([0.0, 0.25]),
    st.sampled_from([0.5, 2.0, 3.75]),
)
def test_the_dynamic_program_is_the_best_of_all_plans(usd: list[float], overhead_h: float, work_h: float) -> None:
    """With overheads, two jobs and work in quarters, so that no level is between two."""
    jobs = tuple(
        WorkflowJob(name=str(n), work_h=work_h / 2, speedup=SpeedupTable(table={1: 1.0, 2: 1.5 + n / 2}))
        for n in range(2)
    )
    work = Workflow(name="w", jobs=jobs, start_work_h=overhead_h, stop_work_h=overhead_h)
    best = np.inf
    for plan in product(range(3), repeat=len(usd)):
        left, held, spent = work.work_h, 0, 0.0
        for size, price in zip(plan, usd, strict=True):
            left, held, spent = float(work.progress(left, held, size, 1.0)), size, spent + size * price
        if left <= 1e-9:
            best = min(best, spent)
    problem = known_prices(work, np.array(usd), most=2, work_unit_h=1 / 64)
    if best == np.inf:
        with pytest.raises(InputError, match="cannot be done"):
            solve(problem)
    else:
        assert float(solve(problem).mean_usd[0, -1, 0, 0]) == pytest.approx(best, abs=0.02)


def test_where_greed_is_best_the_dynamic_program_finds_the_same() -> None:
    usd = np.array([0.4, 0.1, 1.0, 0.4, 0.1])
    for work_h in (2.25, 4.5, 6.5):
        plan = solve(known_prices(workflow(work_h), usd, most=3, work_unit_h=0.25))
        trace = np.array([[1, 0, 2, 1, 0]])
        (least,) = least_costs(workflow(work_h), PRICES, trace, 3600.0, 3)
        # A whole machine for a whole step is charged where the greedy plan stops within it.
        assert least - 1e-6 <= float(plan.mean_usd[0, -1, 0, 0]) <= least + 0.4


def test_by_hand() -> None:
    # Two hours at 0.1 with three machines each are 4.5 hours' work; half an hour more of one at 0.4.
    (usd,) = least_costs(workflow(5.0), PRICES, np.array([[0, 1, 0, 2]]), 3600.0, 3)
    assert usd == pytest.approx(6 * 0.1 + 0.5 * 0.4)


def test_what_has_no_greedy_plan_is_refused() -> None:
    with pytest.raises(InputError, match="not concave"):
        least_costs(
            workflow(1.0, SpeedupTable(table={1: 1.0, 2: 1.0, 3: 3.0})), PRICES, np.zeros((1, 2), int), 3600.0, 3
        )
    two = Workflow(name="w", jobs=(*workflow(1.0).jobs, *workflow(1.0, Amdahl(parallel=0.5)).jobs))
    with pytest.raises(InputError, match="several speedups"):
        least_costs(two, PRICES, np.zeros((1, 2), int), 3600.0, 3)


def known_prices(workflow: Workflow, charges_usd: Sequence[float], **given: Any) -> CookbookProblem:
    """The problem with all future charges known, USD for each step: `solve` finds the best plan (section 4)."""
    charges = np.asarray(charges_usd, dtype=np.float64)[:, None, None]
    steps = len(charges)
    market = ChargeModel(np.ones(1), np.ones((steps, 1, 1)), charges, np.zeros((steps, 1)))
    return CookbookProblem(workflow, market, **given)
