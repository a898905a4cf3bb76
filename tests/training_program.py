"""A small training for tests: a network with momentum and dropout, an evaluation now and then. Run as a process."""

from __future__ import annotations

import argparse
import hashlib
import time

import torch

from ebbtide.trial import Trial
from ebbtide.trial_torch import TorchState


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--evaluate-every", type=int, default=5)
    parser.add_argument("--evaluate-s", type=float, default=0.0)
    parser.add_argument("--warm-up-s", type=float, default=0.0)
    arguments = parser.parse_args()
    trial = Trial.current()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.BatchNorm1d(16),
        torch.nn.Dropout(0.2),
        torch.nn.ReLU(),
        torch.nn.Linear(16, 1),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    trial.keep(TorchState(model=model, optimizer=optimizer))
    if arguments.warm_up_s:
        print('{"warms_up": true}', flush=True)
    time.sleep(arguments.warm_up_s)
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    goals = inputs.sum(1, keepdim=True).sin()
    for step in trial.steps(arguments.steps):
        time.sleep(arguments.step_s)
        model.train()
        chosen = torch.randint(0, 64, (32,))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs[chosen]), goals[chosen])
        loss.backward()
        optimizer.step()
        if step % arguments.evaluate_every == 0:
            model.eval()
            with torch.no_grad():
                metric = float(torch.nn.functional.mse_loss(model(inputs), goals))
            trial.report(loss=metric)
            until = time.monotonic() + arguments.evaluate_s
            while time.monotonic() < until:
                time.sleep(0.01)
    weights = torch.cat([value.flatten().double() for value in model.state_dict().values()])
    print('{"digest": "' + hashlib.sha256(weights.numpy().tobytes()).hexdigest() + '"}', flush=True)


if __name__ == "__main__":
    main()
