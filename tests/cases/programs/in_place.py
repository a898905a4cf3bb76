"""One file that is written over in place, slowly, as nanoGPT's ckpt.pt."""

import pickle
from pathlib import Path

from loop import pause, train

file = Path("out/ckpt.pt")


def save(state):
    file.parent.mkdir(exist_ok=True)
    whole = pickle.dumps({"model": state["weights"], "iter_num": state["step"], "padding": b"0" * 200_000})
    with file.open("wb") as written:
        written.write(whole[:100_000])
        written.flush()
        pause(0.4)
        written.write(whole[100_000:])


def load():
    if not file.exists():
        return None
    found = pickle.loads(file.read_bytes())
    return {"step": found["iter_num"], "weights": found["model"]}


def line(state):
    return f"iter {state['step']}: loss {1 / state['step']:.4f}, time 250.00ms, mfu 0.10%"


train(load(), save, line=line)
