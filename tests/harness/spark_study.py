"""A user's Spark application whose machines are taken: `python -m tests.harness.spark_study`.

The application runs on machines of the local cloud, each with an address of its own. A market takes its workers;
the result must be that of an undisturbed run. Written to reports/spark.json.
"""

from __future__ import annotations

import re
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
from ebbtide.policies.for_job import within_budget
from ebbtide.runs.start_local import begin_local, end_local, run_local

EXAMPLE = Path("examples/spark/spark.yaml")
TAKEN = (1, 2, 1, 2)


@dataclass(frozen=True)
class SparkReport:
    """Result of a Spark application.

    Attributes:
        finished: Whether the application ran to its end.
        revocations: Number of machines that were revoked.
        machines: Number of machines that were rented.
        drivers: Number of times that the application was begun.
        result: Output at the end of the application.
        undisturbed: Output of an undisturbed run.
        cost_usd: Cost by the run's ledger, USD.
        ledger_difference_usd: Difference from the cloud's own record, USD.
        machines_left_running: Number of machines still running after the run.
        seconds: Duration of the run, real seconds.
    """

    finished: bool
    revocations: int
    machines: int
    drivers: int
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
                "it was begun again": self.drivers == 1,
                "the ledger differs": self.ledger_difference_usd < 0.005,
                "machines were left": self.machines_left_running == 0,
            }
        )


def undisturbed(options: Sequence[str]) -> str:
    """Return the result of an undisturbed run by Spark on this machine."""
    done = subprocess.run(
        [sys.executable, "ranks.py", *options], cwd=EXAMPLE.parent, capture_output=True, text=True, check=True
    )
    return _results(done.stdout)[-1]


def _results(output: str) -> list[str]:
    return re.findall(r"^ranks [0-9a-f]{64}", output, re.MULTILINE) or [""]


def studied(place: Path, taken: Sequence[int], rounds: int, task_s: float) -> SparkReport:
    """Run the example through spikes.

    Args:
        place: Folder in which the run is kept.
        taken: Number of machines that each spike revokes.
        rounds: Rounds of the application.
        task_s: Minimum real seconds of each task of a round.
    """
    given = ("--rounds", str(rounds))
    sweep = read_sweep(EXAMPLE, to_run=True)
    sweep = sweep.model_copy(update={"command": ["ranks.py", *given, "--task-s", str(task_s)], "machines": 3})
    market = SpikingMarket(zones=3, first_s=30.0, between_s=14.0, high_s=5.0)
    began_s = time.monotonic()
    folder = begin_local(sweep, EXAMPLE.parent, NewRun(place), market.local(taken), policy="one-a-zone")
    try:
        ended = run_local(folder, within_budget(sweep, OneAZone()))
    finally:
        end_local(folder)
    outcome = ended.outcome
    (job,) = outcome.jobs
    log = folder.log_of(f"{folder.path.name}-000")
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return SparkReport(
        outcome.finished and not job.stopped,
        outcome.revocations,
        len(ended.bills),
        job.restores - (len(ended.bills) - 1),
        _results(text)[-1],
        undisturbed(given),
        outcome.cost_usd,
        abs(outcome.cost_usd - ended.billed_usd),
        ended.left_running,
        time.monotonic() - began_s,
    )


if __name__ == "__main__":
    run_study(
        __doc__,
        "reports/spark.json",
        lambda runs, rounds, task_s: studied(runs, TAKEN, rounds, task_s),
        rounds=30,
        task_s=0.8,
    )
