# A script with checkpoints: examples/training_scripts/checkpoint_example/train_height_checkpoint.py of
# syne-tune/syne-tune at d9970f2bcda464663a0006bc9a7ff7fa1abba099.
import argparse
import os
from pathlib import Path

import torch
from syne_tune import Reporter
from syne_tune.constants import ST_CHECKPOINT_DIR
from work import EPOCHS, epoch, made

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument(f"--{ST_CHECKPOINT_DIR}", dest="folder", type=Path)
options, _ = parser.parse_known_args()
options.folder.mkdir(parents=True, exist_ok=True)
newest = options.folder / "newest.pt"
report = Reporter()
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
    report(epoch=number + 1, loss=loss)
