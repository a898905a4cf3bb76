"""Machines that train as one, taken one, two and four at a time: `python -m tests.harness.gang_study`.

A DistributedDataParallel program runs under torchrun on four machines of the local cloud, each with an address of
its own. The gang's final weights must be those of an undisturbed run, bit for bit; the elastic job, which goes on
with fewer machines meanwhile, must reach the same loss. Written to reports/gang.json.
"""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.spiking_market import OneAZone, SpikingMarket
from tests.harness.study import failed, run_study

from ebbtide.clouds.settings import NewRun, RunFolder
from ebbtide.controller.controller import metrics_of
from ebbtide.jobs.job_files import read_sweep
from ebbtide.runs.start_local import begin_local, end_local, run_local

_EXAMPLES = Path("examples/gang")
# Number of machines that each spike revokes.
TAKEN = (1, 2, 4, 1, 2, 4, 1)
# The same for the two machines that divide a model between them, five in total.
DIVIDED_TAKEN = (1, 2, 1, 1)
# An elastic job sees the same batches in the same order, but sums its gradients in another order.
_LOSS_TOLERANCE = 0.05


@dataclass(frozen=True)
class GangRow:
    """Result of one job on several machines.

    Attributes:
        job: Name of the job.
        machines: Machines that the job requests, as in its file.
        finished: Whether the training reached its end.
        revocations: Number of machines that were revoked.
        assignments: Number of times that the job was begun or resumed.
        steps: Steps of the training.
        steps_lost: Steps that had to be trained again.
        weights_equal: Whether the weights equal those of the undisturbed run bit for bit.
        loss: Last validation loss.
        undisturbed_loss: Last validation loss of the undisturbed run.
        cost_usd: Cost by the run's ledger, USD.
        ledger_difference_usd: Difference from the cloud's own record, USD.
        machines_left_running: Number of machines still running after the run.
        seconds: Duration of the run, real seconds.
    """

    job: str
    machines: str
    finished: bool
    revocations: int
    assignments: int
    steps: float
    steps_lost: float
    weights_equal: bool
    loss: float
    undisturbed_loss: float
    cost_usd: float
    ledger_difference_usd: float
    machines_left_running: int
    seconds: float

    @property
    def problems(self) -> list[str]:
        """Failed checks, in words; empty if all hold."""
        return failed(
            {
                "is not finished": self.finished,
                "its weights differ": self.weights_equal or self.job == "elastic",
                "its loss differs": abs(self.loss - self.undisturbed_loss) <= _LOSS_TOLERANCE,
                "the ledger differs": self.ledger_difference_usd < 0.005,
                "machines were left": self.machines_left_running == 0,
            }
        )


def undisturbed(options: Sequence[str], machines: int = 4, program: str = "train.py") -> tuple[str, float]:
    """Return the digest of the weights and the last loss of an undisturbed run by torchrun on this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={machines}", program, *options]
    done = subprocess.run(command, cwd=_EXAMPLES, capture_output=True, text=True, check=True)
    return _weights(done.stdout), float(re.findall(r'"\w+_loss": ([\d.]+)', done.stdout)[-1])


def _weights(output: str) -> str:
    found = re.findall(r"weights ([0-9a-f]{64})", output)
    return found[-1] if found else ""


def studied(
    file: Path, runs: Path, taken: Sequence[int], options: Sequence[str], alone: tuple[str, float]
) -> GangRow:
    """Run a job through spikes.

    Args:
        file: The job's file; its program gets other options.
        runs: Folder in which the run is kept.
        taken: Number of machines that each spike revokes.
        options: Options of the program.
        alone: Digest and loss of the undisturbed run.
    """
    sweep = read_sweep(file, to_run=True)
    assert isinstance(sweep.command, str)
    program = next(word for word in shlex.split(sweep.command) if word.endswith(".py"))
    sweep = sweep.model_copy(update={"command": ["python", "-m", "torch.distributed.run", program, *options]})
    market = SpikingMarket(zones=4, first_s=40.0, between_s=35.0, high_s=12.0).local(taken)
    began_s = time.monotonic()
    folder = begin_local(sweep, file.parent, NewRun(runs), market, policy="one-a-zone")
    try:
        ended = run_local(folder, OneAZone())
    finally:
        end_local(folder)
    outcome = ended.outcome
    (job,) = outcome.jobs
    metrics = metrics_of(folder)[0]
    return GangRow(
        sweep.name,
        str(sweep.model_dump(mode="json")["machines"]),
        outcome.finished and not job.stopped,
        outcome.revocations,
        job.restores,
        job.steps_done,
        job.steps_lost,
        _weights(_log(folder)) == alone[0],
        metrics[max(metrics)] if metrics else math.nan,
        alone[1],
        outcome.cost_usd,
        abs(outcome.cost_usd - ended.billed_usd),
        ended.left_running,
        time.monotonic() - began_s,
    )


def _log(folder: RunFolder) -> str:
    path = folder.log_of(f"{folder.path.name}-000")
    return path.read_text() if path.exists() else ""


def studied_all(runs: Path) -> list[GangRow]:
    """Run all jobs through all spikes."""
    given = ("--epochs", "40", "--step-s", "0.15")
    alone = undisturbed(given[:2])
    rows = [studied(_EXAMPLES / name, runs, TAKEN, given, alone) for name in ("gang.yaml", "elastic.yaml")]
    divided = undisturbed(given[:2], 2, "sharded.py")
    return [*rows, studied(_EXAMPLES / "sharded.yaml", runs, DIVIDED_TAKEN, given, divided)]


if __name__ == "__main__":
    run_study(__doc__, "reports/gang.json", studied_all)
