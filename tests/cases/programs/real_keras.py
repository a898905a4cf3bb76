"""Keras with BackupAndRestore, whose folder is deleted at the end, and a log in CSV."""

import hashlib
import os
import time

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
from loop import STEP_S, note


class Counts(keras.callbacks.Callback):
    """Waits in each epoch, and counts it."""

    def on_epoch_begin(self, epoch, logs=None):
        time.sleep(4 * STEP_S)

    def on_epoch_end(self, epoch, logs=None):
        note(epoch + 1)


keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(64, 8))
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
model.compile("adam", "mse")
os.makedirs("ckpt", exist_ok=True)
callbacks = [
    Counts(),
    keras.callbacks.BackupAndRestore("ckpt/backup"),
    keras.callbacks.CSVLogger("ckpt/log.csv", append=True),
]
model.fit(x, x.sum(1), batch_size=16, epochs=40, shuffle=False, callbacks=callbacks)
weights = np.concatenate([value.flatten() for value in model.get_weights()])
print("\nweights", hashlib.sha256(weights.tobytes()).hexdigest())
