"""The order of training data: shuffled in each epoch, by the seed and the epoch alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class DataOrder:
    """Batches without replacement. Any step's batch is computed directly, so that resuming needs no replay.

    Attributes:
        samples: Number of samples; those left over at the end of an epoch are not used in it.
        batch: Number of samples per batch.
        seed: Random seed of the order.
    """

    samples: int
    batch: int
    seed: int
    _epoch: int = field(default=-1, repr=False)
    _permutation: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64), repr=False)

    @property
    def batches_per_epoch(self) -> int:
        return max(self.samples // self.batch, 1)

    def at(self, step: int) -> Tensor:
        """Indices of the samples of step number `step`, from 0, shape (batch,)."""
        epoch, place = divmod(step, self.batches_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._permutation = torch.randperm(self.samples, generator=generator)
            self._epoch = epoch
        return self._permutation[place * self.batch : (place + 1) * self.batch]
