"""The order in which training data is visited: drawn anew each epoch, from the seed and the epoch alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class DataOrder:
    """Batches without replacement. Any step's batch can be had at once, so that a resumed run needs no replay.

    Attributes:
        samples: How many there are; those left over at the end of an epoch are not visited in it.
        batch: Samples a batch.
        seed: Of the order.
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
        """Places of the samples of step number `step`, counted from 0."""
        epoch, place = divmod(step, self.batches_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._permutation = torch.randperm(self.samples, generator=generator)
            self._epoch = epoch
        return self._permutation[place * self.batch : (place + 1) * self.batch]
