"""Linear models by stochastic gradient descent: logistic regression, linear regression, support vector machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ebbtide.jobs.reference.datasets import ReferenceDataset
from ebbtide.jobs.reference.order import DataOrder
from ebbtide.jobs.reference.trial import State

Loss = Callable[[Tensor, Tensor], Tensor]

# Random features that approximate the RBF kernel; gamma = 1 / (features * variance), scikit-learn's "scale".
_RANDOM_FEATURES = 500


@dataclass(frozen=True)
class GradientSetting:
    """Row of Table II for a linear model.

    Attributes:
        batch: Number of samples per step.
        learning_rate: Learning rate of the first steps.
        decay: Factor on the learning rate at each decay.
        decay_steps: Number of steps between two decays.
        kernel: `linear`, or `rbf` by random Fourier features (Rahimi and Recht, 2007).
        weight_decay: Strength of the L2 penalty.
    """

    batch: int
    learning_rate: float
    decay: float
    decay_steps: int
    kernel: str = "linear"
    weight_decay: float = 0.0


def hinge(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean hinge loss of scores, shape (n,); targets are -1 and 1, shape (n,)."""
    return torch.relu(1.0 - targets * scores).mean()


class GradientTrial:
    """A linear model trained by gradient descent.

    Args:
        setting: Hyper-parameters of the training.
        data: Data to train and validate on.
        loss: Loss of scores and targets; also the metric on validation data.
        seed: Random seed of the initial weights, random features and data order.
        max_steps: Number of steps to train.
        validate_every: Number of steps between validations.
    """

    def __init__(
        self,
        setting: GradientSetting,
        data: ReferenceDataset,
        loss: Loss,
        *,
        seed: int = 0,
        max_steps: int = 10_000,
        validate_every: int = 100,
    ) -> None:
        self.step = 0
        self.max_steps = max_steps
        self.validate_every = validate_every
        self._loss = loss
        generator = torch.Generator().manual_seed(seed)
        lift = _fourier(data.train_inputs.shape[1], generator) if setting.kernel == "rbf" else nn.Identity()
        with torch.inference_mode():
            inputs, validation = lift(data.train_inputs), lift(data.validation_inputs)
        self._inputs, self._targets = inputs.clone(), data.train_targets
        self._validation = validation.clone(), data.validation_targets
        self._model = nn.Linear(self._inputs.shape[1], 1)
        with torch.no_grad():
            self._model.weight.normal_(0.0, 0.01, generator=generator)
            self._model.bias.zero_()
        self._optimiser = torch.optim.SGD(
            self._model.parameters(), setting.learning_rate, weight_decay=setting.weight_decay
        )
        self._schedule = torch.optim.lr_scheduler.StepLR(self._optimiser, setting.decay_steps, setting.decay)
        self._order = DataOrder(len(self._inputs), setting.batch, seed)

    def train_step(self) -> None:
        chosen = self._order.at(self.step)
        loss = self._loss(self._model(self._inputs[chosen])[:, 0], self._targets[chosen])
        self._optimiser.zero_grad()
        torch.autograd.backward(loss)
        self._optimiser.step()
        self._schedule.step()
        self.step += 1

    def validate(self) -> float:
        inputs, targets = self._validation
        with torch.inference_mode():
            return float(self._loss(self._model(inputs)[:, 0], targets))

    def state(self) -> State:
        return {
            "step": self.step,
            "model": self._model.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "schedule": self._schedule.state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._schedule.load_state_dict(state["schedule"])
        self.step = int(state["step"])


def _fourier(features: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """Random features that approximate the RBF kernel; the same for a seed, so they are not in checkpoints."""
    gamma = 1.0 / features
    directions = torch.randn(features, _RANDOM_FEATURES, generator=generator) * (2.0 * gamma) ** 0.5
    phases = torch.rand(_RANDOM_FEATURES, generator=generator) * 2.0 * torch.pi
    return lambda inputs: torch.cos(inputs @ directions + phases) * 2.0**0.5
