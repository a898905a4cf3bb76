"""A network on images of digits, trained by several machines as one with DistributedDataParallel.

    torchrun train.py --epochs 4

Each machine has a share of every batch, so that as many machines as there are make the same steps; all save and
leave at the same one.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler, TensorDataset

from ebbtide.trial import Trial
from ebbtide.trial_torch import TorchState


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels, from the file that scikit-learn has; to import it would take longer than to train."""
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    rows = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    images = torch.tensor(rows[:, :-1], dtype=torch.float32) / 16.0
    return images, torch.tensor(rows[:, -1], dtype=torch.long)


class Share(Sampler[list[int]]):
    """This process's share of each batch, in an order that differs from epoch to epoch.

    Args:
        samples: Number of samples.
        batch_size: Number of samples in a batch, on all machines together.
    """

    def __init__(self, samples: int, batch_size: int) -> None:
        self.samples, self.batch_size, self.epoch = samples, batch_size, 0

    def __len__(self) -> int:
        return self.samples // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(self.epoch))
        for batch in order.split(self.batch_size)[: len(self)]:
            yield batch[distributed.get_rank() :: distributed.get_world_size()].tolist()


def digest_of(model: torch.nn.Module) -> str:
    """A checksum of all weights: equal trainings have equal ones."""
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in model.state_dict().values())).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64, help="of all machines together")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds that each step takes longer")
    options = parser.parse_args()

    trial = Trial.current()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    images, labels = digits()
    network = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 10)
    )
    # Without this, gradients are added in another order after the first step, also after the first of a resumed
    # training, and the last bits would depend on when it was interrupted.
    model = DistributedDataParallel(network, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    torch.manual_seed(1 + distributed.get_rank())  # other neurons are left out on each machine
    trial.keep(TorchState(model=model, optimizer=optimizer))

    data = TensorDataset(images[:1536], labels[:1536])
    share = Share(len(data), options.batch_size)
    # Gradients are averaged over machines, whose shares may differ by one sample.
    scale = distributed.get_world_size() / options.batch_size
    for epoch, batches in trial.epochs(DataLoader(data, batch_sampler=share), options.epochs):
        share.epoch = epoch
        model.train()
        for inputs, targets in batches:
            optimizer.zero_grad()
            (scale * functional.cross_entropy(model(inputs), targets, reduction="sum")).backward()
            optimizer.step()
            time.sleep(options.step_s)
        model.eval()
        with torch.no_grad():
            loss = functional.cross_entropy(network(images[1536:]), labels[1536:])
        trial.report(validation_loss=loss)
    if distributed.get_rank() == 0:
        print(f"weights {digest_of(network)}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
