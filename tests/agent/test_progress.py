"""Tests of progress read from what programs print for people."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ebbtide.agent.program_lines import metric_of
from ebbtide.agent.progress import LogLines


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["Epoch 3/10 loss 0.125"], [{"step": 3, "loss": 0.125}]),
        (
            ["epoch [ 4/10], step [100/500], loss: 1e-2", "epoch [ 4/10], step [500/500], loss: 1e-3"],
            [{"step": 3}, {"step": 4, "loss": 1e-3}],
        ),
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


@pytest.mark.parametrize(
    ("most", "lines", "steps", "why"),
    [
        (0, ["step 5/10", "step 11/10", "step 6/10"], [5, None, 6], "11 is more than its total of 10"),
        (100, ["step 5", "step 101", "step 6"], [5, None, 6], "101 is more than the 100 steps of the job"),
        (0, ["step 5", "step 4", "step 6"], [5, None, 6], "it went back from 5 to 4"),
        (0, ["step 10", "step 1000000000", "step 20"], [10, None, 20], "no machine goes from 10 to 1,000,000,000"),
        (0, ["step 999999999999", "step 20"], [None, 20], "999,999,999,999 is too far for a beginning"),
    ],
)
def test_progress_that_cannot_be_right_is_counted_said_once_and_passed_over(
    most: int, lines: list[str], steps: list[int | None], why: str
) -> None:
    reader = LogLines("", most=most)
    assert [reader.report_of(line).get("step") for line in lines] == steps
    assert reader.refused == 1
    assert [words for words in reader.news() if "cannot be right" in words and why in words]
    assert reader.news() == []


def test_a_program_that_resumes_by_itself_may_go_back() -> None:
    reader = LogLines()
    lines = ["step 20", "restarting from the checkpoint of step 10", "step 11", "step 12"]
    assert [reader.report_of(line).get("step") for line in lines] == [20, None, 11, 12]
    assert reader.refused == 0


def test_the_counter_that_goes_as_far_as_the_training_is_the_one() -> None:
    reader = LogLines("", most=300)
    lines = ["Epoch 1/3 step 100/300", "Epoch 2/3 step 150/300", "Epoch 3/3"]
    assert [reader.report_of(line).get("step") for line in lines] == [100, 150, None]
    reader = LogLines("", most=3)
    assert [reader.report_of(line).get("step") for line in lines] == [0, 1, None]
    # A header that stands alone is read with what is below it.
    assert reader.report_of("loss 0.3") == {"step": 3}


def test_a_counter_that_goes_elsewhere_than_the_job_is_explained() -> None:
    reader = LogLines("loss", most=60)
    assert [reader.report_of(f"step {number}/150 loss 0.5") for number in (1, 2)] == [{}, {}]
    (said,) = reader.silence()
    assert "counts to 150, and the job has 60 steps" in said
    assert LogLines(began=700, most=700).silence() == []  # there is no step left to make
    assert LogLines().silence() == [
        "no progress yet: it has printed nothing, or keeps it back where no terminal reads it"
    ]
    reader = LogLines()
    reader.report_of("Downloading shards: 3/5")
    assert "in 1 lines: none is of a format that is known" in reader.silence()[0]


def test_a_bar_that_begins_anew_in_each_epoch_is_no_progress() -> None:
    reader = LogLines()
    bar = "100%|███| {}/100 [00:{}<00:00, 5.0it/s, loss=0.3]"
    lines = [bar.format(50, 10), bar.format(100, 20), bar.format(1, "01"), "Epoch 1 done", bar.format(60, 11)]
    assert [reader.report_of(line).get("step") for line in lines] == [50, 100, None, 1, None]


def test_the_epoch_behind_a_bar_is_used_where_the_bar_begins_anew() -> None:
    reader = LogLines("avg_epoch_loss", most=10)
    lines = [
        f"{done * 2}%|#####     | {done}/50 [00:05<00:00, 9.5it/s, epoch={epoch}/10, avg_epoch_loss=5.{epoch}]"
        for epoch in (1, 2)
        for done in (10, 50)
    ]
    assert [reader.report_of(line)["step"] for line in lines] == [0, 1, 1, 2]
    # Of a bar over all steps it is not.
    reader = LogLines("", most=50)
    assert [reader.report_of(line)["step"] for line in lines[:2]] == [10, 50]


def test_epochs_that_are_only_announced_are_counted() -> None:
    reader = LogLines("")
    assert [reader.report_of(f"Epoch {epoch}/3").get("step") for epoch in (1, 2, 3)] == [None, 2, 3]


def test_an_epoch_whose_loop_is_printed_below_it_is_done_at_its_end() -> None:
    reader = LogLines("Avg loss")
    lines = [
        "Epoch 1",
        "-------",
        "loss: 2.3  [   64/600]",
        "loss: 2.2  [  564/600]",
        "Test Error: ",
        "Avg loss: 2",
    ]
    assert reader.report_of("Epoch 1") == {"step": 1}, "not known yet"
    assert [reader.report_of(line) for line in lines[1:]][2:] == [{"step": 1}, {}, {"step": 1, "Avg loss": 2.0}]
    assert [reader.report_of(line) for line in ("Epoch 2", *lines[1:3])] == [{"step": 1}, {}, {"step": 1}]


def test_a_line_of_json_with_settings_is_no_progress() -> None:
    reader = LogLines("")
    reader.checked({"epoch": 100, "batch_size": 32, "seed": 0})
    assert not reader.unit


def test_lines_of_json_with_other_names_and_in_log_records_are_read() -> None:
    reader = LogLines("loss")
    told = reader.checked({"epoch": 1, "update": 0.5, "num_updates": "100", "loss": "9.1"})
    assert (told["step"], told["loss"]) == (100, 9.1)
    reader = LogLines("loss")
    told = reader.checked({"level": "info", "message": "step 3/10 loss 0.31"})
    assert (told["step"], told["loss"]) == (3, 0.31)
    assert LogLines("loss").checked({"level": "info", "pid": 12}) == {"level": "info", "pid": 12}
    reader = LogLines("loss", most=100)
    assert "step" in reader.checked({"step": 5, "loss": 0.5})
    assert "step" not in reader.checked({"step": 101, "loss": 0.5})


def test_a_pattern_of_the_user_s_is_used_instead_of_all_others() -> None:
    reader = LogLines("loss", pattern=r"it (?P<step>[\d,]+) of (?P<total>[\d,]+)(?:.*L=(?P<metric>\S+))?")
    assert reader.report_of("epoch 7 loss 0.1") == {}
    assert reader.report_of("it 1,200 of 10,000 ... L=0.25") == {"step": 1200, "loss": 0.25}
    assert reader.report_of("it 1,201 of 10,000 loss 0.5") == {"step": 1201, "loss": 0.5}
    assert reader.news() == ["progress: step 1,200 of 10,000 from `it 1,200 of 10,000 ... L=0.25` (your pattern)"]


def test_it_says_once_what_was_recognised() -> None:
    reader = LogLines("loss")
    reader.report_of("iter 12: loss 2.3, time 12ms")
    reader.report_of("iter 13: loss 2.3, time 12ms")
    assert reader.news() == ["progress: step 12 from `iter 12: loss 2.3, time 12ms` (nanoGPT)"]
    assert reader.news() == []


def test_a_metric_that_is_no_number_is_not_reported() -> None:
    reader = LogLines("loss")
    assert [reader.report_of(line) for line in ("step 1 loss nan", "step 2 loss=inf", "step 3 loss: -inf")] == [
        {"step": 1},
        {"step": 2},
        {"step": 3},
    ]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ({"step": 1, "loss": 0.5}, 0.5),
        ({"step": 1}, math.nan),
        ({"step": 1, "loss": None}, math.nan),
        ({"step": 1, "loss": "high"}, math.nan),
        ({"step": 1, "loss": math.nan}, math.inf),
        ({"step": 1, "loss": -math.inf}, math.inf),
        ({"step": 1, "loss": -(10**400)}, math.inf),
        ({"step": 1, "loss": None, "not_finite": ["loss"]}, math.inf),
        ({"step": 1, "loss": 0.5, "not_finite": ["other"]}, 0.5),
    ],
)
def test_a_metric_that_is_not_finite_is_told_from_none(line: dict[str, Any], value: float) -> None:
    assert metric_of(line, "loss") == pytest.approx(value, nan_ok=True)
