"""An MPI program whose machines are taken: `python -m tests.harness.mpi_study`.

Four machines of the local cloud, each with an address of its own, have a rank each; a market takes one, two and
four of them at a time. The result must be that of an undisturbed run, bit for bit. Written to reports/mpi.json.
"""

from __future__ import annotations

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

from ebbtide.clouds.settings import NewRun
from ebbtide.jobs.job_files import read_sweep
from ebbtide.runs.start_local import begin_local, end_local, run_local

EXAMPLE = Path("examples/mpi/mpi.yaml")
TAKEN = (1, 2, 4, 1)


@dataclass(frozen=True)
class MpiReport:
    """Result of an MPI job.

    Attributes:
        finished: Whether the job ran to its end.
        revocations: Number of machines that were revoked.
        assignments: Number of times that the job was begun or resumed.
        steps: Steps of the job.
        steps_lost: Steps that had to be done again.
        result: Output at the end of the job.
        undisturbed: Output of an undisturbed run.
        cost_usd: Cost by the run's ledger, USD.
        ledger_difference_usd: Difference from the cloud's own record, USD.
        machines_left_running: Number of machines still running after the run.
        seconds: Duration of the run, real seconds.
    """

    finished: bool
    revocations: int
    assignments: int
    steps: float
    steps_lost: float
    result: str
    undisturbed: str
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
                "its result differs": self.result == self.undisturbed != "",
                "the ledger differs": self.ledger_difference_usd < 0.005,
                "machines were left": self.machines_left_running == 0,
            }
        )


def undisturbed(steps: int) -> str:
    """Return the result of an undisturbed run by `mpirun` on this machine."""
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4", sys.executable, "power.py"]
    done = subprocess.run(
        [*command, "--steps", str(steps)], cwd=EXAMPLE.parent, capture_output=True, text=True, check=True
    )
    return _result(done.stdout)


def _result(output: str) -> str:
    found = re.findall(r"vector [0-9a-f]{64} eigenvalue \S+", output)
    return found[-1] if found else ""


def studied(place: Path, taken: Sequence[int], steps: int) -> MpiReport:
    """Run the example with a number of steps through spikes.

    Args:
        place: Folder in which the run is kept.
        taken: Number of machines that each spike revokes.
        steps: Steps of the program.
    """
    sweep = read_sweep(EXAMPLE, to_run=True)
    assert isinstance(sweep.command, str)
    words = shlex.split(sweep.command)
    words[words.index("--steps") + 1] = str(steps)
    sweep = sweep.model_copy(update={"command": words})
    market = SpikingMarket(zones=4, first_s=12.0, between_s=16.0, high_s=5.0)
    began_s = time.monotonic()
    folder = begin_local(sweep, EXAMPLE.parent, NewRun(place), market.local(taken), policy="one-a-zone")
    try:
        ended = run_local(folder, OneAZone())
    finally:
        end_local(folder)
    outcome = ended.outcome
    (job,) = outcome.jobs
    log = folder.log_of(f"{folder.path.name}-000")
    return MpiReport(
        outcome.finished and not job.stopped,
        outcome.revocations,
        job.restores,
        job.steps_done,
        job.steps_lost,
        _result(log.read_text(encoding="utf-8") if log.exists() else ""),
        undisturbed(steps),
        outcome.cost_usd,
        abs(outcome.cost_usd - ended.billed_usd),
        ended.left_running,
        time.monotonic() - began_s,
    )


if __name__ == "__main__":
    run_study(__doc__, "reports/mpi.json", lambda runs, steps: studied(runs, TAKEN, steps), steps=600)
