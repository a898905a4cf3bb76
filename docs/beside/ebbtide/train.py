# What docs/training.md asks of a program, and nothing else.
import argparse

from work import epoch, made

from ebbtide.trial import Trial
from ebbtide.trial_torch import TorchState

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
options = parser.parse_args()
trial = Trial.current()
model, optimizer = made(options.lr)
trial.keep(TorchState(model=model, optimizer=optimizer))
for _ in trial.steps():
    trial.report(loss=epoch(model, optimizer))
