"""An array store in a folder for each save, whose description is in hidden files, as zarr and DCP have them."""

import json
import os
from pathlib import Path

from loop import train

out = Path("ckpt")


def save(state):
    folder = out / f"step-{state['step']}"
    (folder / "weights").mkdir(parents=True, exist_ok=True)
    for n, weight in enumerate(state["weights"]):
        (folder / "weights" / str(n)).write_text(json.dumps(weight))
    (folder / "weights" / ".zarray").write_text(json.dumps({"shape": [len(state["weights"])]}))
    part = folder / ".metadata.tmp"
    part.write_text(json.dumps({"step": state["step"]}))
    os.replace(part, folder / ".metadata")


def load():
    # A folder without its description is no checkpoint, and that is an error here.
    folders = sorted(out.glob("step-*"), key=lambda path: int(path.name[5:]))
    if not folders:
        return None
    weights = folders[-1] / "weights"
    count = json.loads((weights / ".zarray").read_text())["shape"][0]
    return {
        "step": json.loads((folders[-1] / ".metadata").read_text())["step"],
        "weights": [json.loads((weights / str(n)).read_text()) for n in range(count)],
    }


train(load(), save)
