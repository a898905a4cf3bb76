"""XGBoost with callbacks: the model in place after each round, and a copy every few rounds."""

import json
from pathlib import Path

from loop import train

out = Path("model")
file = out / "model.json"


def save(state):
    out.mkdir(exist_ok=True)
    file.write_text(json.dumps(state))
    if state["step"] % 6 == 0:
        (out / f"copy_{state['step']}.ubj").write_text(json.dumps(state))


def line(state):
    return f"[{state['step'] - 1}]\ttrain-rmse:{1 / state['step']:.5f}\tvalid-rmse:{2 / state['step']:.5f}"


train(json.loads(file.read_text()) if file.exists() else None, save, every=2, line=line)
