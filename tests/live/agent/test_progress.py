"""Tests of progress read from what programs print for people."""

from __future__ import annotations

import pytest

from ebbtide.live.agent.progress import LogLines


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["Epoch 3/10 loss 0.125"], [{"step": 3, "loss": 0.125}]),
        (["epoch [ 4/10], step [100/500], loss: 1e-3"], [{"step": 4, "loss": 1e-3}]),
        (["epoch=1", "step 700 loss=0.5", "epoch 2"], [{"step": 1}, {}, {"step": 2}]),
        (["global_step: 1200 | val_loss=0.3 loss=-0.5"], [{"step": 1200, "loss": -0.5}]),
        (["iter 5 loss nan", "Iteration 6: loss 2."], [{"step": 5}, {"step": 6, "loss": 2.0}]),
        (["loading 3 epochs of data", "footsteps 5", "", "100%|####| 3/3"], [{}, {}, {}, {}]),
    ],
)
def test_lines_for_people_tell_how_far_it_is(lines: list[str], told: list[dict[str, float]]) -> None:
    reader = LogLines("loss")
    assert [reader.report_of(line) for line in lines] == told


@pytest.mark.parametrize(
    ("began", "printed", "told"),
    [
        (0, [0, 1, 2], [1, 2, 3]),
        (0, [1, 2, 3], [1, 2, 3]),
        (0, [100, 200], [100, 200]),
        # Resumed where five were done: the next is the sixth, whichever way it counts.
        (5, [5, 6], [6, 7]),
        (5, [6, 7], [6, 7]),
    ],
)
def test_programs_that_count_from_nought_lose_no_step(began: int, printed: list[int], told: list[int]) -> None:
    reader = LogLines("", began)
    assert [reader.report_of(f"Epoch {number}")["step"] for number in printed] == told


def test_a_line_about_resuming_does_not_tell_how_a_program_counts() -> None:
    """It names what was done before: taken for the first step, every later one would count one too many."""
    reader = LogLines("loss", 5)
    lines = ["resuming after epoch 5", "epoch 6 loss 0.5", "epoch 7 loss 0.4"]
    assert [reader.report_of(line) for line in lines] == [{}, {"step": 6, "loss": 0.5}, {"step": 7, "loss": 0.4}]
    reader = LogLines("loss", 5)
    assert [reader.report_of(line).get("step") for line in ["Restored step 5", "step 5 loss 1.0", "step 6"]] == [
        None,
        6,
        7,
    ]
