"""Every registered policy with every kind of job, in replay and live on a virtual clock: are they the same?

python -m tests.harness.live_matrix reports/live-matrix.json

As `make parity`, which has more tapes of what each policy is made for; here each has all that live runs know, as a
live run is given it. A policy that does not fit a kind of job has to refuse it, in words.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.harness.parity.decisions import Recorded, differences, ledger_difference_usd
from tests.harness.parity.kinds import Kind, kinds
from tests.harness.parity.tape_cloud import Lived, live
from tests.harness.parity.tapes import Tape, small_bundle, tapes

from ebbtide.base.cores import one_thread
from ebbtide.base.files import write_text
from ebbtide.errors import EbbtideError, InputError
from ebbtide.forecasts.bundle import ModelBundle
from ebbtide.policies.api.protocol import Policy, check_fits
from ebbtide.policies.for_job import policy_for
from ebbtide.policies.registry import POLICIES
from ebbtide.replay.scenario import Scenario

# Runs a scenario live, with a policy, from a start.
RunLive = Callable[[Scenario, Policy, float], Lived]


@dataclass(frozen=True)
class Run:
    """Comparison of a replay and a live run: one policy with one kind of job on one tape.

    Attributes:
        tape: Names of the tape and of the billing preset.
        finished: Whether both runs finished all jobs.
        decisions: Number of decisions in the replay.
        differing_decisions: Number of decisions that differ between the two runs.
        first_difference: Description of the first decision that differs; None: there is none.
        revocations: Number of machines that were revoked in the live run.
        cost_usd: Cost of the live run, USD.
        ledger_difference_usd: USD by which the ledgers differ, summed over lines.
        machines_left_running: Number of machines still rented after the live run.
        failure: Message of the error that ended the comparison; None: there was none.
    """

    tape: str
    finished: bool = False
    decisions: int = 0
    differing_decisions: int = 0
    first_difference: str | None = None
    revocations: int = 0
    cost_usd: float = 0.0
    ledger_difference_usd: float = 0.0
    machines_left_running: int = 0
    failure: str | None = None

    @property
    def is_good(self) -> bool:
        """True if both runs finished, nothing differs, and no machine is left running."""
        differs = self.differing_decisions or self.ledger_difference_usd or self.machines_left_running
        return self.failure is None and self.finished and not differs


@dataclass(frozen=True)
class Cell:
    """Comparisons of one policy with one kind of job, on all tapes of that kind.

    Attributes:
        policy: Name of the policy in the registry.
        kind: Name of the kind of job.
        why_not: Message with which the policy refuses the kind; None: it fits.
        runs: Comparisons, in order of tapes.
    """

    policy: str
    kind: str
    why_not: str | None = None
    runs: tuple[Run, ...] = field(default=())

    @property
    def fits(self) -> bool:
        """True if the policy takes jobs of this kind."""
        return self.why_not is None

    @property
    def is_good(self) -> bool:
        """True if the policy refuses the kind, or there are runs and all of them are good."""
        return not self.fits or (bool(self.runs) and all(run.is_good for run in self.runs))

    def report(self) -> dict[str, object]:
        """Return the cell's part of the report, as plain values."""
        head: dict[str, object] = {"policy": self.policy, "kind": self.kind, "fits": self.fits}
        if not self.fits:
            return {**head, "why_not": self.why_not}
        differing = sum(run.differing_decisions for run in self.runs)
        return {
            **head,
            "why_not": None,
            "finished": all(run.finished for run in self.runs),
            "decisions": sum(run.decisions for run in self.runs),
            "differing_decisions": differing,
            "decisions_equal": not differing and not any(run.failure for run in self.runs),
            "revocations": sum(run.revocations for run in self.runs),
            "cost_usd": sum(run.cost_usd for run in self.runs),
            "ledger_difference_usd": sum(run.ledger_difference_usd for run in self.runs),
            "machines_left_running": sum(run.machines_left_running for run in self.runs),
            "runs": [asdict(run) for run in self.runs],
        }


def cell_of(name: str, kind: Kind, models: ModelBundle, run_live: RunLive = live) -> Cell:
    """Run a policy with a kind of job on all of its tapes, in replay and live, and compare.

    Args:
        name: Name of the policy in the registry.
        kind: The kind of job.
        models: Models for policies that use a bundle.
        run_live: Makes the live run.
    """
    try:
        made = policy_for(kind.sweep, name, models=models)
        check_fits(made, kind.jobs)
    except InputError as error:
        return Cell(name, kind.name, str(error))
    runs = []
    for tape, billing in kind.tapes:
        runs.append(_run_of(made, kind, tape, billing, run_live))
    return Cell(name, kind.name, None, tuple(runs))


