"""A loop of one's own with Hugging Face Accelerate, which is interrupted and goes on as if nothing had happened."""

from __future__ import annotations

import json
import runpy
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ebbtide.trial import AGENT, CHECKPOINT_DIR, Trial
from ebbtide.trial_torch import TorchState
from tests.frameworks.notices import NEEDS_GPU, digest, signals_as_before
from tests.harness.framework_study import EXAMPLES

accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")

from ebbtide.frameworks.accelerate import epochs  # noqa: E402

STEPS = 15
# What cannot be a metric, or has another's name.
OTHERS = {"note": "no", "many": [1.0], "words": np.array(["q"]), "step": 3, 5: 1j, "when": np.datetime64(1, "s")}


def train(
    notice_at: int | None = None,
    *,
    cpu: bool = True,
    seedable: bool = False,
    accumulated: int = 1,
    by_hand: bool = False,
) -> str:
    """Three epochs of five batches, the last of which is smaller; a signal comes within a step, or after the last one
    of an epoch.

    Args:
        notice_at: The step in which the signal comes; None: none does.
        cpu: Whether it is trained on the CPU.
        seedable: Whether the order follows from the epoch's number, as Accelerate counts epochs.
        accumulated: Number of batches whose gradients are accumulated by Accelerate.
        by_hand: Whether it makes a trial and keeps what was prepared itself.
    """
    torch.manual_seed(0)
    inputs = torch.randn(38, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    order = accelerate.utils.DataLoaderConfiguration(use_seedable_sampler=seedable)
    accelerator = accelerate.Accelerator(cpu=cpu, dataloader_config=order, gradient_accumulation_steps=accumulated)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    if by_hand:
        trial = Trial.current()
        trial.keep(TorchState(model=model, optimizer=optimizer, schedule=schedule))
        left = trial.epochs(loader, 3)
    else:
        left = epochs(accelerator, loader, 3)
    for _, batches in left:
        if by_hand:
            accelerator.step = batches.done
        for some, goals in batches:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(some), goals)
                accelerator.backward(loss)
                accelerator.log({"train/loss": loss, **OTHERS}, step=7)
                latest = Trial.latest()
                assert latest is not None
                if latest.step + 1 == notice_at:
                    signal.raise_signal(signal.SIGTERM)
                optimizer.step()
                optimizer.zero_grad()
        schedule.step()
    return digest(model)


@pytest.mark.parametrize("cpu", [True, pytest.param(False, marks=NEEDS_GPU)])
@pytest.mark.parametrize(
    ("seedable", "accumulated", "by_hand"),
    [(False, 1, False), (True, 1, False), (False, 3, False), (True, 3, True)],
)
def test_whatever_step_a_notice_comes_at(
    cpu: bool,
    seedable: bool,
    accumulated: int,
    by_hand: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trained(folder: str, notice_at: int | None = None) -> str:
        monkeypatch.setenv(CHECKPOINT_DIR, str(tmp_path / folder))
        with signals_as_before():
            return train(notice_at, cpu=cpu, seedable=seedable, accumulated=accumulated, by_hand=by_hand)

    monkeypatch.setenv(AGENT, "1")
    wanted = trained("undisturbed")
    for step in range(1, STEPS + 1):
        with pytest.raises(SystemExit) as left:
            trained(str(step), step)
        assert left.value.code == 0
        assert (step, trained(str(step))) == (step, wanted)


def test_what_is_logged_is_reported(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AGENT, "1")
    with signals_as_before():
        train()
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    losses = {each["step"]: each["train_loss"] for each in found if "train_loss" in each}
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert all(loss > 0 for loss in losses.values())
    assert not any({"note", "many", "words", "5", "when"} & each.keys() for each in found)


def test_all_that_was_prepared_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models and optimizers, and an object of the program's own."""

    class Count:
        value = 0

        def state_dict(self) -> dict[str, int]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.value = state["value"]

    def trained(notice_at: int | None = None) -> tuple[str, str, int]:
        torch.manual_seed(0)
        inputs = torch.randn(32, 4)
        models = [torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)]
        optimizers = [torch.optim.Adam(model.parameters(), lr=0.05) for model in models]
        accelerator, count = accelerate.Accelerator(cpu=True), Count()
        given = accelerator.prepare(*models, *optimizers, DataLoader(TensorDataset(inputs), batch_size=8))
        accelerator.register_for_checkpointing(count)
        for _, batches in epochs(accelerator, given[4], 2):
            for (some,) in batches:
                for model, optimizer in zip(given[:2], given[2:4], strict=True):
                    optimizer.zero_grad()
                    accelerator.backward((model(some) - some.sum(1, keepdim=True)).square().mean())
                    optimizer.step()
                count.value += 1
                if count.value == notice_at:
                    signal.raise_signal(signal.SIGTERM)
        return digest(given[0]), digest(given[1]), count.value

    monkeypatch.setenv(AGENT, "1")
    monkeypatch.setenv(CHECKPOINT_DIR, str(tmp_path / "alone"))
    with signals_as_before():
        wanted = trained()
    assert wanted[2] == 8
    monkeypatch.setenv(CHECKPOINT_DIR, str(tmp_path / "taken"))
    with signals_as_before(), pytest.raises(SystemExit):
        trained(5)
    with signals_as_before():
        assert trained() == wanted


def test_a_program_trains_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKPOINT_DIR, str(tmp_path))
    with signals_as_before():
        train()
        with pytest.raises(RuntimeError, match="this program has had a training already"):
            train()


def test_what_cannot_be_kept_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    with signals_as_before():
        with pytest.raises(ValueError, match=r"call accelerator\.prepare before epochs"):
            epochs(accelerator, [1], 1)
        monkeypatch.setattr(accelerator.state, "distributed_type", accelerate.DistributedType.DEEPSPEED)
        with pytest.raises(ValueError, match="DEEPSPEED divides the model"):
            epochs(accelerator, [1], 1)


@pytest.mark.usefixtures("in_project")
def test_the_example_resumes_where_an_epoch_has_no_batches_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trained() -> str:
        with signals_as_before():
            runpy.run_path(str(EXAMPLES / "accelerate_digits.py"), run_name="__main__")
        return capsys.readouterr().out

    monkeypatch.setattr("sys.argv", ["accelerate_digits.py", "--epochs", "2"])
    wanted = trained()
    assert "weights" in wanted
    monkeypatch.setenv(AGENT, "1")
    monkeypatch.setenv(CHECKPOINT_DIR, str(tmp_path))
    done = Trial._batches_done

    def noticed(trial: Trial) -> None:
        done(trial)
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trial, "_batches_done", noticed)
        with pytest.raises(SystemExit):
            trained()
    assert trained() == wanted
