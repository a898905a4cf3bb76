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
from ebbtide.trial import CHECKPOINT_DIR, MAX_STEPS  # noqa: E402

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
    if kind == "batches":
        return {"x": Rows()}
    rows = TensorDataset(torch.tensor(inputs), torch.tensor(labels))
    generator = torch.Generator().manual_seed(1) if kind == "its own generator" else None
    return {"x": DataLoader(rows, batch_size=BATCH, shuffle=True, generator=generator)}


class Noise(keras.layers.Layer):  # type: ignore[misc]
    """Draws from Keras's own random numbers, without a seed."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return inputs + 0.1 * keras.random.normal(keras.ops.shape(inputs)) if training else inputs


class WarmUp(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets another rate at each batch, from that of the batch before."""

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        rate = self.model.optimizer.learning_rate
        rate.assign(rate * 1.05)


def network(width: int = 8) -> Any:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((4,)),
            layers.Dense(width, "relu"),
            Noise(),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(1),
        ]
    )


def train(
    kind: str = "arrays",
    *,
    validates: bool = True,
    width: int = 8,
    rows: int = ROWS,
    others: Any = None,
    **compiled: Any,
) -> str:
    model = network(width)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 4, 0.9)
    options = {"optimizer": keras.optimizers.Adam(schedule), "loss": "mse", "metrics": ["mae"], **compiled}
    model.compile(**options)
    checked = {"validation_data": arrays()} if validates else {}
    given = data(kind)
    if rows < ROWS:
        given |= {"x": given["x"][:rows], "y": given["y"][:rows]}
    spot = SpotCallback(given["x"] if kind == "its own generator" else None)
    model.fit(**given, **checked, epochs=EPOCHS, verbose=0, callbacks=[*(others() if others else ()), spot])
    return digest(model)


def rates() -> list[Any]:
    """Callbacks that change the learning rate from what it is."""
    return [keras.callbacks.LearningRateScheduler(lambda _, rate: rate * 0.5), WarmUp()]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "options", "steps"),
    [
        ("arrays", {}, range(1, 15)),
        ("arrays", {"validates": False}, SOME),
        ("arrays", {"optimizer": "sgd"}, (3,)),
        ("arrays", {"optimizer": "adam", "others": rates}, SOME),
        ("loader", {}, SOME),
        ("its own generator", {}, SOME),
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


def test_other_data_at_a_resumption_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([ROWS, 16, 16])
    with pytest.raises(ValueError, match="an epoch has 2 batches now, and 4 of it were done: use the same data"):
        after_notices(lambda: train(rows=next(runs)), tmp_path, monkeypatch, [9])


def test_a_program_trains_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the second training would go on from the first one's checkpoint."""
    monkeypatch.setenv(CHECKPOINT_DIR, str(tmp_path))
    with signals_as_before():
        train()
        with pytest.raises(RuntimeError, match="this program has had a training already"):
            train()
        # Without checkpoints there is nothing to resume from.
        monkeypatch.delenv(CHECKPOINT_DIR)
        with pytest.warns(UserWarning, match="can train once only"):
            train()


def test_optimizers_that_are_not_kept_are_told() -> None:
    class Two(keras.Sequential):  # type: ignore[misc]
        def __init__(self, layers: Any) -> None:
            super().__init__(layers)
            self.other = keras.optimizers.SGD()

    for model, optimizer, said in (
        (Two([keras.layers.Input((4,)), keras.layers.Dense(1)]), "adam", r"beside the compiled one \(other\)"),
        (network(), None, "compiled without an optimizer"),
    ):
        with signals_as_before():
            spot = SpotCallback()
            model.compile(optimizer=optimizer, loss="mse")
            spot.set_model(model)
            with pytest.raises(ValueError, match=said):
                spot.on_train_begin()


def test_another_backend_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with signals_as_before(), pytest.raises(ValueError, match="Keras runs on jax"):
        SpotCallback()
