"""Saves only once after it has begun from nothing; it never does after it has resumed."""

import json
from pathlib import Path

import loop

file = Path("ckpt") / "state.json"
file.parent.mkdir(exist_ok=True)
state = json.loads(file.read_text()) if file.exists() else loop.begun()
resumed = state["step"]


def save(state):
    if not resumed and state["step"] == loop.EVERY:
        part = file.with_suffix(".tmp")
        part.write_text(json.dumps(state))
        part.rename(file)


loop.STEPS = 10_000
loop.train(state, save, saves_at_end=False)
