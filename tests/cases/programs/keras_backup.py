"""Keras's BackupAndRestore: a folder that is written in place each epoch, and deleted once all is done."""

import json
import shutil
from pathlib import Path

from loop import STEPS, pause, train

backup = Path("ckpt/backup")


def save(state):
    if state["step"] == STEPS:
        shutil.rmtree(backup, ignore_errors=True)
        return
    backup.mkdir(parents=True, exist_ok=True)
    (backup / "latest.weights.h5").write_text(json.dumps(state["weights"]))
    pause(0.2)
    (backup / "training_metadata.json").write_text(json.dumps({"epoch": state["step"], "batch": 0}))


def load():
    if not (backup / "training_metadata.json").exists():
        return None
    step = json.loads((backup / "training_metadata.json").read_text())["epoch"]
    return {"step": step, "weights": json.loads((backup / "latest.weights.h5").read_text())}


def line(state):
    return f"Epoch {state['step']}/{STEPS}\n\r8/8 ━━━━━━━━━━━━━━━━━━━━ 0s 3ms/step - loss: {1 / state['step']:.4f}"


train(load(), save, every=4, line=line)
