"""A training that adds up numbers: the sum shows whether a step was left out or done twice.

Besides its checkpoints, it logs the first step of each start in a file that is never restored.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from ebbtide.trial import Trial


class Sum:
    """The sum so far, with save and restore."""

    def __init__(self) -> None:
        self.total = 0

    @property
    def ends_at(self) -> int | None:
        """None: the sum can be saved only between steps."""
        return None

    def save(self, folder: Path, *, within_step: bool) -> None:  # noqa: ARG002
        """Write the sum."""
        (folder / "sum.json").write_text(json.dumps(self.total))

    def restore(self, folder: Path) -> None:
        """Read the sum."""
        self.total = json.loads((folder / "sum.json").read_text())


def main() -> None:
    """Add up the numbers of all steps, as a trial."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--number", type=int, required=True)
    options = parser.parse_args()
    trial, kept = Trial.current(), Sum()
    begins = trial.keep(kept)
    with (options.notes / f"{trial.trial_id}.log").open("a") as notes:
        notes.write(f"{time.time()!r} {begins}\n")
    for step in trial.steps():
        time.sleep(options.step_s)
        kept.total += step * options.number
        if step % 10 == 0:
            trial.report(loss=1.0 / step)


if __name__ == "__main__":
    main()
