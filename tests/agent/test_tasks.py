"""Tasks of an array on one machine: results that cannot be stored, and a disk that is too small."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.runs.cloud_as_told import Clock

from ebbtide.agent import tasks
from ebbtide.agent.config import Assignment
from ebbtide.agent.folders import FullDiskError
from ebbtide.agent.inputs import DamagedInputError
from ebbtide.agent.protocol import Hand, Log, Report, TaskDone, TaskFailed
from ebbtide.agent.results import TaskResult, TaskResults
from ebbtide.agent.tasks import TaskRunner
from ebbtide.errors import StorageError
from ebbtide.storage.objects import FolderStore


class Immediate(Clock):
    """A clock on which each thread's work is done where the thread would begin."""

    def begin(self, target: Callable[[], None]) -> None:
        target()


class RefusingStore(FolderStore):
    """A store that takes nothing, and for some time does not answer at all."""

    def __init__(self, root: Path, clock: Clock, away_until_s: float, refuses_until_s: float) -> None:
        super().__init__(root)
        self._clock, self._away_until_s, self._refuses_until_s = clock, away_until_s, refuses_until_s

    def has(self, key: str) -> bool:
        if key.endswith("/0") and self._clock.now_s < self._away_until_s:
            raise StorageError("does not answer")
        return super().has(key)

    def put_once(self, key: str, content: bytes) -> bool:
        if self._clock.now_s < self._refuses_until_s:
            raise StorageError(f"{key}: AccessDenied (403)")
        return super().put_once(key, content)


def runner_of(folder: Path, machine: SimpleNamespace, told: list[Report], *, side_by_side: int = 1) -> TaskRunner:
    """A runner whose work is done at once, and whose reports are kept."""
    return TaskRunner(
        Assignment("run-000", ("true",), 0, "", side_by_side=side_by_side),
        folder / "work",
        folder / "code",
        "run-m0000",
        1.0,
        machine,  # type: ignore[arg-type]
        lambda do: do(),
        lambda report, _: told.append(report),
    )


def reports_of(folder: Path, away_until_s: float, refuses_until_s: float) -> tuple[list[Report], float]:
    """Run one task, which succeeds; returns the reports of it, and the time at the end."""
    clock, told = Immediate(), list[Report]()
    program = SimpleNamespace(exit_code=0, kill=lambda: None)
    machine = SimpleNamespace(
        runtime=clock,
        objects=RefusingStore(folder / "store", clock, away_until_s, refuses_until_s),
        start=lambda *_: program,
        end_left=lambda: None,
    )
    runner = runner_of(folder, machine, told)
    runner.hand(Hand(0, (0,), ("a",)))
    for _ in range(20):
        clock.now_s += 1.0
        runner.tick(clock.now_s, float("inf"))
    return told, clock.now_s


def test_tasks_whose_machine_s_disk_is_too_small_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, their machine was paid for ever, and nobody was told."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tasks, "fetch_inputs", full)
    told, now_s = reports_of(tmp_path, 0.0, 0.0)
    assert [type(each) for each in told] == [Log, TaskFailed]
    assert isinstance(told[1], TaskFailed)
    assert "the machine's disk is too small" in told[1].tail[0]
    assert (told[1].of_machine, told[1].cannot_start) == (True, False)
    assert 300.0 <= now_s < 400.0


def test_tasks_whose_machine_finds_damaged_inputs_may_be_done_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, one machine that joined late ended the array for good."""

    def damaged(*_: object) -> None:
        raise DamagedInputError("what parts has stored cannot be had")

    monkeypatch.setattr(tasks, "fetch_inputs", damaged)
    told, _ = reports_of(tmp_path, 0.0, 0.0)
    (failed,) = [each for each in told if isinstance(each, TaskFailed)]
    assert (failed.of_machine, failed.cannot_start) == (True, False)


def test_a_result_that_storage_refuses_fails_its_task(tmp_path: Path) -> None:
    """Before, its machine was paid for ever, and nobody was told."""
    (line, report), now_s = reports_of(tmp_path, 0.0, 1e9)
    assert isinstance(line, Log)
    assert "the result of task 0 is not stored" in line.line
    assert isinstance(report, TaskFailed)
    assert (report.task, report.code) == (0, None)
    assert "could not be stored for 300 s: results/run-000/done/0: AccessDenied (403)" in report.tail[0]
    assert 300.0 <= now_s < 400.0


def test_a_store_that_is_full_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the result was deleted after five minutes, and hours of work with it."""
    keep, began = TaskResults.keep, []

    def full(results: TaskResults, result: TaskResult, folder: Path) -> TaskResult | None:
        began.append(result)
        if len(began) < 2_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return keep(results, result, folder)

    monkeypatch.setattr(TaskResults, "keep", full)
    (line, report), now_s = reports_of(tmp_path, 0.0, 0.0)
    assert isinstance(line, Log)
    assert "the result of task 0 is not stored: [Errno 28] No space left on device; asked again" in line.line
    assert isinstance(report, TaskDone)
    assert now_s > 1_900.0


