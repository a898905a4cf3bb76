"""Tests that start processes: they say so by the fixture `processes`, and no other test may start one.

A pytest plugin, loaded by conftest.py. A test with the marker `exhaustive` has the marker `long`, too. The fixture's name among those of a test, directly or through another fixture,
gives the test the marker `processes`; `tests.run` runs these tests with more workers than the machine has cores.
With `--dist loadscope`, the tests of a file stay together only if they share a fixture of their module.
"""

from __future__ import annotations

import _posixsubprocess
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_FIXTURE = "processes"
# A file that the plugin writes with the test files that have such tests, one a line; for `tests.run`.
FILES_VARIABLE = "EBBTIDE_TEST_PROCESS_FILES"
# Replays that take long are shared with processes that compute, at once on a slow machine.
_COMPUTES = "ebbtide.backtesting.replay_worker"
# Asked once by Python's `platform`, for the first package that wants to know; MLflow does so as it is imported.
_PROCESSOR = "uname -p"
_FORKS = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "os.system"})

# What the test that runs now has started without the fixture; None: it may start processes.
_started: list[str] | None = None


@pytest.fixture(scope="session")
def processes() -> None:
    """Lets a test start processes; `pytest.mark.usefixtures("processes")` where it is not called for by name."""


@pytest.fixture(autouse=True)
def _no_other_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    global _started
    if _FIXTURE in request.fixturenames:
        yield
        return
    _started = []
    yield
    found, _started = _started, None
    assert not found, f"this test starts a process ({found[0]}): it needs the fixture `{_FIXTURE}`"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that have the fixture, before those of other markers are left out."""
    files = set()
    for item in items:
        if item.get_closest_marker("exhaustive"):
            item.add_marker("long")
        if _FIXTURE in getattr(item, "fixturenames", ()):
            item.add_marker(_FIXTURE)
            files.add(item.path)
    if name := os.environ.get(FILES_VARIABLE):
        # Each worker writes the same, and one may be killed meanwhile.
        temporary = Path(f"{name}-{os.getpid()}")
        temporary.write_text("".join(f"{path}\n" for path in sorted(files)), encoding="utf-8")
        temporary.replace(name)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep tests together that share a fixture of their module, and spread the others over all workers."""
    if config.getvalue("dist") != "loadscope":
        return None

    def scope(test: str) -> str:
        file = test.split("::")[0]
        return file if 'scope="module"' in (config.rootpath / file).read_text(encoding="utf-8") else test

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = scope
    return scheduler


def _saw(call: str) -> None:
    if _started is not None and _COMPUTES not in call and call != _PROCESSOR:
        _started.append(call)


def _watch() -> None:
    """Have starts of processes seen: `subprocess` and `multiprocessing` use the same function, forks tell auditors."""
    fork_exec = _posixsubprocess.fork_exec

    def watched(*arguments: Any) -> int:
        _saw(" ".join(os.fsdecode(word) for word in arguments[0]))
        return fork_exec(*arguments)

    _posixsubprocess.fork_exec = watched
    subprocess._fork_exec = watched  # type: ignore[attr-defined]
    sys.addaudithook(lambda event, _: _saw(event) if event in _FORKS else None)


_watch()
