"""DeepSpeed: a folder of shards for each save, then a text file `latest` that names it."""

import json
from pathlib import Path

from loop import pause, train

out = Path("ckpt")
SHARDS = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(4)]


def save(state):
    folder = out / f"global_step{state['step']}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mp_rank_00_model_states.pt").write_text(json.dumps(state))
    for name in SHARDS:
        pause(0.3)
        (folder / name).write_text(json.dumps(state["step"]))
    (out / "latest").write_text(folder.name)


def load():
    if not (out / "latest").exists():
        return None
    folder = out / (out / "latest").read_text()
    state = json.loads((folder / "mp_rank_00_model_states.pt").read_text())
    assert [json.loads((folder / name).read_text()) for name in SHARDS] == [state["step"]] * len(SHARDS)
    return state


train(load(), save)
