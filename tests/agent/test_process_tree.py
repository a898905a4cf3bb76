"""Whom a signal reaches, on tables of processes written by hand; `test_processes` has real ones."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ebbtide.agent.process_tree import (
    LeftProcesses,
    SystemProcess,
    _ancestry,
    _process,
    _recorded,
    _with_descendants,
    signal_process,
)

# Above the most that Linux gives as an id.
NONE = 1 << 23
# This process and those that started it, one beside it with a child and a grandchild, one that this one started.
OWN = os.getpid()
PARENTS = {
    1: 0,
    NONE + 1: 1,
    OWN: NONE + 1,
    NONE + 2: NONE + 1,
    NONE + 3: NONE + 2,
    NONE + 4: NONE + 3,
    NONE + 5: OWN,
}
TABLE = {pid: SystemProcess(pid, 10 * pid, pid, parent, "S", 1) for pid, parent in PARENTS.items()}


def ids(found: list[SystemProcess]) -> list[int]:
    return sorted(each.pid for each in found)


def test_this_process_and_its_ancestors_are_spared_and_what_they_started_is_not() -> None:
    assert _ancestry(TABLE) - {0} == {OWN, NONE + 1, 1}
    assert ids(_with_descendants([TABLE[NONE + 2]], TABLE)) == [NONE + 2, NONE + 3, NONE + 4]
    assert ids(_with_descendants([TABLE[NONE + 5], TABLE[NONE + 4]], TABLE)) == [NONE + 4, NONE + 5]
    assert _with_descendants([TABLE[OWN], TABLE[NONE + 1], TABLE[1]], TABLE) == []


def test_a_signal_reaches_the_process_that_was_meant_and_none_that_has_its_id_since() -> None:
    own = _process(OWN)
    assert own is not None
    # Signal 0 is sent to nobody: it only shows whether it could be.
    assert signal_process(own, 0)
    assert not signal_process(replace(own, started=own.started + 1), 0)
    assert not signal_process(replace(own, pid=NONE), 0)
    assert _process(NONE) is None


@pytest.mark.parametrize(
    ("state", "threads", "is_dead", "is_frozen"),
    [
        ("S", 1, False, False),
        ("Z", 1, True, True),
        ("Z", 2, False, True),
        ("X", 1, True, True),
        ("T", 1, False, True),
    ],
)
def test_a_process_whose_threads_go_on_is_not_dead(
    state: str, threads: int, is_dead: bool, is_frozen: bool
) -> None:
    each = SystemProcess(7, 1, 7, 1, state, threads)
    assert (each.is_dead, each.is_frozen) == (is_dead, is_frozen)


def test_what_is_on_record_is_found_with_its_session_unless_its_id_is_another_s_by_now() -> None:
    beside = replace(TABLE[NONE + 2], pid=NONE + 6, session=NONE + 2)
    table = TABLE | {beside.pid: beside}
    known = (NONE + 2, 10 * (NONE + 2), NONE + 2)
    assert set(ids(_recorded({known}, table))) == {NONE + 2, NONE + 6}
    assert _recorded({(NONE + 2, 1, NONE + 2)}, table) == []
    assert _recorded({(NONE + 7, 1, NONE + 7)}, table) == []
    assert _recorded({known}, table | {NONE + 2: replace(table[NONE + 2], state="Z")}) == []


@pytest.mark.parametrize(
    ("ended", "collected"),
    [([6, 8], [6, 8]), ([5], []), ([7], []), ([6, 5, 8], [6]), ([6, 7, 8], [6])],
    ids=["adopted", "a program", "of this session", "a program between", "of this session between"],
)
def test_exit_codes_of_programs_and_of_what_this_process_started_are_left_to_others(
    ended: list[int], collected: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """5 is a program, 7 is of this process's own session; the first that has ended is looked at."""
    left, found = list(ended), list[int]()

    def waitid(*_given: object) -> SimpleNamespace | None:
        return SimpleNamespace(si_pid=left[0]) if left else None

    def waitpid(pid: int, _options: int) -> None:
        found.append(pid)
        left.remove(pid)

    monkeypatch.setattr(os, "waitid", waitid)
    monkeypatch.setattr(os, "waitpid", waitpid)
    monkeypatch.setattr(os, "getsid", lambda pid: 1 if pid in (0, 7) else pid)
    LeftProcesses(tmp_path).reap([5])
    assert found == collected
