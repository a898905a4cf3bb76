"""A small network in a loop of one's own with Hugging Face Accelerate, fit for machines that may be taken.

python accelerate_digits.py --epochs 4
"""

from __future__ import annotations

import argparse
import hashlib
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ebbtide.frameworks.accelerate import epochs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds that each step takes longer")
    options = parser.parse_args()

    set_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels))
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=64, shuffle=True))

    for _, batches in epochs(accelerator, loader, options.epochs):
        for some, goals in batches:
            time.sleep(options.step_s)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(some), goals)
            accelerator.backward(loss)
            optimizer.step()
            accelerator.log({"train_loss": loss})
    weights = torch.cat([value.flatten() for value in model.state_dict().values()])
    print("weights", hashlib.sha256(weights.numpy().tobytes()).hexdigest())


if __name__ == "__main__":
    main()
