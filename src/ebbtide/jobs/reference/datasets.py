"""The datasets of Table II: read from the original files where given, else smaller stand-ins of the same kind.

| dataset | original | stand-in |
|---|---|---|
| `epsilon` | Epsilon, 400,000 x 2,000, LIBSVM format | generated: 2,000 correlated features, 4,000 rows |
| `two-shapes` | SpotTune's "synthetic" for SVM | generated: 20 features, a curved border, 8,000 rows |
| `friedman` | SpotTune's "synthetic" for GBTR | generated: Friedman's first function, 4,000 rows |
| `year-prediction` | YearPredictionMSD, 515,345 x 90, CSV | generated: 90 correlated features, 20,000 rows |
| `cifar-10` | CIFAR-10, 60,000 x 3 x 32 x 32, binary version | scikit-learn's digits, 1 x 8 x 8, and noise |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ebbtide.errors import InputError, unknown_name

Floats = NDArray[np.float64]

_NOISE = 0.8


@dataclass(frozen=True)
class ReferenceDataset:
    """Inputs and targets for training and validation.

    Attributes:
        train_inputs: Training inputs, float32, shape (n, features) or (n, channels, height, width).
        train_targets: Training targets, float32, or int64 for classes, shape (n,).
        validation_inputs: Validation inputs of the same type, shape (m, ...).
        validation_targets: Validation targets of the same type, shape (m,).
        origin: Where the data are from: `original`, `generated` or `scikit-learn`.
        noise: Standard deviation of the noise added to inputs at each training step.
    """

    train_inputs: Tensor
    train_targets: Tensor
    validation_inputs: Tensor
    validation_targets: Tensor
    origin: str
    noise: float = 0.0


def load_dataset(name: str, folder: str | Path | None = None) -> ReferenceDataset:
    """A dataset by name.

    Args:
        name: Name of the dataset, a key of `DATASETS`.
        folder: Folder of the original files; None uses the stand-in of the table above.

    Raises:
        InputError: The dataset is unknown, or its files are missing or malformed.
    """
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    read, make = DATASETS[name]
    if folder is None or read is None:
        return make()
    return read(Path(folder))


def _split(
    inputs: Floats, targets: Floats, train: int, origin: str, kind: torch.dtype = torch.float32
) -> ReferenceDataset:
    values = torch.from_numpy(np.ascontiguousarray(inputs, dtype=np.float32))
    wanted = torch.from_numpy(np.ascontiguousarray(targets)).to(kind)
    return ReferenceDataset(values[:train], wanted[:train], values[train:], wanted[train:], origin)


def _correlated(random: np.random.Generator, rows: int, features: int, factors: int) -> Floats:
    """Features of unit variance, shape (rows, features), driven by fewer factors of falling strength."""
    strength = 1.0 / np.sqrt(1.0 + np.arange(factors))
    mixed = (random.normal(size=(rows, factors)) * strength) @ random.normal(size=(factors, features))
    mixed += 0.5 * mixed.std() * random.normal(size=(rows, features))
    return np.asarray((mixed - mixed.mean(axis=0)) / mixed.std(axis=0))


def _made_epsilon() -> ReferenceDataset:
    random = np.random.default_rng(1)
    inputs = _correlated(random, 5_000, 2_000, 200)
    score = inputs @ random.normal(size=2_000)
    positive = score / score.std() + 0.5 * random.normal(size=len(score)) > 0
    return _split(inputs, positive, 4_000, "generated")


def _made_two_shapes() -> ReferenceDataset:
    random = np.random.default_rng(2)
    inputs = random.normal(size=(10_000, 20))
    score = inputs[:, 0] * inputs[:, 1] + inputs[:, 2] + 0.5 * (inputs[:, 3] ** 2 - 1.0)
    score += 0.3 * random.normal(size=len(score))
    return _split(inputs, np.where(score > 0, 1.0, -1.0), 8_000, "generated")


def _made_friedman() -> ReferenceDataset:
    from sklearn.datasets import make_friedman1

    inputs, targets = make_friedman1(n_samples=5_000, n_features=10, noise=1.0, random_state=3)
    return _split(inputs, (targets - targets.mean()) / targets.std(), 4_000, "generated")


def _made_year_prediction() -> ReferenceDataset:
    random = np.random.default_rng(4)
    inputs = _correlated(random, 25_000, 90, 60)
    score = inputs @ (random.normal(size=90) / np.sqrt(1.0 + np.arange(90)))
    targets = score / score.std() + 0.7 * random.normal(size=len(score))
    return _split(inputs, (targets - targets.mean()) / targets.std(), 20_000, "generated")


def _made_images() -> ReferenceDataset:
    from sklearn.datasets import load_digits

    digits = load_digits()
    random = np.random.default_rng(5)
    order = random.permutation(len(digits.target))
    images = digits.images[order] / 8.0 - 1.0
    # Clean digits are learnt in three epochs; noise makes the task harder. Training images get new noise at each
    # step, because networks would otherwise memorise so few images.
    images[1_000:] += random.normal(scale=_NOISE, size=images[1_000:].shape)
    made = _split(images[:, None], digits.target[order], 1_000, "scikit-learn", torch.int64)
    return replace(made, noise=_NOISE)


def _read_epsilon(folder: Path) -> ReferenceDataset:
    from sklearn.datasets import load_svmlight_file

    parts = []
    for name in ("epsilon_normalized", "epsilon_normalized.t"):
        try:
            inputs, labels = load_svmlight_file(str(_existing(folder / name)), n_features=2_000, dtype=np.float32)
        except ValueError as error:
            raise InputError(f"is not in LIBSVM format with 2,000 features: {error}", file=folder / name) from None
        # Rows are scaled to unit length; Table II's learning rates need features of unit variance.
        values = torch.from_numpy(inputs.toarray() * np.float32(np.sqrt(2_000)))
        parts.append((values, torch.from_numpy(labels > 0).float()))
    return ReferenceDataset(*parts[0], *parts[1], "original")


def _read_year_prediction(folder: Path) -> ReferenceDataset:
    import pandas as pd

    path = _existing(folder / "YearPredictionMSD.txt")
    try:
        table = pd.read_csv(path, header=None, dtype=np.float32).to_numpy()
    except ValueError as error:
        raise InputError(f"is not a CSV of numbers: {error}", file=path) from None
    if table.shape[1] != 91:
        raise InputError(f"has {table.shape[1]} columns; the year and 90 features are needed", file=path)
    # The authors' split keeps an artist's songs on one side: the first 463,715 rows of 515,345.
    train = round(len(table) * 463_715 / 515_345)
    scaled = (table - table[:train].mean(axis=0)) / np.maximum(table[:train].std(axis=0), 1e-9)
    return _split(scaled[:, 1:], scaled[:, 0], train, "original")


def _read_cifar_10(folder: Path) -> ReferenceDataset:
    files = [*(folder / f"data_batch_{number}.bin" for number in range(1, 6)), folder / "test_batch.bin"]
    labels, images = [], []
    for path in files:
        content = np.frombuffer(_existing(path).read_bytes(), dtype=np.uint8)
        if not len(content) or len(content) % 3_073:
            problem = f"has {len(content)} bytes; CIFAR-10's binary version has 3,073 an image"
            raise InputError(problem, file=path)
        rows = content.reshape(-1, 3_073)
        if rows[:, 0].max() > 9:
            raise InputError("has a label above 9: is it CIFAR-100?", file=path)
        labels.append(rows[:, 0])
        images.append(rows[:, 1:].reshape(-1, 3, 32, 32))
    train = sum(map(len, labels[:5]))
    inputs = np.concatenate(images).astype(np.float32) / 255.0
    centre = inputs[:train].mean(axis=(0, 2, 3), keepdims=True)
    spread = inputs[:train].std(axis=(0, 2, 3), keepdims=True)
    return _split((inputs - centre) / spread, np.concatenate(labels), train, "original", torch.int64)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise InputError("there is no such file; leave the folder out to train on the stand-in", file=path)
    return path


DATASETS: dict[str, tuple[Callable[[Path], ReferenceDataset] | None, Callable[[], ReferenceDataset]]] = {
    "epsilon": (_read_epsilon, _made_epsilon),
    "two-shapes": (None, _made_two_shapes),
    "friedman": (None, _made_friedman),
    "year-prediction": (_read_year_prediction, _made_year_prediction),
    "cifar-10": (_read_cifar_10, _made_images),
}
