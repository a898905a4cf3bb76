"""Odd names, thousands of small files, and an empty folder."""

import json
import os
from pathlib import Path

from loop import train

out = Path("ckpt")
ODD = [
    b"\xff\xfe.bin",
    "café-模型.pt".encode(),
    b"a:b*c?.pt",
    b"line\nbreak",
    b"back\\slash",
    b"n" * 250,
    b" blanks ",
    b"-rf",
    b"val_loss=0.30.ckpt",
]
COUNT = 2_000


def load():
    if not (out / "state.json").exists():
        return None
    there = set(os.listdir(b"ckpt"))
    missing = [name for name in [*ODD, b"empty", b"run.sh"] if name not in there]
    if missing or len(os.listdir(out / "shards")) != COUNT or not os.access(out / "run.sh", os.X_OK):
        raise SystemExit(f"the folder has come back without {missing or 'shards'}")
    return json.loads((out / "state.json").read_text())


def save(state):
    if not (out / "shards").exists():
        (out / "shards").mkdir(parents=True)
        (out / "empty").mkdir()
        for name in ODD:
            with open(os.path.join(b"ckpt", name), "wb") as file:
                file.write(name)
        for number in range(COUNT):
            (out / "shards" / f"{number:05d}").write_bytes(b"x")
        (out / "run.sh").write_text("#!/bin/sh\n")
        (out / "run.sh").chmod(0o755)
    part = out / ".state"
    part.write_text(json.dumps(state))
    part.rename(out / "state.json")


train(load(), save)
