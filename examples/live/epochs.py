"""A small network trained in epochs over a DataLoader, with an average of its weights and a schedule.

    python epochs.py --epochs 10

A notice inside an epoch neither skips nor repeats a batch. Without an agent it trains the same.
"""

from __future__ import annotations

import argparse

import torch
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from ebbtide.trial import Trial
from ebbtide.trial_torch import TorchState


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.05)
    options = parser.parse_args()

    trial = Trial.current()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.rand(2_000, 2) * 4 - 2
    labels = (inputs.prod(1, keepdim=True) > 0).float()
    training = DataLoader(TensorDataset(inputs[:1_600], labels[:1_600]), batch_size=64, shuffle=True)

    model = torch.nn.Sequential(
        torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    schedule = CosineAnnealingLR(optimizer, options.epochs)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    trial.keep(TorchState(model=model, optimizer=optimizer, schedule=schedule, average=average))

    for _, batches in trial.epochs(training, options.epochs):
        model.train()
        for some, goals in batches:
            optimizer.zero_grad()
            functional.binary_cross_entropy_with_logits(model(some), goals).backward()
            optimizer.step()
            average.update_parameters(model)
        average.eval()
        with torch.no_grad():
            loss = functional.binary_cross_entropy_with_logits(average(inputs[1_600:]), labels[1_600:])
        trial.report(validation_loss=loss)
        schedule.step()


if __name__ == "__main__":
    main()
