# dstack keeps a volume between the attempts (mkdocs/docs/concepts/volumes.md of dstackai/dstack at
# 511c318c8a7672fb2a925041bfc2d7301a26272e); saving and loading are the program's.
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
