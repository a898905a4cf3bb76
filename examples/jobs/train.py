"""A network on the prepared parts, with a hidden layer or without: `python train.py --hidden 64`."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from ebbtide.trial import Trial
from ebbtide.trial_torch import TorchState


def prepared() -> tuple[torch.Tensor, torch.Tensor]:
    files = sorted((Path(os.environ["EBBTIDE_INPUTS"]) / "prepare" / "results").glob("*/part.npz"))
    parts = [np.load(file) for file in files]
    images = np.concatenate([part["images"] for part in parts]).reshape(-1, 64)
    return torch.tensor(images, dtype=torch.float32), torch.tensor(
        np.concatenate([part["labels"] for part in parts])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, required=True)
    hidden = parser.parse_args().hidden

    trial = Trial.current()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = prepared()
    train = 3 * len(images) // 4
    layers = [torch.nn.Linear(64, hidden), torch.nn.ReLU()] if hidden else []
    model = torch.nn.Sequential(*layers, torch.nn.Linear(hidden or 64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    trial.keep(TorchState(model=model, optimizer=optimizer))
    for _ in trial.steps():
        chosen = torch.randint(0, train, (64,))
        optimizer.zero_grad()
        functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    with torch.no_grad():
        right = (model(images[train:]).argmax(dim=1) == labels[train:]).float().mean().item()
    # Files that a program leaves beside its code are kept as its outputs.
    Path("report.json").write_text(json.dumps({"hidden": hidden, "accuracy": right}))
    print(f"accuracy {right:.3f}")


if __name__ == "__main__":
    main()
