"""What every program here trains: a line through points. It is the same for all of them and not counted."""

from __future__ import annotations

import time

import torch

EPOCHS = 40
LEARNING_RATES = [0.3, 0.1, 0.03, 0.01]
SECONDS_AN_EPOCH = 0.1  # so that there is something to interrupt


def made(lr: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A network and its optimizer, the same for every start."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def epoch(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Train for an epoch; return the loss before it."""
    time.sleep(SECONDS_AN_EPOCH)
    inputs = torch.randn(64, 4)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    return loss.item()