@pytest.mark.parametrize(("number", "limit_s"), [(errno.ENOSPC, 3600.0), (errno.EFBIG, 300.0)])
def test_a_result_for_which_a_store_never_has_room_fails_its_task(
    number: int, limit_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, its machine was paid without end, and nobody was told."""

    def full(*_: object) -> None:
        raise OSError(number, "no room")

    monkeypatch.setattr(TaskResults, "keep", full)
    (line, report), now_s = reports_of(tmp_path, 0.0, 0.0)
    assert isinstance(line, Log)
    assert isinstance(report, TaskFailed)
    assert f"its result could not be stored for {limit_s:.0f} s" in report.tail[0]
    assert not report.of_machine
    assert limit_s <= now_s < limit_s + 100.0


def test_each_kind_of_refusal_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name a temporary file, another one each time: before, each try was a line."""
    keep, tries = TaskResults.keep, iter(range(1_000))

    def full(results: TaskResults, result: TaskResult, folder: Path) -> TaskResult | None:
        if (number := next(tries)) < 900:
            raise OSError(errno.ENOSPC if number % 100 < 50 else errno.EDQUOT, f"no room for .part-{number}")
        return keep(results, result, folder)

    monkeypatch.setattr(TaskResults, "keep", full)
    (*lines, report), _ = reports_of(tmp_path, 0.0, 0.0)
    assert isinstance(report, TaskDone)
    assert [type(line) for line in lines] == [Log, Log]
    assert next(tries) > 900


def test_a_machine_whose_disk_has_no_room_for_results_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise FullDiskError("No space left on device")

    monkeypatch.setattr(TaskResults, "keep", full)
    (_, report), now_s = reports_of(tmp_path, 0.0, 0.0)
    assert isinstance(report, TaskFailed)
    assert report.of_machine
    assert 300.0 <= now_s < 400.0


@pytest.mark.parametrize(("away_until_s", "refuses_until_s"), [(2_000.0, 2_100.0), (0.0, 200.0)])
def test_storage_that_is_away_is_waited_for(tmp_path: Path, away_until_s: float, refuses_until_s: float) -> None:
    (*_, report), now_s = reports_of(tmp_path, away_until_s, refuses_until_s)
    assert isinstance(report, TaskDone)
    assert now_s >= refuses_until_s


def test_a_task_that_cannot_begin_beside_others_waits_for_them(tmp_path: Path) -> None:
    """Before, its machine was given back, and all that ran there was killed."""
    clock, told, begun = Immediate(), list[Report](), []

    def start(*_: object) -> SimpleNamespace:
        if sum(each.exit_code is None for each in begun) == 2:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        begun.append(SimpleNamespace(exit_code=None, kill=lambda: None))
        return begun[-1]

    machine = SimpleNamespace(
        runtime=clock, objects=FolderStore(tmp_path / "store"), start=start, end_left=lambda: None
    )
    runner = runner_of(tmp_path, machine, told, side_by_side=4)
    runner.hand(Hand(0, (0, 1, 2, 3), ("a", "b", "c", "d")))
    for _ in range(20):
        clock.now_s += 1.0
        runner.tick(clock.now_s, float("inf"))
        if clock.now_s > 5.0:
            begun[0].exit_code = 0
        if clock.now_s > 10.0:
            for each in begun:
                each.exit_code = 0
    done = sorted(report.task for report in told if isinstance(report, TaskDone))
    assert done == [0, 1, 2, 3]
    assert not any(isinstance(report, TaskFailed) for report in told)
