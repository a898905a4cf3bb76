"""A training for tests of the agent: it adds up numbers, and starts without PyTorch."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from ebbtide.trial import Keeper, Trial


class Total(Keeper):
    """A sum over the steps, kept in a file."""

    def __init__(self) -> None:
        self.total, self.taken = 0.0, 0

    @property
    def ends_at(self) -> int:
        return self.taken

    def add(self, value: float) -> None:
        self.total, self.taken = self.total + value, self.taken + 1

    def save(self, folder: Path, *, within_step: bool) -> None:  # noqa: ARG002
        (folder / "total.json").write_text(json.dumps(self.total))

    def restore(self, folder: Path) -> None:
        self.total = json.loads((folder / "total.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--evaluate-s", type=float, default=0.0)
    parser.add_argument("--warm-up-s", type=float, default=0.0)
    arguments = parser.parse_args()
    trial, state = Trial.current(), Total()
    trial.keep(state)
    time.sleep(arguments.warm_up_s)
    for step in trial.steps(arguments.steps):
        time.sleep(arguments.step_s)
        state.add(arguments.rate / step)
        if step % 5 == 0:
            trial.report(loss=1 / (1 + state.total))
            until = time.monotonic() + arguments.evaluate_s
            while time.monotonic() < until:
                time.sleep(0.01)


if __name__ == "__main__":
    main()
