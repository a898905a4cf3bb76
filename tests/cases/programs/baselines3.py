"""Stable-Baselines3: model, replay buffer and normalisation of one save, one after the other."""

import io
import json
import re
import zipfile
from pathlib import Path

from loop import pause, train

out = Path("logs")


def save(state):
    out.mkdir(exist_ok=True)
    step = state["step"]
    with zipfile.ZipFile(out / f"rl_model_{step}_steps.zip", "w") as model:
        model.writestr("data", json.dumps(state["weights"]))
        model.writestr("_stable_baselines3_version", "2.7.0")
    pause(0.5)
    (out / f"rl_model_replay_buffer_{step}_steps.pkl").write_bytes(b"0" * 1_000_000)
    pause(0.5)
    (out / f"rl_model_vecnormalize_{step}_steps.pkl").write_text(json.dumps({"step": step}))


def load():
    found = [
        int(match[1])
        for path in out.glob("*.zip")
        if (match := re.fullmatch(r"rl_model_(\d+)_steps.zip", path.name))
    ]
    if not found:
        return None
    step = max(found)
    assert (out / f"rl_model_replay_buffer_{step}_steps.pkl").stat().st_size == 1_000_000
    with zipfile.ZipFile(io.BytesIO((out / f"rl_model_{step}_steps.zip").read_bytes())) as model:
        weights = json.loads(model.read("data"))
    return {
        "step": json.loads((out / f"rl_model_vecnormalize_{step}_steps.pkl").read_text())["step"],
        "weights": weights,
    }


def line(state):
    rows = {
        "time/": "",
        "   fps": "4",
        "   total_timesteps": state["step"],
        "train/": "",
        "   loss": 1 / state["step"],
    }
    table = "\n".join(f"| {name:22} | {value!s:10.10} |" for name, value in rows.items())
    return f"{'-' * 39}\n{table}\n{'-' * 39}"


train(load(), save, line=line)
