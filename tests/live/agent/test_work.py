"""What a checkpoint of a program holds that does not tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.live.agent.config import Assignment
from ebbtide.live.agent.work import Work


def work(*steps: tuple[float, int], direction: str = "") -> Work:
    found = Work(Assignment("t", ("train",), 100, "loss", direction=direction), Path("checkpoints"), 0.0, began=4)
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
    assert work((9.9, 5), (12.0, 6), (13.0, 7), (14.0, 8), (15.0, 9)).step_of(written) == step


def test_the_metric_of_a_checkpoint_is_that_of_its_step() -> None:
    found = work(direction="minimize")
    for step, loss in ((5, 0.5), (6, 0.4), (7, 0.9)):
        found.told(step, loss, 0.0, 0.0)
    assert [found.metric_of(step) for step in (4, 5, 6, 7, 9)] == [None, 0.5, 0.4, 0.9, 0.9]
