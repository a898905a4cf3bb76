"""At fault: saves, and never looks for what it has saved."""

import json
from pathlib import Path

from loop import train


def save(state):
    Path("ckpt").mkdir(exist_ok=True)
    Path("ckpt/state.json").write_text(json.dumps(state))


train(None, save)
