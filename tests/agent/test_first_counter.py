"""Settings, phases of a set-up and checks before a training are not its progress."""

from __future__ import annotations

import pytest

from ebbtide.agent.progress import LogLines


def read(*lines: str, most: int = 0, metric: str = "", began: int = 0) -> tuple[list[int], LogLines]:
    log = LogLines(metric, began, most)
    return [int(found["step"]) for line in lines if "step" in (found := log.report_of(line))], log


@pytest.mark.parametrize(
    "lines",
    [
        ["epoch: 100"],
        ["Epoch: 100", "lr: 0.1", "batch: 32"],
        ["epochs: 100", "epoch = 100", "step: 500"],
        ["epoch=100"],
        ["{", '  "epoch": 100,', '  "lr": 0.1', "}"],
        ["- epoch: 30"],
        ["epoch: 100", "lr: 0.1", "epoch: 100"],
        ["Step 3 of 5: unpacking", "Step 4 of 5: installing"],
        ["Step 1/4: downloading data", "Step 2/4: reading 1000 files", "Step 4/4: starting"],
        ["Step 2/4 - building the index"],
        ["Step 2/4 Building the index"],
        ["step 2 out of 4: warming caches"],
        ["[INFO] Step 1/3: Preparing the environment", "[INFO] Step 2/3: Loading the model"],
    ],
    ids=str,
)
def test_settings_and_phases_are_no_progress(lines: list[str]) -> None:
    steps, log = read(*lines)
    assert (steps, log.unit, log.total, log.news()) == ([], "", None, [])


@pytest.mark.parametrize(
    ("lines", "steps", "total"),
    [
        (["Epoch 3 of 5"], [3], 5),
        (["Step 3/5 loss=0.2"], [3], 5),
        (["Step 3/5: loss 0.2"], [3], 5),
        (["Step 3/5: 0.31"], [3], 5),
        (["Step 3 of 5"], [3], 5),
        (["Step 3/5: done in 2 s"], [3], 5),
        (["Step 200/1000: training"], [200], 1000),
        (["epoch: 1", "loss: 0.5", "epoch: 2"], [1, 2], None),
        (["step: 0", "step: 1"], [1, 2], None),
        # Every hundredth: the second shows that it counts.
        (["step: 100", "loss: 0.5", "step: 200", "step: 300"], [200, 300], None),
        (["epoch: 100", "epoch: 1", "epoch: 2"], [1, 2], None),
        (["epoch: 100", "Epoch 1/100 loss 0.5", "Epoch 2/100 loss 0.4", "epoch: 100"], [1, 2], 100),
    ],
    ids=str,
)
def test_progress_stays_progress(lines: list[str], steps: list[int], total: int | None) -> None:
    found, log = read(*lines)
    assert (found, log.total) == (steps, total)


def test_a_job_of_as_many_steps_has_phases_as_steps() -> None:
    assert read("Step 2/4: fitting the tree", "Step 3/4: fitting the tree", most=4)[0] == [2, 3]


TRAINING = ["Step 1/1000 loss 2.0", "Step 2/1000 loss 1.9", "Step 500/1000 loss 1.0"]


@pytest.mark.parametrize(
    "before",
    [
        ["Step 1 of 5", "Step 5 of 5"],
        ["Step 4/5"],
        ["Step 1/2 val_loss 0.5", "Step 2/2 val_loss 0.5"],
        ["Step 1/2 loss 0.5", "Step 2/2 loss 0.5"],
        ["Iteration 1/10", "Iteration 10/10"],
        ["Step 300"],
        ["100%|####| 100/100 [00:20<00:00, 5.0it/s]"],
    ],
    ids=str,
)
def test_a_wrong_first_counter_is_taken_back(before: list[str]) -> None:
    steps, log = read(*before, *TRAINING)
    assert (steps[-3:], log.total, log.refused) == ([1, 2, 500], 1000, 0)
    news = log.news()
    assert sum("was not the training" in line for line in news) == 1
    assert news[-2].startswith("progress: step 1 of 1,000 from `Step 1/1000 loss 2.0`")


@pytest.mark.parametrize(
    ("lines", "total"),
    [
        # What is evaluated in between or at the end.
        (["Step 499/500 loss 1", "Step 500/500 loss 1", "Step 1/1000 loss 3"], 500),
        (["Epoch 2/3 loss 1", "Epoch 3/3 loss 1", "Step 1/1000"], 3),
        (["Step 1/1000 loss 1", "Step 2/1000 loss 1", "Step 1/5000 loss 3"], 1000),
        (["Step 1/1000 loss 1", "Step 2/1000 loss 1", "Step 1/10 loss 3"], 1000),
    ],
    ids=str,
)
def test_the_training_is_not_taken_back(lines: list[str], total: int) -> None:
    steps, log = read(*lines)
    assert (len(steps), log.total, log.refused) == (2, total, 0)
    assert not any("was not the training" in line for line in log.news())


def test_a_job_whose_steps_are_known_keeps_the_counter_that_has_as_many() -> None:
    steps, log = read("Step 1/10", "Step 10/10", "Step 1/5000 loss 1", most=10)
    assert (steps, log.total) == ([1, 10], 10)
