"""Ultralytics: weights/last.pt and weights/best.pt written in place, a line of results.csv for each epoch."""

import pickle
from pathlib import Path

from loop import STEPS, pause, train

out = Path("runs/train")


def load():
    file = out / "weights" / "last.pt"
    return pickle.loads(file.read_bytes()) if file.exists() else None


def save(state):
    (out / "weights").mkdir(parents=True, exist_ok=True)
    if not (out / "args.yaml").exists():
        (out / "args.yaml").write_text("task: detect\n")
        (out / "results.csv").write_text("epoch,time,metrics/mAP50(B)\n")
    with (out / "results.csv").open("a") as rows:
        rows.write(f"{state['step']},0.3,{state['step'] / 100}\n")
    whole = pickle.dumps(state)
    (out / "weights" / "last.pt").write_bytes(whole)
    if state["step"] % 4 == 0:
        pause(0.1)
        (out / "weights" / "best.pt").write_bytes(whole)


def line(state):
    return (
        "      Epoch    GPU_mem   box_loss   cls_loss  Instances       Size\n"
        f"     {state['step']}/{STEPS}         0G     0.{state['step']:03}      0.700         20        640: "
        "100% ━━━━━━━━━━━━ 8/8 40.1it/s 0.2s"
    )


train(load(), save, every=1, line=line)
