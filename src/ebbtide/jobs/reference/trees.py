"""Gradient-boosted tree regression: each step adds a round of trees, each grown on its own batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeRegressor

from ebbtide.jobs.reference.datasets import ReferenceDataset
from ebbtide.jobs.reference.trial import State

_ARRAYS = ("children_left", "children_right", "feature", "threshold", "value")


@dataclass(frozen=True)
class TreeSetting:
    """Row of Table II for boosted trees.

    Attributes:
        batch: Number of samples per tree.
        learning_rate: Shrinkage of each round.
        trees: Trees grown in each round, whose predictions are averaged.
        depth: Largest depth of a tree.
    """

    batch: int
    learning_rate: float
    trees: int
    depth: int


class TreeTrial:
    """Stochastic gradient boosting of the squared error (Friedman, 2002).

    The state holds the trees as arrays, and the sum of their predictions on the data so that it need not be
    recomputed on resuming.

    Args:
        setting: Hyper-parameters of the training.
        data: Data to train and validate on.
        seed: Random seed of the batches.
        max_steps: Number of steps to train.
        validate_every: Number of steps between validations.
    """

    def __init__(
        self,
        setting: TreeSetting,
        data: ReferenceDataset,
        *,
        seed: int = 0,
        max_steps: int = 200,
        validate_every: int = 2,
    ) -> None:
        self.step = 0
        self.max_steps = max_steps
        self.validate_every = validate_every
        self._setting = setting
        self._seed = seed
        self._inputs, self._targets = data.train_inputs.numpy(), data.train_targets.numpy().astype(np.float64)
        self._validation = data.validation_inputs.numpy(), data.validation_targets.numpy().astype(np.float64)
        self._fitted = np.zeros(len(self._targets))
        self._validated = np.zeros(len(self._validation[1]))
        self._trees: list[dict[str, NDArray[Any]]] = []

    def train_step(self) -> None:
        setting = self._setting
        random = np.random.default_rng([self._seed, self.step])
        residual = self._targets - self._fitted
        share = setting.learning_rate / setting.trees
        more, more_validated = np.zeros_like(self._fitted), np.zeros_like(self._validated)
        for number in range(setting.trees):
            chosen = random.choice(len(residual), min(setting.batch, len(residual)), replace=False)
            tree = DecisionTreeRegressor(max_depth=setting.depth, random_state=number)
            tree.fit(self._inputs[chosen], residual[chosen])
            more += share * tree.predict(self._inputs)
            more_validated += share * tree.predict(self._validation[0])
            self._trees.append({name: getattr(tree.tree_, name).copy() for name in _ARRAYS})
        self._fitted += more
        self._validated += more_validated
        self.step += 1

    def validate(self) -> float:
        return float(np.mean((self._validated - self._validation[1]) ** 2))

    def state(self) -> State:
        return {
            "step": self.step,
            # Concatenated, because a file of some thousand small tensors takes a second to write.
            "trees": {name: torch.from_numpy(self._end_to_end(name)) for name in _ARRAYS if self._trees},
            "nodes": [len(tree["feature"]) for tree in self._trees],
            "fitted": torch.from_numpy(self._fitted.copy()),
            "validated": torch.from_numpy(self._validated.copy()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        ends = np.cumsum(state["nodes"])[:-1]
        parts = {name: np.split(values.numpy().copy(), ends) for name, values in state["trees"].items()}
        self._trees = [{name: parts[name][number] for name in _ARRAYS} for number in range(len(state["nodes"]))]
        self._fitted = state["fitted"].numpy().copy()
        self._validated = state["validated"].numpy().copy()
        self.step = int(state["step"])

    def _end_to_end(self, name: str) -> NDArray[Any]:
        return np.concatenate([tree[name] for tree in self._trees])
