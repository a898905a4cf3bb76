"""A small network trained by Hugging Face's Trainer: three lines make it fit for machines that may be taken.

python transformers_digits.py --epochs 4
"""

from __future__ import annotations

import argparse
import hashlib
import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed

from ebbtide.frameworks.transformers import SpotCallback, newest_checkpoint


class Digits(Dataset[Any]):
    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        self.images, self.labels = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"images": self.images[index], "labels": self.labels[index]}


class Network(torch.nn.Module):
    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.step_s = step_s
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 10)
        )

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(self.step_s)
        found = self.layers(images)
        return {"loss": functional.cross_entropy(found, labels), "logits": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds that each step takes longer")
    options = parser.parse_args()

    set_seed(0)
    model = Network(options.step_s)
    arguments = TrainingArguments(
        output_dir="checkpoints",
        num_train_epochs=options.epochs,
        per_device_train_batch_size=64,
        learning_rate=1e-3,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Digits(), callbacks=[SpotCallback()])
    trainer.train(resume_from_checkpoint=newest_checkpoint())
    weights = torch.cat([value.flatten() for value in model.state_dict().values()])
    print("weights", hashlib.sha256(weights.numpy().tobytes()).hexdigest())


if __name__ == "__main__":
    main()
