"""Cookbooks as files: what is read is what was written; what is none is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ebbtide.errors import InputError
from ebbtide.jobs.job import Amdahl, SpeedupTable
from ebbtide.jobs.workflow import Workflow, WorkflowJob
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
from ebbtide.policies.cookbook.solving import solve
from ebbtide.policies.cookbook.storage import load_cookbook, save_cookbook


def test_a_cookbook_is_read_as_it_was_written(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    market = ChargeModel.at_step_start(np.array([0.1, 0.3]), random.dirichlet(np.ones(2), (4, 2)), 1.0)
    jobs = (
        WorkflowJob(name="a", work_h=2.5, speedup=Amdahl(parallel=0.9)),
        WorkflowJob(name="b", work_h=1, speedup=SpeedupTable(table={2: 1.5})),
    )
    problem = CookbookProblem(Workflow(name="w", jobs=jobs, start_work_h=0.1), market, most=5, risk_aversion=0.3)
    book = solve(problem)
    save_cookbook(book, tmp_path / "book.safetensors")
    found = load_cookbook(tmp_path / "book.safetensors")
    assert found.problem.workflow == problem.workflow
    assert (found.problem.most, found.problem.risk_aversion) == (5, 0.3)
    for name in ("actions", "mean_usd", "deviation_usd"):
        np.testing.assert_array_equal(getattr(found, name), getattr(book, name))
    np.testing.assert_array_equal(found.problem.market.transition, market.transition)
    assert found.summary(0.29) == book.summary(0.31)
    assert {path.name for path in tmp_path.iterdir()} == {"book.safetensors"}


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(InputError, match="cannot be read as a cookbook"):
        load_cookbook(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="cannot be read as a cookbook"):
        load_cookbook(path)
    save_file({"actions": np.zeros(3)}, path)
    with pytest.raises(InputError, match="is no cookbook"):
        load_cookbook(path)
