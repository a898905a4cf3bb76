"""Hugging Face's Trainer: checkpoint-N of several files, trainer_state.json last, two kept."""

import json
import re
import shutil
from pathlib import Path

from loop import STEPS, pause, train

out = Path("out")
FILES = ("config.json", "model.safetensors", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")


def folders():
    found = [path for path in out.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name[11:]))


def save(state):
    folder = out / f"checkpoint-{state['step']}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).write_text(json.dumps(state["weights"]))
        pause(0.15)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": state["step"]}))
    for old in folders()[:-2]:
        shutil.rmtree(old)


def load():
    if not folders():
        return None
    newest = folders()[-1]
    weights = [json.loads((newest / name).read_text()) for name in FILES]
    assert weights.count(weights[0]) == len(FILES)
    return {"step": json.loads((newest / "trainer_state.json").read_text())["global_step"], "weights": weights[0]}


def line(state):
    bar = f"{state['step'] * 100 // STEPS:3}%|###   | {state['step']}/{STEPS} [00:01<00:10, 4.0it/s]"
    return (
        f"\r{bar}\n{{'loss': '{1 / state['step']:.4f}', 'grad_norm': '0.5', 'epoch': '{state['step'] / 12:.2f}'}}"
    )


train(load(), save, line=line)
