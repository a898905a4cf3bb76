"""A loop of one's own with Hugging Face Accelerate: `trial.epochs` and `TorchState` take what it has prepared."""

from __future__ import annotations

import runpy
import signal
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ebbtide.testing.framework_study import EXAMPLES
from ebbtide.trial import AGENT, CHECKPOINT_DIR, Trial
from ebbtide.trial_torch import TorchState
from tests.frameworks.notices import NEEDS_GPU, digest, signals_as_before

accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")

STEPS = 15


def train(notice_at: int | None = None, *, cpu: bool = True, seedable: bool = False, accumulated: int = 1) -> str:
    """Three epochs of five batches, the last of which is smaller; a signal comes within a step, or after the last one
    of an epoch.

    Args:
        notice_at: The step in which the signal comes; None: none does.
        cpu: Whether it is trained on the CPU.
        seedable: Whether the order follows from the epoch's number, as Accelerate counts epochs.
        accumulated: Number of batches whose gradients are accumulated by Accelerate.
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
    trial = Trial.current()
    trial.keep(TorchState(model=model, optimizer=optimizer, schedule=schedule))
    for _, batches in trial.epochs(loader, 3):
        accelerator.step = batches.done
        for some, goals in batches:
            with accelerator.accumulate(model):
                accelerator.backward(torch.nn.functional.mse_loss(model(some), goals))
                if trial.step + 1 == notice_at:
                    signal.raise_signal(signal.SIGTERM)
                optimizer.step()
                optimizer.zero_grad()
        schedule.step()
    return digest(model)


@pytest.mark.parametrize("cpu", [True, pytest.param(False, marks=NEEDS_GPU)])
@pytest.mark.parametrize(("seedable", "accumulated"), [(False, 1), (True, 1), (False, 3)])
def test_whatever_step_a_notice_comes_at(
    cpu: bool, seedable: bool, accumulated: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(folder: str, notice_at: int | None = None) -> str:
        monkeypatch.setenv(CHECKPOINT_DIR, str(tmp_path / folder))
        with signals_as_before():
            return train(notice_at, cpu=cpu, seedable=seedable, accumulated=accumulated)

    monkeypatch.setenv(AGENT, "1")
    wanted = trained("undisturbed")
    for step in range(1, STEPS + 1):
        with pytest.raises(SystemExit) as left:
            trained(str(step), step)
        assert left.value.code == 0
        assert (step, trained(str(step))) == (step, wanted)


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
