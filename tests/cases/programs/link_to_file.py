"""A file for each save, the newest two kept, and an absolute link `last.ckpt` to the newest, as Lightning's."""

import json
from pathlib import Path

from loop import train

out = Path("ckpt").resolve()
last = out / "last.ckpt"


def save(state):
    out.mkdir(exist_ok=True)
    file = out / f"epoch=0-step={state['step']}.ckpt"
    file.write_text(json.dumps(state))
    if last.is_symlink():
        last.unlink()
    # A file of that name would be an error.
    last.symlink_to(file)
    for old in sorted(out.glob("epoch=*.ckpt"), key=lambda path: int(path.stem.rpartition("=")[2]))[:-2]:
        old.unlink()


train(json.loads(last.read_text()) if last.exists() else None, save)
