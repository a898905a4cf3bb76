"""Cookbooks solved from prices that were seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.policies.cookbook.from_prices import Shortages, StepCharges, solved_from_prices, workflow_of


def job(**fields: Any) -> eb.Job:
    """Twelve machine-hours on c3.xlarge."""
    given = {"name": "work", "steps": 12_000, "steps_per_hour": {"c3.xlarge": 1000.0}, "machines": 4}
    return eb.Job.parse(
        {**given, "coupling": "independent", "checkpoint": {"save_s": 0, "restore_s": 0}, **fields}
    )


def test_a_job_is_a_workflow_of_its_phases() -> None:
    phases = {"phases": [{"share": 1, "speedup": {"parallel": 0.5}}, {"share": 3, "speedup": {"table": {2: 1.5}}}]}
    workflow = workflow_of(job(speedup=phases, checkpoint={"restore_s": 360}), 1 / 3.6, "there")
    assert [each.work_h for each in workflow.jobs] == pytest.approx([3.0, 9.0])
    assert workflow.start_work_h == pytest.approx(0.1)
    assert workflow.jobs[1].speedup.speedup(2) == 1.5
    assert workflow_of(job(), 1 / 3.6, "there").jobs[0].speedup.speedup(4) == 4.0


def test_a_shortage_costs_what_a_machine_is_taken_to_cost_in_it() -> None:
    """The price never changes, and there is no time to wait: in a shortage a machine costs four times as much."""
    seen = (np.array([0.0]).tobytes(), np.array([0.1]).tobytes())
    workflow = workflow_of(job(), 1 / 3.6, "there").model_dump_json()
    plain = StepCharges(
        started_s=7 * DAY_S,
        steps=3,
        step_s=HOUR_S,
        count=1,
        whole=True,
        ahead=0,
        listed=None,
        shortages=None,
        short_usd_per_hour=0.4,
    )
    usd = []
    for lasts_s in (None, 600.0, 6 * HOUR_S):
        shortages = None if lasts_s is None else Shortages(life_s=10 * HOUR_S, lasts_s=lasts_s)
        book = solved_from_prices(seen, workflow, replace(plain, shortages=shortages), 4, 0.0)
        usd.append(book.expected_usd(0.0, 0.1, 12.0, 0))
    assert usd[0] == pytest.approx(1.2, rel=1e-3)
    assert usd[0] < usd[1] < usd[2] < 4 * usd[0]


def test_work_that_cannot_be_done_in_time_is_refused() -> None:
    seen = (np.array([0.0]).tobytes(), np.array([0.1]).tobytes())
    charged = StepCharges(7 * DAY_S, 2, HOUR_S, 1, True, 0, None, None, 0.4)
    with pytest.raises(InputError):
        solved_from_prices(seen, workflow_of(job(), 1 / 3.6, "there").model_dump_json(), charged, 4, 0.0)
