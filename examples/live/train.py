"""A small convolutional network on images of digits: what `make demo-live` trains sixteen of.

    python train.py --lr 0.1 --width 8 --batch-size 64

It uses `ebbtide.trial`; without an agent it trains the same, and keeps no checkpoint.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from ebbtide.trial import Trial
from ebbtide.trial_torch import TorchState

VALIDATE_EVERY = 20


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels, from the file that scikit-learn has; to import it would take longer than to train."""
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    rows = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    images = torch.tensor(rows[:, :-1], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16.0
    return images, torch.tensor(rows[:, -1], dtype=torch.long)


def network(width: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, width, 3, padding=1),
        torch.nn.BatchNorm2d(width),
        torch.nn.ReLU(),
        torch.nn.Conv2d(width, 2 * width, 3, padding=1, stride=2),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Flatten(),
        torch.nn.Linear(2 * width * 16, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--steps", type=int, help="else as the sweep says")
    options = parser.parse_args()

    trial = Trial.current()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = digits()
    model = network(options.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    trial.keep(TorchState(model=model, optimizer=optimizer))

    for step in trial.steps(options.steps):
        model.train()
        chosen = torch.randint(0, 1400, (options.batch_size,))
        optimizer.zero_grad()
        functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
        if step % VALIDATE_EVERY == 0:
            model.eval()
            with torch.no_grad():
                loss = functional.cross_entropy(model(images[1400:]), labels[1400:])
            trial.report(validation_loss=loss.item())


if __name__ == "__main__":
    main()
