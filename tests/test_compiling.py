"""Compiled functions: what Python may call, and when what is kept on disk is compiled again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

import ebbtide
from ebbtide.base import compiling
from ebbtide.base.compiling import _INNER_OPTIONS, _Compiled, compiled, inner

SOURCES = Path(ebbtide.__file__).parents[1]


@inner
def _twice(value: float) -> float:
    return 2.0 * value


@compiled
def _four_times(value: float) -> float:
    return _twice(_twice(value))


def test_what_only_compiled_code_may_call_says_so() -> None:
    """Entered from Python, it would crash the interpreter."""
    for _ in range(2):
        with pytest.raises(TypeError, match=r"_twice is called by compiled functions only, not from Python"):
            _twice(1.0)
        assert _four_times(3.0) == 12.0


def test_a_function_is_compiled_again_when_what_is_compiled_into_it_changes() -> None:
    """Numba looks at a function's own file alone."""
    found = {
        path.relative_to(SOURCES).as_posix()
        for path in compiling._compiled_into(
            SOURCES / "ebbtide_papers" / "deepspotcloud" / "compiled" / "migration.py"
        )
    }
    assert found == {
        "ebbtide/base/compiled_records.py",
        "ebbtide/base/compiling.py",
        "ebbtide_papers/deepspotcloud/compiled/migration.py",
        "ebbtide_papers/deepspotcloud/compiled/choice.py",
        "ebbtide_papers/deepspotcloud/compiled/market.py",
        "ebbtide_papers/deepspotcloud/compiled/training.py",
    }
    runs = compiling._compiled_into(SOURCES / "ebbtide_papers" / "deadlines" / "deadline_runs.py")
    assert SOURCES / "ebbtide" / "policies" / "deadline" / "solving.py" in runs


def test_all_inner_functions_of_the_package_refuse_python() -> None:
    from ebbtide.policies.deadline import rules as choosing
    from ebbtide.policies.deadline import solving
    from ebbtide_papers.cumulon import cluster_replays, cookbook_replays
    from ebbtide_papers.deadlines import deadline_hindsight, deadline_runs
    from ebbtide_papers.deepspotcloud.compiled import choice, market, migration, training

    deadlines = (choosing, solving, deadline_hindsight, deadline_runs)
    for module in (choice, market, migration, training, cluster_replays, cookbook_replays, *deadlines):
        functions = [
            one for one in vars(module).values() if isinstance(one, _Compiled) and one._options is _INNER_OPTIONS
        ]
        assert functions
        for function in functions:
            with pytest.raises(TypeError, match="not from Python"):
                function()


_ASKS = """
import numpy as np
from ebbtide.forecasts.revocation.passage import held_since
print("asks", flush=True)
held_since(np.zeros(1), np.ones(1), np.ones(1))
print(sum(held_since.dispatcher().stats.cache_misses.values()))
"""


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_processes_that_need_a_function_at_once_compile_it_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _ASKS]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert all(process.stdout and process.stdout.readline() == "asks\n" for process in both)
    assert sorted(int(process.communicate()[0]) for process in both) == [0, 1]


def test_where_locks_cannot_be_written_it_is_compiled_all_the_same(tmp_path: Path) -> None:
    function = numba.njit(lambda value: value + 1.0)
    compiling._compile_once(function, tmp_path / "not" / "there.lock")
    assert function(1.0) == 2.0
