"""The oracle against trying every plan."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import InputError
from ebbtide.policies.cookbook.oracle import least_costs
from ebbtide.workloads.job import Amdahl, SpeedupTable
from ebbtide.workloads.workflow import Workflow, WorkflowJob

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
        done, usd = sum(speeds[n] for n in plan), sum(n * PRICES[place] for n, place in zip(plan, trace, strict=True))
        if done >= work_h - 1e-9:
            best = min(best, usd)
    (found,) = least_costs(workflow(work_h), PRICES, np.array([trace]), 3600.0, 3)
    assert found <= best + 1e-9
    # The plan may stop a machine within a tick: what that saves is less than one machine's tick.
    assert (best == np.inf) == (found == np.inf)
    if best < np.inf:
        assert best - found <= max(PRICES[place] for place in trace) + 1e-9


def test_by_hand() -> None:
    # Two hours at 0.1 with three machines each are 4.5 hours' work; half an hour more of one at 0.4.
    (usd,) = least_costs(workflow(5.0), PRICES, np.array([[0, 1, 0, 2]]), 3600.0, 3)
    assert usd == pytest.approx(6 * 0.1 + 0.5 * 0.4)


def test_what_has_no_greedy_plan_is_refused() -> None:
    with pytest.raises(InputError, match="not concave"):
        least_costs(workflow(1.0, SpeedupTable(table={1: 1.0, 2: 1.0, 3: 3.0})), PRICES, np.zeros((1, 2), int), 3600.0, 3)
    two = Workflow(name="w", jobs=(*workflow(1.0).jobs, *workflow(1.0, Amdahl(parallel=0.5)).jobs))
    with pytest.raises(InputError, match="several speedups"):
        least_costs(two, PRICES, np.zeros((1, 2), int), 3600.0, 3)
