"""Hugging Face's Trainer: whatever step a notice comes at, the weights are those of an undisturbed training."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from tests.frameworks.notices import NEEDS_GPU, after_notices, digest, signals_as_before, undisturbed

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from ebbtide.frameworks.transformers import SpotCallback, newest_checkpoint  # noqa: E402
from ebbtide.trial import CHECKPOINT_DIR  # noqa: E402

ROWS, BATCH = 40, 8
# Of fifteen steps in three epochs: within an epoch, and around its end.
SOME = (1, 4, 5, 6, 9)


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        inputs = torch.sin(torch.arange(4.0) + index)
        return {"inputs": inputs, "labels": inputs.sum().view(1)}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.network(inputs)
        return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}


def train(**options: Any) -> str:
    torch.manual_seed(0)
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            **{
                "output_dir": folder,
                "num_train_epochs": 3,
                "per_device_train_batch_size": BATCH,
                "learning_rate": 0.05,
                "eval_strategy": "epoch",
                "save_strategy": "no",
                "report_to": [],
                "disable_tqdm": True,
                "use_cpu": True,
                "logging_steps": 2,
                **options,
            }
        )
        trainer = transformers.Trainer(
            model, arguments, train_dataset=Rows(), eval_dataset=Rows(), callbacks=[SpotCallback()]
        )
        trainer.train(resume_from_checkpoint=newest_checkpoint())
    return digest(model)


@pytest.mark.long
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, (*SOME, 14)),
        pytest.param({}, range(1, 15), marks=pytest.mark.exhaustive),
        ({"eval_strategy": "no"}, SOME),
        ({"gradient_accumulation_steps": 2}, (1, 2, 3, 4)),
        ({"max_steps": 11, "lr_scheduler_type": "cosine"}, (*SOME, 10)),
        ({"save_strategy": "steps", "save_steps": 4, "save_total_limit": 1, "eval_strategy": "no"}, SOME),
        ({"dataloader_num_workers": 1}, (2, 5)),
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
        assert began == [0, step]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What an undisturbed training comes to, and the folder of its checkpoints.

    A fixture of the module, so that its tests run in one process: to import the library takes ten seconds.
    """
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        return undisturbed(train, folder, patch), folder / "undisturbed"


@pytest.mark.long
def test_several_notices(whole: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, began = after_notices(train, tmp_path, monkeypatch, [2, 3, 5, 6, 12])
    assert found == whole[0]
    assert began == [0, 2, 3, 5, 6, 12]


@NEEDS_GPU
def test_several_notices_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = undisturbed(lambda: train(use_cpu=False), tmp_path, monkeypatch)
    found, began = after_notices(lambda: train(use_cpu=False), tmp_path, monkeypatch, [2, 3, 5, 6, 12])
    assert found == wanted
    assert began == [0, 2, 3, 5, 6, 12]


def test_saved_and_gone_on(whole: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request to save alone does not end the program."""
    found, began = after_notices(train, tmp_path, monkeypatch, [3, 5], signal.SIGUSR1)
    assert (found, began) == (whole[0], [0])
    names = sorted(path.name for path in (tmp_path / "interrupted").iterdir())
    assert names == [f"step-{step:012d}" for step in (3, 5, 15)]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"save_only_model": True}, "without the optimizer"), ({"ignore_data_skip": True}, "twice")],
)
def test_what_cannot_be_resumed_from_is_refused(options: dict[str, Any], said: str) -> None:
    with signals_as_before(), pytest.raises(ValueError, match=said):
        train(**options)


def test_a_checkpoint_that_is_not_used_is_an_error(
    whole: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the program may write stays out of the folder of others.
    monkeypatch.setenv(CHECKPOINT_DIR, str(copytree(whole[1], tmp_path / "checkpoints")))
    monkeypatch.setattr("tests.frameworks.test_transformers.newest_checkpoint", lambda: None)
    with (
        signals_as_before(),
        pytest.raises(ValueError, match="newest checkpoint is of step 15: pass resume_from_checkpoint"),
    ):
        train()
