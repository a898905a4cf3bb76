"""Programs of frameworks, taken from their machines five times: `python -m tests.harness.framework_study`.

The examples of PyTorch Lightning, of Hugging Face's Trainer, of Accelerate and of Keras run on the local cloud in
a market whose price rises now and then. Their final weights must be those of an undisturbed run, bit for bit, and
no step may be trained twice. Written to reports/frameworks.json.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.spiking_market import OneAZone, SpikingMarket
from tests.harness.study import failed, run_study

from ebbtide.clouds.settings import NewRun
from ebbtide.jobs.job_files import read_sweep
from ebbtide.runs.start_local import begin_local, end_local, run_local

EXAMPLES = Path("examples/frameworks")
NAMES = ("lightning", "transformers", "accelerate", "keras")
# Number of spikes, each of which revokes the machine; real seconds between two, longer than a framework's start.
TAKEN, BETWEEN_S = 5, 40.0
# Matches a program's lines that concern Ebbtide.
_OURS = re.compile(r"ebbtide|SpotCallback\(|newest_checkpoint\(|\btrial\.|\bbatches\b")


@dataclass(frozen=True)
class FrameworkRow:
    """Result of one example program.

    Attributes:
        framework: Name of the example.
        lines_changed: Lines of the program that were added or changed only for Ebbtide.
        finished: Whether the training reached its end.
        revocations: Number of machines that were revoked.
        steps: Steps of the training.
        steps_lost: Steps that had to be trained again.
        weights_equal: Whether the weights equal those of the undisturbed run bit for bit.
        seconds: Duration of the run, real seconds.
    """

    framework: str
    lines_changed: int
    finished: bool
    revocations: int
    steps: float
    steps_lost: float
    weights_equal: bool
    seconds: float

    @property
    def problems(self) -> list[str]:
        """Failed checks, in words; empty if all hold."""
        return failed(
            {
                "is not finished": self.finished,
                "its machine was not taken": self.revocations >= 1,
                "its weights differ": self.weights_equal,
                "steps were lost": self.steps_lost == 0,
            }
        )


def lines_changed(program: Path) -> int:
    """Count the lines of a program that concern Ebbtide, without its docstring."""
    code = program.read_text().partition('"""\n\n')[2]
    return sum(bool(_OURS.search(line)) for line in code.splitlines())


def undisturbed(name: str, options: Sequence[str]) -> str:
    """Return the digest of the weights of an undisturbed run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str((EXAMPLES / f"{name}_digits.py").resolve()), *options]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return _weights(done.stdout)


def _weights(output: str) -> str:
    found = re.findall(r"weights ([0-9a-f]{64})", output)
    return found[-1] if found else ""


def studied(name: str, runs: Path, taken: int, options: Sequence[str], alone: str) -> FrameworkRow:
    """Run a program through spikes.

    Args:
        name: Name of the framework.
        runs: Folder in which the run is kept.
        taken: Number of times that its machine is revoked.
        options: Options of the program.
        alone: Digest of the weights of the undisturbed run.
    """
    file = EXAMPLES / f"{name}.yaml"
    job = read_sweep(file, to_run=True)
    job = job.model_copy(update={"command": ["python", f"{name}_digits.py", *options]})
    market = SpikingMarket(zones=1, first_s=BETWEEN_S, between_s=BETWEEN_S, high_s=4.0).local((1,) * taken)
    began_s = time.monotonic()
    folder = begin_local(job, file.parent, NewRun(runs), market, policy="one-a-zone")
    try:
        outcome = run_local(folder, OneAZone()).outcome
    finally:
        end_local(folder)
    (trained,) = outcome.jobs
    log = folder.log_of(f"{folder.path.name}-000")
    return FrameworkRow(
        name,
        lines_changed(EXAMPLES / f"{name}_digits.py"),
        outcome.finished and not trained.stopped,
        outcome.revocations,
        trained.steps_done,
        trained.steps_lost,
        log.exists() and _weights(log.read_text()) == alone,
        time.monotonic() - began_s,
    )


def options_for(taken: int) -> tuple[str, ...]:
    """Return options with which a program trains long enough for this many revocations."""
    # An epoch has at least 25 steps of a quarter of a second, so training lasts past the last spike.
    return ("--epochs", str(6 + 4 * taken), "--step-s", "0.25")


def studied_all(runs: Path) -> list[FrameworkRow]:
    """Run all programs, each beside an undisturbed copy of it."""
    given = options_for(TAKEN)
    return [studied(name, runs, TAKEN, given, undisturbed(name, given[:2])) for name in NAMES]


if __name__ == "__main__":
    run_study(__doc__, "reports/frameworks.json", studied_all)
