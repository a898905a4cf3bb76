"""Keras: whatever step a notice comes at, the weights and what is reported are those of an undisturbed training."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.frameworks.notices import after_notices, digest, signals_as_before, undisturbed

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="Keras is not installed")

from ebbtide.frameworks.keras import SpotCallback  # noqa: E402
from ebbtide.trial import MAX_STEPS  # noqa: E402

ROWS, BATCH, EPOCHS = 38, 8, 3
# Two in each epoch, its last among them.
SOME = (1, 4, 5, 6, 9, 10, 14)


class Rows(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches that are made when they are asked for, with noise."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        inputs, labels = arrays()
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return inputs[rows] + np.random.normal(size=(1, 4)) / 9, labels[rows]  # noqa: NPY002


def arrays() -> tuple[Any, Any]:
    inputs = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    return inputs, inputs.sum(1, keepdims=True)


def data(kind: str) -> dict[str, Any]:
    inputs, labels = arrays()
    if kind == "arrays":
        return {"x": inputs, "y": labels, "batch_size": BATCH}
    if kind == "loader":
        rows = TensorDataset(torch.tensor(inputs), torch.tensor(labels))
        return {"x": DataLoader(rows, batch_size=BATCH, shuffle=True)}
    return {"x": Rows()}


def network(width: int = 8) -> Any:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((4,)),
            layers.Dense(width, "relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(1),
        ]
    )


def train(kind: str = "arrays", *, validates: bool = True, width: int = 8, **compiled: Any) -> str:
    model = network(width)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 4, 0.9)
    options = {"optimizer": keras.optimizers.Adam(schedule), "loss": "mse", "metrics": ["mae"], **compiled}
    model.compile(**options)
    checked = {"validation_data": arrays()} if validates else {}
    model.fit(**data(kind), **checked, epochs=EPOCHS, verbose=0, callbacks=[SpotCallback()])
    return digest(model)


@pytest.mark.parametrize(
    ("kind", "options", "steps"),
    [
        ("arrays", {}, range(1, 15)),
        ("arrays", {"validates": False}, SOME),
        ("arrays", {"optimizer": "sgd"}, (3,)),
        ("loader", {}, SOME),
        ("batches", {}, SOME),
    ],
)
def test_whatever_step_a_notice_comes_at(
    kind: str, options: dict[str, Any], steps: Sequence[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = undisturbed(lambda: train(kind, **options), tmp_path, monkeypatch)
    for step in steps:
        folder = tmp_path / str(step)
        found, began = after_notices(lambda: train(kind, **options), folder, monkeypatch, [step])
        assert (step, found) == (step, wanted)
        assert began == [0, step]


def test_several_notices_change_nothing_that_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def reported() -> dict[int, dict[str, float]]:
        lines = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
        return {line["step"]: line for line in lines if "val_loss" in line}

    wanted = undisturbed(train, tmp_path, monkeypatch)
    alone = reported()
    found, began = after_notices(train, tmp_path, monkeypatch, [2, 3, 5, 6, 12])
    assert found == wanted
    assert began == [0, 2, 3, 5, 6, 12]
    assert sorted(alone) == [5, 10, 15]
    assert set(alone[5]) >= {"loss", "mae", "val_loss", "val_mae"}
    assert {step: {**line, "step_s": 0} for step, line in reported().items()} == {
        step: {**line, "step_s": 0} for step, line in alone.items()
    }


def test_it_ends_with_the_steps_of_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAX_STEPS, "7")
    wanted = undisturbed(train, tmp_path, monkeypatch)
    found, began = after_notices(train, tmp_path, monkeypatch, [3, 6])
    assert (found, began) == (wanted, [0, 3, 6])
    # Begun again when it is done, it trains no more.
    monkeypatch.setenv(MAX_STEPS, "7")
    assert undisturbed(train, tmp_path, monkeypatch) == wanted


def test_a_training_that_is_done_is_not_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = undisturbed(train, tmp_path, monkeypatch)
    assert undisturbed(train, tmp_path, monkeypatch) == wanted


def test_another_model_s_checkpoint_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed(train, tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="use the same model and optimizer"):
        undisturbed(lambda: train(width=9), tmp_path, monkeypatch)


def test_another_backend_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with signals_as_before(), pytest.raises(ValueError, match="Keras runs on jax"):
        SpotCallback()
