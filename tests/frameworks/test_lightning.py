"""PyTorch Lightning: whatever step a notice comes at, the weights are those of an undisturbed training."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.frameworks.notices import NEEDS_GPU, after_notices, digest, signals_as_before, undisturbed

lightning = pytest.importorskip("lightning.pytorch", reason="PyTorch Lightning is not installed")

from ebbtide.frameworks.lightning import SpotCallback, newest_checkpoint  # noqa: E402

ROWS, BATCH = 40, 8


class Noisy(Dataset[Any]):
    """Rows with noise that is drawn when they are fetched, by whoever fetches them."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.sin(torch.arange(4.0) + index)
        return inputs + 0.1 * torch.randn(4), inputs.sum().view(1)


class Model(lightning.LightningModule):  # type: ignore[name-defined, misc]
    def __init__(self, plateau: bool = False) -> None:
        super().__init__()
        self.plateau = plateau
        self.network = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.network(batch[0]), batch[1])

    def validation_step(self, batch: Any, _index: int) -> None:
        self.log("validation/loss", torch.nn.functional.mse_loss(self.network(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        if self.plateau:
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "validation/loss"}}
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]


def train(
    workers: int = 0,
    plateau: bool = False,
    own: bool = False,
    validates: bool = True,
    device: str = "cpu",
    **options: Any,
) -> str:
    torch.manual_seed(0)
    model = Model(plateau)
    generator = torch.Generator().manual_seed(3) if own else None
    loader = DataLoader(Noisy(), BATCH, shuffle=True, num_workers=workers, generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=3,
            accelerator=device,
            devices=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            callbacks=[SpotCallback()],
            **options,
        )
        trainer.fit(model, loader, DataLoader(Noisy(), ROWS) if validates else None, ckpt_path=newest_checkpoint())
    return digest(model)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


# Of fifteen steps in three epochs: within an epoch, and around its end.
SOME = (1, 4, 5, 6, 9)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, range(1, 15)),
        ({"validates": False}, SOME),
        ({"own": True}, SOME),
        ({"plateau": True}, SOME),
        ({"accumulate_grad_batches": 2}, (1, 2, 3, 4, 6)),
        ({"val_check_interval": 2}, (*SOME, 2, 14)),
        ({"limit_train_batches": 3}, (2, 3, 4, 6)),
        ({"gradient_clip_val": 0.1, "max_steps": 11}, (*SOME, 10, 11)),
    ],
    ids=str,
)
def test_whatever_step_a_notice_comes_at(
    options: dict[str, Any], steps: Sequence[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = undisturbed(lambda: train(**options), tmp_path, monkeypatch)
    for step in steps:
        folder = tmp_path / str(step)
        found, began = after_notices(lambda: train(**options), folder, monkeypatch, [step])
        assert (step, found) == (step, wanted)
        # It is saved at that step, or at the next where the model is validated at this one.
        assert began[0] == 0
        assert step <= began[1] <= step + 1


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_several_notices_and_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = undisturbed(lambda: train(workers=2), tmp_path, monkeypatch)
    found, began = after_notices(lambda: train(workers=2), tmp_path, monkeypatch, [2, 3, 7, 10, 13])
    assert found == wanted
    assert began == [0, 2, 3, 7, 10, 13]


@NEEDS_GPU
def test_several_notices_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = undisturbed(lambda: train(device="gpu"), tmp_path, monkeypatch)
    found, began = after_notices(lambda: train(device="gpu"), tmp_path, monkeypatch, [2, 3, 5, 7, 10, 13])
    assert found == wanted
    assert began == [0, 2, 3, 5, 7, 10, 13]


def test_a_checkpoint_that_is_not_used_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed(train, tmp_path, monkeypatch)
    monkeypatch.setattr("tests.frameworks.test_lightning.newest_checkpoint", lambda: None)
    with signals_as_before(), pytest.raises(ValueError, match="resume from: pass ckpt_path=newest_checkpoint"):
        train()


def test_a_generator_that_is_not_known_before_the_loader_begins_is_an_error() -> None:
    class WithLoader(Model):
        def train_dataloader(self) -> Any:
            return DataLoader(Noisy(), BATCH, shuffle=True, generator=torch.Generator())

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[SpotCallback()]
    )
    with signals_as_before(), pytest.raises(ValueError, match="has a generator of its own"):
        trainer.fit(WithLoader())


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_trainer_is_made_where_mpi4py_has_no_library_to_load() -> None:
    """As on a machine with the package mpi4py and without MPI."""
    program = (
        "from ebbtide.frameworks.lightning import SpotCallback\n"
        "from lightning.pytorch import Trainer\n"
        "Trainer(accelerator='cpu', logger=False, enable_checkpointing=False, callbacks=[SpotCallback()])\n"
        "try:\n"
        "    import mpi4py.MPI\n"
        "except RuntimeError:\n"
        "    print('made without MPI')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MPI4PY_LIBMPI": "/not/there/libmpi.so"},
    )
    assert done.stdout.endswith("made without MPI\n"), done.stderr
