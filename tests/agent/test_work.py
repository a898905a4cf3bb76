"""The step and the metric of a checkpoint, and when the best is saved, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from ebbtide.agent.config import Assignment
from ebbtide.agent.machine import Mirrors
from ebbtide.agent.protocol import Ending
from ebbtide.agent.work import AssignmentWork


class Asked:
    """A program that counts how often it was asked to save."""

    pid, exit_code = 2, None

    def __init__(self) -> None:
        self.times = 0

    def ask_to_save(self) -> None:
        self.times += 1


def work_of(direction: str = "minimize", began: int = 0) -> tuple[AssignmentWork, Asked]:
    program = Asked()
    assignment = Assignment("t", ("true",), 100, "loss", direction=direction)
    work = AssignmentWork(assignment, Path("/nowhere"), 0.0, process=program, began=began, has_api=True)  # type: ignore[arg-type]
    return work, program


def test_a_program_is_asked_to_save_its_best_and_not_too_often() -> None:
    work, program = work_of()
    for now_s, value, times in [(1.0, 0.9, 1), (2.0, 0.95, 1), (3.0, 0.8, 2), (3.1, 0.7, 2)]:
        work.told(int(now_s), value, now_s, save_s=0.01)
        assert program.times == times
    # The last one was the best, and too early; it still is.
    work.save_best(3.4, 0.01)
    assert program.times == 2
    work.save_best(3.6, 0.01)
    assert program.times == 3
    work.save_best(9.0, 0.01)
    assert program.times == 3
    # Where saving takes a second, it takes at most a tenth of the time.
    work.told(12, 0.6, 12.0, save_s=1.0)
    assert program.times == 3
    # A worse value since then: what would be saved now is not the best.
    work.told(13, 0.9, 13.0, save_s=1.0)
    work.save_best(30.0, 1.0)
    assert program.times == 3


def test_nothing_is_the_best_without_a_direction() -> None:
    work, program = work_of(direction="")
    work.told(1, 0.5, 10.0, save_s=0.0)
    assert program.times == 0
    assert work.metric_of(1) is None


def test_checkpoints_that_are_known_to_be_good_and_the_best_stay() -> None:
    class Kept:
        kept: frozenset[int] = frozenset()

    work, _ = work_of()
    uploads = Kept()
    work.uploads, work.restored, work.proved = uploads, 7, {6, 7}  # type: ignore[assignment]
    work.best = 3, 0.5
    work.keep_in_storage()
    assert uploads.kept == {3, 6, 7}
    work.prove()
    assert uploads.kept == {3, 7}
    # Of machines that train as one the controller says which part stays.
    work.best_part, work.best = 2, None
    work.keep_in_storage()
    assert uploads.kept == {2, 7}


def test_one_of_several_machines_is_not_asked_to_save_alone() -> None:
    work, program = work_of()
    work.assignment = replace(work.assignment, addresses=("10.0.0.1", "10.0.0.2"))
    work.told(10, 0.5, 1000.0, 1.0)
    assert program.times == 0
    assert work.metric_of(10) == 0.5


def work_with(*steps: tuple[float, int], direction: str = "") -> AssignmentWork:
    found = AssignmentWork(
        Assignment("t", ("train",), 100, "loss", direction=direction), Path("checkpoints"), 0.0, began=4
    )
    found.steps.extend(steps)
    return found


@pytest.mark.parametrize(
    ("written", "step"),
    [
        ((10.0, 10.0), 5),  # told just before
        ((11.95, 11.95), 6),  # told just after
        ((10.1, 11.9), 6),  # takes long, and is told at its end
        ((10.1, 14.0), 5),  # beside the training
        ((9.0, 9.0), 4),  # before the first step
    ],
)
def test_a_checkpoint_holds_the_step_that_was_told_as_it_was_written(
    written: tuple[float, float], step: int
) -> None:
    # Much later it is copied.
    assert work_with((9.9, 5), (12.0, 6), (13.0, 7), (14.0, 8), (15.0, 9)).step_of(written) == step


def test_the_metric_of_a_checkpoint_is_that_of_its_step() -> None:
    found = work_with(direction="minimize")
    for step, loss in ((5, 0.5), (6, 0.4), (7, 0.9)):
        found.told(step, loss, 0.0, 0.0)
    assert [found.metric_of(step) for step in (4, 5, 6, 7, 9)] == [None, 0.5, 0.4, 0.9, 0.9]


@pytest.mark.parametrize(
    ("code", "was_told", "machines", "ending"),
    [
        (0, False, 1, Ending.FINISHED),
        (0, True, 1, Ending.LEFT),
        (-15, True, 1, Ending.LEFT),
        (1, False, 1, Ending.LEFT),
        (0, False, 2, Ending.LEFT),
    ],
)
def test_a_program_that_ends_in_a_notice_before_it_is_told_has_done_everything(
    code: int, was_told: bool, machines: int, ending: Ending
) -> None:
    """It waits to be told while its last save is under way; begun anew, it would train all again."""
    work, program = work_of()
    program.exit_code = code  # type: ignore[assignment]
    work.has_api, work.asked_to_leave_s = False, 5.0
    work.assignment = replace(work.assignment, addresses=("10.0.0.1",) * machines)
    work.mirror = cast(Mirrors, SimpleNamespace(has_asked=was_told))
    assert work.ending() is ending
