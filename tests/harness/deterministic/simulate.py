"""`python -m tests.harness.deterministic.simulate REPORT.json --seed 0 --runs 10000`: many simulated runs.

Each seed decides every interleaving and every fault of one live run. A run that breaks an invariant is run again
from its seed with fewer and fewer faults, until the fewest that still break it are left.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path

from tests.harness.deterministic.shrinking import Shrunk, shrunk
from tests.harness.deterministic.world import SimulatedRun, simulate

from ebbtide.base.cores import in_processes
from ebbtide.base.files import write_text

# Maximum number of failing seeds to shrink; further ones are only counted.
_SHRUNK = 5
# Number of seeds in a process's batch, some seconds of work.
_AT_ONCE = 50
_MEMORY = Path("/dev/shm")


@dataclass
class SimulationReport:
    """Summary of many simulated runs.

    Attributes:
        seed: The first seed.
        runs: Runs that were simulated.
        faults: Faults that happened in them.
        seconds: Duration of all runs, real seconds.
        violations: Runs that broke an invariant.
        stuck: Runs that did not end.
        steps_counted_twice: Runs in which a step was counted twice, or left out.
        steps_lost_beyond_checkpoint: Runs in which a step was lost that a complete checkpoint had.
        machines_left_running: Runs that left a machine running.
        ledger_difference_usd: Difference between the runs' ledgers and the cloud's bills in total, USD.
        simulated_hours: Hours of virtual time.
        controllers: Controllers that were started.
        machines: Machines that were rented.
        faults_by_kind: Faults by kind.
        ended: Number of runs by how they ended.
        seeds_by_violation: Seeds of the runs that broke an invariant, by its name.
        failing: The first failing seeds, each with the broken invariant and the fewest faults that break it.
    """

    seed: int
    runs: int = 0
    faults: int = 0
    seconds: float = 0.0
    violations: int = 0
    stuck: int = 0
    steps_counted_twice: int = 0
    steps_lost_beyond_checkpoint: int = 0
    machines_left_running: int = 0
    ledger_difference_usd: float = 0.0
    simulated_hours: float = 0.0
    controllers: int = 0
    machines: int = 0
    faults_by_kind: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    seeds_by_violation: dict[str, list[int]] = field(default_factory=dict)
    failing: list[Shrunk] = field(default_factory=list)

    def include(self, other: SimulationReport) -> None:
        """Add the runs of another report."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if each.name == "seeds_by_violation":
                setattr(
                    self, each.name, {kind: mine.get(kind, []) + theirs.get(kind, []) for kind in mine | theirs}
                )
            elif isinstance(mine, dict):
                setattr(self, each.name, dict(sorted((Counter(mine) + Counter(theirs)).items())))
            elif each.name != "seed":
                setattr(self, each.name, mine + theirs)

    def add(self, run: SimulatedRun) -> None:
        """Count a run."""
        found = {violation.what for violation in run.violations}
        self.runs += 1
        self.faults += len(run.faults)
        self.violations += bool(found)
        self.stuck += "stuck" in found
        self.steps_counted_twice += bool(found & {"steps", "steps counted twice", "steps miscounted"})
        self.steps_lost_beyond_checkpoint += "steps lost beyond a checkpoint" in found
        self.machines_left_running += "machines left running" in found
        self.ledger_difference_usd += run.ledger_difference_usd
        self.simulated_hours += run.simulated_s / 3600.0
        self.controllers += run.controllers
        self.machines += run.machines
        kinds = Counter(self.faults_by_kind)
        kinds.update(fault.place.partition("#")[0] for fault in run.faults)
        self.faults_by_kind = dict(sorted(kinds.items()))
        state = "broken" if found else run.state.partition(":")[0].partition(" of ")[0]
        self.ended[state] = self.ended.get(state, 0) + 1
        for kind in sorted(found):
            self.seeds_by_violation.setdefault(kind, []).append(run.seed)


@contextmanager
def in_memory() -> Iterator[Path]:
    """Make a folder for the files of runs, in memory if possible."""
    where = str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ebbtide-", dir=where) as place:
        yield Path(place)


def simulate_all(seed: int, runs: int, *, processes: int | None = None) -> SimulationReport:
    """Simulate runs of consecutive seeds.

    Args:
        seed: The first seed.
        runs: Number of runs.
        processes: Number of parallel processes; by default one per core.
    """
    began_s, report, failing = time.monotonic(), SimulationReport(seed), []
    batches = [range(first, min(first + _AT_ONCE, seed + runs)) for first in range(seed, seed + runs, _AT_ONCE)]
    with in_memory() as place:
        for found, broken in in_processes(partial(_batch, place), batches, workers=processes):
            report.include(found)
            failing += broken
        first = sorted(failing, key=lambda run: run.seed)[:_SHRUNK]
        report.failing = [shrunk(run, place) for run in first]
    report.seconds = time.monotonic() - began_s
    return report


def _batch(place: Path, seeds: range) -> tuple[SimulationReport, list[SimulatedRun]]:
    """Simulate some runs; returns their report, and the runs that broke an invariant."""
    report, broken = SimulationReport(seeds.start), []
    for seed in seeds:
        run = simulate(seed, place)
        report.add(run)
        if run.violations:
            broken.append(run)
    return report, broken


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, and write the report; returns 1 if an invariant was broken."""
    parser = argparse.ArgumentParser(description="Live runs on a virtual clock, with faults.")
    parser.add_argument("report", type=Path, help="JSON file of the report")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--runs", type=int, default=10_000, help="how many runs")
    given = parser.parse_args(arguments)
    if given.runs < 1:
        parser.error(f"--runs is {given.runs}; at least 1 is needed")
    report = simulate_all(given.seed, given.runs)
    write_text(given.report, json.dumps(asdict(report), indent=2) + "\n")
    sys.stdout.write(
        f"{report.runs} runs with {report.faults} faults in {report.seconds:.0f} s: {report.violations} broke an "
        f"invariant, {report.stuck} are stuck, {report.machines_left_running} left machines running, "
        f"ledgers differ by {report.ledger_difference_usd:.6f} USD\n"
    )
    for one in report.failing:
        sys.stdout.write(f"\n{one}\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
