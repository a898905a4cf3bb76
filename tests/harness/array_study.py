"""An array through the loss of many machines: `python -m tests.harness.array_study`.

Two thousand tasks run on the local cloud while a market takes fifty machines. Each result must be there once, and
be the one that the task gives anywhere; the ledger must equal the cloud's own record. Some tasks take longer
than a machine's notice, and are begun again. Written to reports/array.json.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from pathlib import Path

from tests.harness.spiking_market import OneAZone, SpikingMarket
from tests.harness.study import failed, run_study

from ebbtide.agent.results import TaskResults
from ebbtide.clouds.settings import NewRun
from ebbtide.jobs.job_files import read_sweep
from ebbtide.runs.fetched_results import LINES, fetch_results
from ebbtide.runs.start_local import begin_local, end_local, run_local
from ebbtide.storage.objects import object_store

EXAMPLE = Path("examples/array/array.yaml")
_POINTS = 20_000
# Machines that each spike revokes at once, until there were enough losses.
_AT_ONCE = 4
_SPIKE_EVERY_S = 6.0
# Additional real seconds of every fortieth task.
_REST_S = 8.0


@dataclass(frozen=True)
class ArrayReport:
    """Result of an array run.

    Attributes:
        tasks: Number of tasks.
        finished: Whether all tasks were done.
        revocations: Number of machines that were revoked.
        machines: Number of machines that were rented.
        results: Number of results in storage.
        right: Number of results equal to those of an undisturbed run.
        archives: Number of archives of files in storage: one for each result, if none was stored twice.
        begun_again: Tasks that were begun on a machine that was revoked before their result was stored.
        cost_usd: Cost by the run's ledger, USD.
        ledger_difference_usd: Difference from the cloud's own record, USD.
        machines_left_running: Number of machines still running after the run.
        seconds: Duration of the run, real seconds.
    """

    tasks: int
    finished: bool
    revocations: int
    machines: int
    results: int
    right: int
    archives: int
    begun_again: float
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
                f"{self.results} results": self.results == self.tasks,
                f"{self.right} results are right": self.right == self.tasks,
                f"{self.archives} archives": self.archives == self.tasks,
                "the ledger differs": self.ledger_difference_usd < 0.005,
                "machines were left": self.machines_left_running == 0,
            }
        )


def studied(place: Path, tasks: int, losses: int) -> ArrayReport:
    """Run the example with a number of tasks while the market revokes machines.

    Args:
        place: Folder for the run and its results.
        tasks: Number of tasks.
        losses: Number of machines that the market revokes, if the run lasts long enough.
    """
    sweep = read_sweep(EXAMPLE, to_run=True)
    values = tuple(str(number) for number in range(tasks))
    command = f"{sweep.command} --rest-s {_REST_S}"
    sweep = sweep.model_copy(update={"tasks": values, "command": command})
    taken = [min(_AT_ONCE, losses - before) for before in range(0, losses, _AT_ONCE)]
    market = SpikingMarket(
        zones=sweep.live_jobs()[0].most_machines, first_s=6.0, between_s=_SPIKE_EVERY_S, high_s=3.0
    )
    began_s = time.monotonic()
    folder = begin_local(sweep, EXAMPLE.parent, NewRun(place / "runs"), market.local(taken), policy="one-a-zone")
    try:
        ended = run_local(folder, OneAZone())
    finally:
        end_local(folder)
    outcome = ended.outcome
    (job,) = outcome.jobs
    objects, trial_id = object_store(folder.settings.store), f"{folder.path.name}-000"
    fetched = fetch_results(folder, place / "results")
    found = [json.loads(line) for line in (fetched.folder / LINES).read_text().splitlines()]
    width = len(str(tasks - 1))
    right = sum(
        each["value"] == str(each["task"])
        and _is_right(fetched.folder / f"{each['task']:0{width}d}", each["task"])
        for each in found
    )
    return ArrayReport(
        tasks,
        outcome.finished and not job.stopped,
        outcome.revocations,
        len(ended.bills),
        len(TaskResults(objects, trial_id).numbers()),
        right,
        sum(1 for _ in objects.keys(f"results/{trial_id}/files/")),
        job.steps_lost,
        outcome.cost_usd,
        abs(outcome.cost_usd - ended.billed_usd),
        ended.left_running,
        time.monotonic() - began_s,
    )


def _is_right(folder: Path, part: int) -> bool:
    """Return whether a task's file has the result that `examples/array/estimate.py` computes."""
    draw = random.Random(part)
    inside = sum(draw.random() ** 2 + draw.random() ** 2 < 1 for _ in range(_POINTS))
    found = json.loads((folder / "estimate.json").read_text(encoding="utf-8"))
    return bool(found == {"part": part, "inside": inside})


if __name__ == "__main__":
    run_study(__doc__, "reports/array.json", studied, tasks=2000, losses=50)
