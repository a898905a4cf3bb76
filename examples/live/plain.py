"""A training script as people write them: epochs over a DataLoader, a checkpoint after each, a log for people.

    ebbtide run --checkpoints ckpt -- python examples/live/plain.py --epochs 10

It knows nothing of Ebbtide. Started again it resumes from its folder, and ends with the same weights as if it had
never been interrupted: with model and optimizer it keeps the random state that the next epoch begins with.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def moons(count: int) -> TensorDataset:
    """Two half circles, one in the other: which of them is a point of?"""
    random = torch.Generator().manual_seed(7)
    angle = torch.rand(count, generator=random) * torch.pi
    label = torch.randint(0, 2, (count,), generator=random)
    side = 1.0 - 2.0 * label
    points = torch.stack([side * angle.cos() + label, side * angle.sin() + 0.5 * label], dim=1)
    return TensorDataset(points + 0.15 * torch.randn(count, 2, generator=random), label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--checkpoints", type=Path, default=Path("ckpt"))
    parser.add_argument("--pause-s", type=float, default=0.0, help="in each epoch, as if there were more data")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    training, validation = moons(4_000), moons(1_000)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    options.checkpoints.mkdir(parents=True, exist_ok=True)
    newest, first = options.checkpoints / "last.pt", 1
    if newest.exists():
        kept = torch.load(newest)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        torch.set_rng_state(kept["random"])
        first = kept["epoch"] + 1
        print(f"resuming after epoch {kept['epoch']}", flush=True)

    for epoch in range(first, options.epochs + 1):
        model.train()
        for points, labels in DataLoader(training, batch_size=100, shuffle=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(points), labels).backward()
            optimizer.step()
            time.sleep(options.pause_s / 40)
        model.eval()
        with torch.no_grad():
            points, labels = validation.tensors
            loss = functional.cross_entropy(model(points), labels).item()
        state = {
            "epoch": epoch,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }
        # Under another name first, so that there is never half a checkpoint.
        torch.save(state, newest.with_suffix(".new"))
        newest.with_suffix(".new").replace(newest)
        print(f"epoch {epoch}/{options.epochs} validation_loss {loss:.4f}", flush=True)

    weights = torch.cat([value.flatten() for value in model.state_dict().values()])
    print(f"weights {hashlib.sha256(weights.numpy().tobytes()).hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
