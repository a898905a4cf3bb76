"""SpotTune's benchmark: six algorithms with sixteen settings each (Table II)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

from torch import nn

from ebbtide.errors import InputError, unknown_name
from ebbtide.jobs.reference.datasets import ReferenceDataset
from ebbtide.jobs.reference.gradient import GradientSetting, GradientTrial, hinge
from ebbtide.jobs.reference.images import ImageSetting, ImageTrial
from ebbtide.jobs.reference.trees import TreeSetting, TreeTrial
from ebbtide.jobs.reference.trial import ReferenceTrial

Value = int | float | str
Setting = Mapping[str, Value]

# Values that Table II does not give: SVM's decay steps, ResNet's decay factor (from He et al.) and its first
# learning rate (from Keras's example for CIFAR-10).
_SVM_DECAY_STEPS = 1_000
_RESNET_DECAY = 0.1
_RESNET_LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class ReferenceBenchmark:
    """Algorithm of Table II, with its dataset and grid.

    Attributes:
        name: Name of the workload in Ebbtide.
        algorithm: Name of the algorithm in the paper.
        dataset: Name of its dataset, a key of `DATASETS`.
        metric: Metric measured on validation data; lower is better.
        grid: Values of each hyper-parameter, by the paper's abbreviation.
        build: Makes the trial of a setting, a dataset and a seed.
    """

    name: str
    algorithm: str
    dataset: str
    metric: str
    grid: Mapping[str, tuple[Value, ...]]
    build: Callable[[Setting, ReferenceDataset, int], ReferenceTrial]

    @property
    def settings(self) -> list[dict[str, Value]]:
        """All combinations, in the order of the grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]

    def setting(self, number: int) -> dict[str, Value]:
        """The setting of that number, from 0.

        Raises:
            InputError: There is no setting of that number.
        """
        if not 0 <= number < len(self.settings):
            raise InputError(f"setting is {number}; {self.name} has 0 to {len(self.settings) - 1}")
        return self.settings[number]


def benchmark(name: str) -> ReferenceBenchmark:
    """A benchmark by name.

    Raises:
        InputError: The benchmark is unknown.
    """
    if name not in BENCHMARKS:
        raise unknown_name("workload", name, BENCHMARKS)
    return BENCHMARKS[name]


def _gradient(setting: Setting) -> GradientSetting:
    return GradientSetting(
        batch=int(setting["bs"]),
        learning_rate=float(setting["lr"]),
        decay=float(setting["dr"]),
        decay_steps=int(setting.get("ds", _SVM_DECAY_STEPS)),
        kernel=str(setting.get("kernel", "linear")).lower(),
        weight_decay=1e-4 if "kernel" in setting else 0.0,
    )


def _logistic_regression(setting: Setting, data: ReferenceDataset, seed: int) -> ReferenceTrial:
    return GradientTrial(_gradient(setting), data, nn.functional.binary_cross_entropy_with_logits, seed=seed)


def _svm(setting: Setting, data: ReferenceDataset, seed: int) -> ReferenceTrial:
    return GradientTrial(_gradient(setting), data, hinge, seed=seed)


def _linear_regression(setting: Setting, data: ReferenceDataset, seed: int) -> ReferenceTrial:
    return GradientTrial(_gradient(setting), data, nn.functional.mse_loss, seed=seed)


def _gbt_regression(setting: Setting, data: ReferenceDataset, seed: int) -> ReferenceTrial:
    trees = TreeSetting(int(setting["bs"]), float(setting["lr"]), int(setting["nt"]), int(setting["depth"]))
    return TreeTrial(trees, data, seed=seed)


def _alexnet(setting: Setting, data: ReferenceDataset, seed: int) -> ReferenceTrial:
    image = ImageSetting(int(setting["bs"]), float(setting["lr"]), float(setting["dr"]), int(setting["de"]))
    return ImageTrial(image, data, seed=seed)


def _resnet(setting: Setting, data: ReferenceDataset, seed: int) -> ReferenceTrial:
    image = ImageSetting(
        int(setting["bs"]),
        _RESNET_LEARNING_RATE,
        _RESNET_DECAY,
        int(setting["de"]),
        int(setting["version"]),
        int(setting["depth"]),
    )
    return ImageTrial(image, data, seed=seed)


_DESCENT: dict[str, tuple[Value, ...]] = {"bs": (128, 64), "lr": (1e-2, 1e-3), "dr": (1.0, 0.95)}

BENCHMARKS: dict[str, ReferenceBenchmark] = {
    entry.name: entry
    for entry in (
        ReferenceBenchmark(
            "logistic-regression",
            "Logistic Regression (LoR)",
            "epsilon",
            "cross entropy",
            {**_DESCENT, "ds": (1000, 2000)},
            _logistic_regression,
        ),
        ReferenceBenchmark(
            "svm",
            "Support Vector Machine (SVM)",
            "two-shapes",
            "hinge loss",
            {**_DESCENT, "kernel": ("RBF", "Linear")},
            _svm,
        ),
        ReferenceBenchmark(
            "gbt-regression",
            "GBT Regression (GBTR)",
            "friedman",
            "MSE",
            {"bs": (128, 64), "lr": (1e-1, 1e-2), "nt": (10, 15), "depth": (5, 8)},
            _gbt_regression,
        ),
        ReferenceBenchmark(
            "linear-regression",
            "Linear Regression (LiR)",
            "year-prediction",
            "MSE",
            {**_DESCENT, "ds": (1000, 2000)},
            _linear_regression,
        ),
        ReferenceBenchmark(
            "alexnet",
            "AlexNet",
            "cifar-10",
            "cross entropy",
            {"bs": (128, 64), "lr": (1e-1, 1e-2), "dr": (1.0, 0.95), "de": (40, 60)},
            _alexnet,
        ),
        ReferenceBenchmark(
            "resnet",
            "Residual Neural Network (ResNet)",
            "cifar-10",
            "cross entropy",
            {"bs": (32, 64), "version": (1, 2), "depth": (20, 29), "de": (40, 60)},
            _resnet,
        ),
    )
}

SETTINGS = sum(math.prod(map(len, entry.grid.values())) for entry in BENCHMARKS.values())
