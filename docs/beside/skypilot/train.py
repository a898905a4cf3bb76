# Checkpoints in a mounted bucket: docs/source/examples/managed-jobs.rst, "Checkpointing and recovery", of
# skypilot-org/skypilot at 01b85de8b05a0b7110d4882055338a08d61e096f; saving and loading are the program's.
import argparse
import os
from pathlib import Path

import torch
from work import EPOCHS, epoch, made

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--folder", type=Path)
options = parser.parse_args()
options.folder.mkdir(parents=True, exist_ok=True)
newest = options.folder / "newest.pt"
model, optimizer = made(options.lr)
first = 0
if newest.exists():
    state = torch.load(newest)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["epoch"]
for number in range(first, EPOCHS):
    loss = epoch(model, optimizer)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": number + 1}
    torch.save(state, newest.with_suffix(".new"))
    os.replace(newest.with_suffix(".new"), newest)
    print(number, loss, flush=True)
