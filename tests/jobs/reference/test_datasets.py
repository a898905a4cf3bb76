"""Originals are read where they are given; stand-ins are of the same kind; malformed files are told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ebbtide.errors import InputError
from ebbtide.jobs.reference.datasets import DATASETS, load_dataset


@pytest.mark.parametrize("name", DATASETS)
def test_stand_ins_are_the_same_every_time_and_finite(name: str) -> None:
    data, again = load_dataset(name), load_dataset(name)
    assert torch.equal(data.train_inputs, again.train_inputs)
    assert torch.isfinite(data.train_inputs).all()
    assert len(data.train_inputs) == len(data.train_targets) > len(data.validation_targets) > 0
    assert data.origin in ("generated", "scikit-learn")


def test_cifar_10_in_its_binary_version(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        rows = random.integers(0, 256, (4, 3_073), dtype=np.uint8)
        rows[:, 0] = [0, 3, 9, 1]
        (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
    data = load_dataset("cifar-10", tmp_path)
    assert data.train_inputs.shape == (20, 3, 32, 32)
    assert data.validation_inputs.shape == (4, 3, 32, 32)
    assert data.train_targets[:4].tolist() == [0, 3, 9, 1]
    # Scaled by the training images alone.
    assert abs(float(data.train_inputs.mean())) < 1e-5
    assert data.origin == "original"
    (tmp_path / "data_batch_3.bin").write_bytes(b"x" * 100)
    with pytest.raises(InputError, match=r"data_batch_3.bin: has 100 bytes"):
        load_dataset("cifar-10", tmp_path)


def test_year_prediction_keeps_the_authors_split(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    table = random.normal(size=(100, 91))
    table[:, 0] = random.integers(1950, 2011, 100)
    np.savetxt(tmp_path / "YearPredictionMSD.txt", table, delimiter=",")
    data = load_dataset("year-prediction", tmp_path)
    assert data.train_inputs.shape == (90, 90)
    assert data.validation_inputs.shape == (10, 90)
    np.testing.assert_allclose(data.train_inputs.mean(axis=0), 0.0, atol=1e-5)
    np.savetxt(tmp_path / "YearPredictionMSD.txt", table[:, :5], delimiter=",")
    with pytest.raises(InputError, match="has 5 columns"):
        load_dataset("year-prediction", tmp_path)


def test_epsilon_in_libsvm_format(tmp_path: Path) -> None:
    for name in ("epsilon_normalized", "epsilon_normalized.t"):
        (tmp_path / name).write_text("-1 1:0.5 2000:0.25\n1 2:-1.0\n")
    data = load_dataset("epsilon", tmp_path)
    assert data.train_inputs.shape == (2, 2_000)
    assert data.train_targets.tolist() == [0.0, 1.0]
    assert float(data.train_inputs[0, 0]) == pytest.approx(0.5 * 2_000**0.5)
    (tmp_path / "epsilon_normalized.t").write_text("what is this\n")
    with pytest.raises(InputError, match="not in LIBSVM format"):
        load_dataset("epsilon", tmp_path)


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_dataset("cifar-10", tmp_path)
    with pytest.raises(InputError, match="epsilon"):
        load_dataset("epsilo")
