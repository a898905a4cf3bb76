"""A loop of one's own with Hugging Face Accelerate: `trial.epochs` and `TorchState` take what it has prepared."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ebbtide.trial import AGENT, CHECKPOINT_DIR, Trial
from ebbtide.trial_torch import TorchState
from tests.frameworks.notices import NEEDS_GPU, digest, signals_as_before

accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")

STEPS = 15


def train(notice_at: int | None = None, *, cpu: bool = True) -> str:
    """Three epochs of five batches; a signal comes within a step, or after the last one of an epoch."""
    torch.manual_seed(0)
    inputs = torch.randn(40, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    accelerator = accelerate.Accelerator(cpu=cpu)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    trial = Trial.current()
    trial.keep(TorchState(model=model, optimizer=optimizer, schedule=schedule))
    for _, batches in trial.epochs(loader, 3):
        for some, goals in batches:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.mse_loss(model(some), goals))
            if trial.step + 1 == notice_at:
                signal.raise_signal(signal.SIGTERM)
            optimizer.step()
        schedule.step()
    return digest(model)


@pytest.mark.parametrize("cpu", [True, pytest.param(False, marks=NEEDS_GPU)])
def test_whatever_step_a_notice_comes_at(cpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AGENT, "1")
    monkeypatch.setenv(CHECKPOINT_DIR, str(tmp_path / "undisturbed"))
    with signals_as_before():
        wanted = train(cpu=cpu)
    for step in range(1, STEPS + 1):
        monkeypatch.setenv(CHECKPOINT_DIR, str(tmp_path / str(step)))
        with signals_as_before():
            with pytest.raises(SystemExit) as left:
                train(step, cpu=cpu)
            assert left.value.code == 0
            assert (step, train(cpu=cpu)) == (step, wanted)
