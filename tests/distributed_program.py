"""A training that several processes do as one, by torch.distributed on CPUs; the first one prints a digest."""

from __future__ import annotations

import argparse
import hashlib
import os
import time

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ebbtide.trial import Trial
from ebbtide.trial_torch import TorchState


def digest_of(model: torch.nn.Module) -> str:
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in model.state_dict().values())).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-s", type=float, default=0.01)
    parser.add_argument("--in-epochs", action="store_true")
    parser.add_argument("--forgets-group", action="store_true")
    asked = parser.parse_args()
    trial = Trial.current()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if not asked.forgets_group:
        distributed.init_process_group("gloo")
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    # Buckets made anew after the first step would add in another order, and a resumed training has a first step, too.
    model = plain if asked.forgets_group else DistributedDataParallel(plain, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(
        1000 + rank
    )  # each has random numbers of its own, of which its checkpoint must have the state
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    trial.keep(TorchState(model=model, optimizer=optimizer, schedule=schedule))

    def step(inputs: torch.Tensor) -> None:
        # The processes are not at the same place in a step when they are asked to save.
        time.sleep(asked.step_s * (1 + rank % 2))
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        if trial.step % 10 == 0:
            trial.report(loss=loss)

    if asked.in_epochs:
        data = TensorDataset(torch.randn(320, 8, generator=torch.Generator().manual_seed(5)))
        sampler: DistributedSampler[object] = DistributedSampler(data)
        for epoch, batches in trial.epochs(DataLoader(data, batch_size=16, sampler=sampler), asked.steps // 10):
            sampler.set_epoch(epoch)
            schedule.step()  # before its batches, and done once all the same
            for (inputs,) in batches:
                step(inputs)
    else:
        for _ in trial.steps(asked.steps):
            step(torch.randn(16, 8))
    if rank == 0:
        print(f'{{"digest": "{digest_of(plain)}"}}', flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
