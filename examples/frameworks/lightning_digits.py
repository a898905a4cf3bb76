"""A small network trained by PyTorch Lightning: three lines make it fit for machines that may be taken.

python lightning_digits.py --epochs 4
"""

from __future__ import annotations

import argparse
import hashlib
import time
import warnings
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ebbtide.frameworks.lightning import SpotCallback, newest_checkpoint

# Data that fit into memory need no workers.
warnings.filterwarnings("ignore", message=".*does not have many workers.*")


class Digits(LightningModule):
    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.step_s = step_s
        self.network = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 10)
        )

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        images, labels = batch
        time.sleep(self.step_s)
        return functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: Any, index: int) -> None:
        images, labels = batch
        self.log("validation_loss", functional.cross_entropy(self.network(images), labels))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds that each step takes longer")
    options = parser.parse_args()

    seed_everything(0, verbose=False)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels))
    training, validation = torch.utils.data.random_split(data, [1_600, len(data) - 1_600])
    model = Digits(options.step_s)
    trainer = Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        callbacks=[SpotCallback()],
    )
    trainer.fit(
        model,
        DataLoader(training, batch_size=64, shuffle=True),
        DataLoader(validation, batch_size=256),
        ckpt_path=newest_checkpoint(),
    )
    weights = torch.cat([value.flatten() for value in model.state_dict().values()])
    print("weights", hashlib.sha256(weights.numpy().tobytes()).hexdigest())


if __name__ == "__main__":
    main()