def _run_of(made: Policy, kind: Kind, tape: Tape, billing: str, run_live: RunLive) -> Run:
    scenario, name = kind.scenario(tape, billing), f"{tape.name}, {billing}"
    replayed, lived = Recorded(made), Recorded(made)
    try:
        one = scenario.run(replayed, tape.start_s, record=True)
        other = run_live(scenario, lived, tape.start_s)
    except (EbbtideError, AssertionError) as error:
        return Run(name, failure=f"{type(error).__name__}: {error}")
    found = differences(replayed.decisions, lived.decisions)
    return Run(
        name,
        one.finished and other.outcome.finished,
        len(replayed.decisions),
        len(found),
        str(found[0]) if found else None,
        other.outcome.revocations,
        other.outcome.cost_usd,
        ledger_difference_usd(one.ledger, other.outcome.ledger),
        other.left_running,
    )


def report_of(cells: Sequence[Cell]) -> dict[str, object]:
    """Return the report of a matrix, as plain values."""
    runs = [run for cell in cells for run in cell.runs]
    return {
        "policies": list(dict.fromkeys(cell.policy for cell in cells)),
        "kinds": list(dict.fromkeys(cell.kind for cell in cells)),
        "cells": len(cells),
        "fitting": sum(cell.fits for cell in cells),
        "bad": sum(not cell.is_good for cell in cells),
        "runs": len(runs),
        "unfinished_runs": sum(not run.finished for run in runs),
        "decisions": sum(run.decisions for run in runs),
        "differing_decisions": sum(run.differing_decisions for run in runs),
        "revocations": sum(run.revocations for run in runs),
        "ledger_difference_usd": sum(run.ledger_difference_usd for run in runs),
        "machines_left_running": sum(run.machines_left_running for run in runs),
        "matrix": [cell.report() for cell in cells],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix, write the report, and print a table of it.

    Returns:
        The exit code: 1 where a policy fits a kind of job and a run of it fails, differs, does not finish, or
        leaves machines running.
    """
    of_all = {kind.name: kind for kind in kinds()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, nargs="?", default=Path("reports/live-matrix.json"))
    parser.add_argument("--policies", nargs="*", default=list(POLICIES), help="names; all by default")
    parser.add_argument("--kinds", nargs="*", default=list(of_all), help="names; all by default")
    options = parser.parse_args(arguments)
    cells: list[Cell] = []
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ebbtide-matrix-") as folder, one_thread():
        models = small_bundle(tapes()[0].known, Path(folder) / "models")
        _write(f"{'':<28}", (f"{name:>18}" for name in options.kinds))
        for name in options.policies:
            of_it = [cell_of(name, of_all[kind], models) for kind in options.kinds]
            _write(f"{name:<28}", (f"{_shown(cell):>18}" for cell in of_it))
            cells += of_it
    _write("each: decisions, of them different, revocations", ())
    for cell in cells:
        for run in cell.runs:
            if not run.is_good:
                _write(f"{cell.policy}, {cell.kind}, {run.tape}: {_problem(run)}", ())
    report = report_of(cells)
    write_text(options.json, json.dumps(report, indent=2) + "\n")
    _write(
        f"{report['fitting']} of {report['cells']} fit, {report['bad']} of them differ or fail; "
        f"{report['runs']} runs, {report['decisions']:,} decisions, {report['differing_decisions']} differ, "
        f"{report['revocations']} revocations, ledgers by {report['ledger_difference_usd']:.6f} USD, "
        f"{report['machines_left_running']} machines left running",
        (),
    )
    _write(f"{time.monotonic() - began_s:.0f} s; wrote {options.json}", ())
    return 1 if report["bad"] else 0


def _shown(cell: Cell) -> str:
    if not cell.fits:
        return "refused"
    if any(run.failure for run in cell.runs):
        return "FAILED"
    decisions, differing = (
        sum(run.decisions for run in cell.runs),
        sum(run.differing_decisions for run in cell.runs),
    )
    revocations = sum(run.revocations for run in cell.runs)
    return f"{'' if cell.is_good else '! '}{decisions:,} {differing} {revocations}"


def _problem(run: Run) -> str:
    if run.failure is not None:
        return run.failure
    return (
        f"{'finished' if run.finished else 'not finished'}, {run.differing_decisions} of {run.decisions} "
        f"decisions differ, ledgers by {run.ledger_difference_usd:g} USD, {run.machines_left_running} machines "
        f"left; first {run.first_difference}"
    )


def _write(first: str, others: Iterable[str]) -> None:
    sys.stdout.write(f"{first}{''.join(others)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # Hide warnings about jobs, such as a missing metric.
    logging.getLogger("ebbtide").setLevel(logging.ERROR)
    sys.exit(main())
