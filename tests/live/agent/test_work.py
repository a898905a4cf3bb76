"""The step and the metric of a checkpoint, and when the best is saved, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.live.agent.config import Assignment
from ebbtide.live.agent.work import Work


class Asked:
    """A program that counts how often it was asked to save."""

    pid, exit_code = 2, None

    def __init__(self) -> None:
        self.times = 0

    def ask_to_save(self) -> None:
        self.times += 1


def work_of(direction: str = "minimize", began: int = 0) -> tuple[Work, Asked]:
    program = Asked()
    assignment = Assignment("t", ("true",), 100, "loss", direction=direction)
    work = Work(assignment, Path("/nowhere"), 0.0, process=program, began=began, has_api=True)  # type: ignore[arg-type]
    return work, program


@pytest.mark.parametrize(
    ("time_s", "step"),
    [
        (95.0, 5),  # before the first was told: that of the checkpoint it resumed from
        (100.0, 6),  # told, and then saved
        (101.9, 7),  # saved just before it was told
        (102.0, 7),
        (103.1, 8),  # half of the next step is done
        (103.5, 8),
        (1e9, 9),
    ],
)
def test_the_step_of_files_is_what_was_told_by_then(time_s: float, step: int) -> None:
    work, _ = work_of(began=5)
    work.steps_told.extend([(100.0, 6), (102.0, 7), (104.0, 8), (106.0, 9)])
    assert work.step_at(time_s) == step


def test_without_a_step_told_files_are_of_the_step_it_resumed_from() -> None:
    work, _ = work_of(began=5)
    assert work.step_at(100.0) == 5


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


def test_the_metric_of_a_checkpoint_is_the_last_one_up_to_its_step() -> None:
    work, _ = work_of(direction="maximize", began=5)
    assert work.metric_of(7) is None
    work.told(7, 0.5, 10.0, save_s=0.0)
    assert work.metric_of(7) == work.metric_of(9) == 0.5
    # It was measured after what is in that checkpoint.
    assert work.metric_of(6) is None


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
