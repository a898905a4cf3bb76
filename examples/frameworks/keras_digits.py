"""A small network trained by Keras on PyTorch: two lines make it fit for machines that may be taken.

KERAS_BACKEND=torch python keras_digits.py --epochs 4
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
from sklearn.datasets import load_digits

from ebbtide.frameworks.keras import SpotCallback


class Slower(keras.callbacks.Callback):
    """Makes each step take longer."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.step_s = step_s

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        time.sleep(self.step_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds that each step takes longer")
    options = parser.parse_args()

    keras.utils.set_random_seed(0)
    images, labels = load_digits(return_X_y=True)
    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((64,)), layers.Dense(64, "relu"), layers.Dropout(0.2), layers.Dense(10)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    callbacks = [Slower(options.step_s), SpotCallback()]
    model.fit(images / 16.0, labels, batch_size=64, epochs=options.epochs, verbose=0, callbacks=callbacks)
    weights = np.concatenate([value.flatten() for value in model.get_weights()])
    print("weights", hashlib.sha256(weights.tobytes()).hexdigest())


if __name__ == "__main__":
    main()
