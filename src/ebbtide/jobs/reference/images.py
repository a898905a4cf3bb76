"""Classifying images: AlexNet and ResNet with Adam and a learning rate that falls in stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ebbtide.jobs.reference.datasets import ReferenceDataset
from ebbtide.jobs.reference.networks import alexnet, resnet
from ebbtide.jobs.reference.order import DataOrder
from ebbtide.jobs.reference.trial import State

_VALIDATION_BATCH = 1_000


@dataclass(frozen=True)
class ImageSetting:
    """Row of Table II for a network on images.

    Attributes:
        batch: Number of samples per step.
        learning_rate: Learning rate of the first epochs.
        decay: Factor on the learning rate at each decay.
        decay_epochs: Number of epochs between two decays.
        version: Version of ResNet, 1 or 2; None for AlexNet.
        depth: Depth of ResNet, 20 or 29.
    """

    batch: int
    learning_rate: float
    decay: float
    decay_epochs: int
    version: int | None = None
    depth: int = 20


class ImageTrial:
    """A network trained on images; the metric is cross entropy.

    Args:
        setting: Hyper-parameters of the training.
        data: Data to train and validate on.
        seed: Random seed of the initial weights, dropout, noise and data order.
        max_epochs: Number of epochs to train.
    """

    def __init__(
        self, setting: ImageSetting, data: ReferenceDataset, *, seed: int = 0, max_epochs: int = 100
    ) -> None:
        self.step = 0
        self._data = data
        self._validation_parts = (
            torch.split(data.validation_inputs, _VALIDATION_BATCH),
            torch.split(data.validation_targets, _VALIDATION_BATCH),
        )
        self._order = DataOrder(len(data.train_inputs), setting.batch, seed)
        self.validate_every = self._order.batches_per_epoch
        self.max_steps = max_epochs * self.validate_every
        channels, classes = data.train_inputs.shape[1], int(data.train_targets.max()) + 1
        self._random = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if setting.version is None:
                self._model = alexnet(channels, classes, self._random)
            else:
                self._model = resnet(setting.version, setting.depth, channels, classes)
        self._optimiser = torch.optim.Adam(self._model.parameters(), setting.learning_rate, fused=True)
        self._schedule = torch.optim.lr_scheduler.StepLR(
            self._optimiser, setting.decay_epochs * self.validate_every, setting.decay
        )

    def train_step(self) -> None:
        chosen = self._order.at(self.step)
        self._model.train()
        inputs = self._data.train_inputs[chosen]
        if self._data.noise:
            inputs = inputs + self._data.noise * torch.randn(inputs.shape, generator=self._random)
        scores = self._model(inputs)
        loss = nn.functional.cross_entropy(scores, self._data.train_targets[chosen])
        self._optimiser.zero_grad()
        torch.autograd.backward(loss)
        self._optimiser.step()
        self._schedule.step()
        self.step += 1

    def validate(self) -> float:
        self._model.eval()
        with torch.inference_mode():
            losses = [
                nn.functional.cross_entropy(self._model(inputs), targets, reduction="sum")
                for inputs, targets in zip(*self._validation_parts, strict=True)
            ]
        return float(torch.stack(losses).sum()) / len(self._data.validation_targets)

    def state(self) -> State:
        return {
            "step": self.step,
            "model": self._model.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "schedule": self._schedule.state_dict(),
            "random": self._random.get_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._schedule.load_state_dict(state["schedule"])
        self._random.set_state(state["random"])
        self.step = int(state["step"])
