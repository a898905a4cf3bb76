"""A sweep trained on this machine, through revocations: `python -m tests.harness.live_demo`.

The best trial is then trained once more without interruption: its weights must be the same, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ebbtide.base.files import write_text
from ebbtide.clouds.settings import NewRun, RunFolder
from ebbtide.controller.controller import metrics_of
from ebbtide.controller.kinds.assignments import command_of
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.jobs.common_fields import Direction
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.generator import generate_auction_prices
from ebbtide.policies.for_job import policy_for
from ebbtide.runs.start_local import LocalMarket, begin_local, end_local, run_local
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import object_store
from ebbtide.trial import CHECKPOINT_DIR, MAX_STEPS

_DAYS = 20.0

# This policy bids low for refunds, so that machines are revoked often, as the demo should show.
_POLICY = "spottune-bid"
# A market hour takes two minutes, a quarter of which is the start of sixteen trainings on two cores.
_SPEED = 30.0


@dataclass(frozen=True)
class LiveReport:
    """The results of a live run.

    Attributes:
        trials: Number of trials trained.
        revocations: Number of machines revoked after charging had begun.
        identical_weights: Whether the best trial's weights equal those of an uninterrupted run.
        steps_lost: Steps that were trained again because they were not saved.
        steps_counted_twice: Steps counted twice in the sum of all progress.
        instances_left_running: Machines still running after the run.
        cost_usd: Cost by the run's ledger, USD.
        refund_usd: Refunds of charges, USD.
        ledger_difference_usd: Difference of the run's ledger from the provider's record, USD.
        saved_share: Saving compared with the same machine time on demand, as a fraction.
        seconds: Duration of the run, real seconds.
    """

    trials: int
    revocations: int
    identical_weights: bool
    steps_lost: float
    steps_counted_twice: float
    instances_left_running: int
    cost_usd: float
    refund_usd: float
    ledger_difference_usd: float
    saved_share: float
    seconds: float


def live_demo(
    sweep_file: Path, runs: Path, *, seed: int = 0, notice_s: float = LocalMarket.notice_s
) -> LiveReport:
    """Run a sweep on a local cloud and check the results.

    Args:
        sweep_file: File of the sweep.
        runs: Folder of the runs.
        seed: Seed of the market and the run.
        notice_s: Minimum length of a revocation notice in real seconds.
    """
    began = time.monotonic()
    sweep = Sweep.read(sweep_file)
    folder = begin_local(
        sweep,
        sweep_file.parent,
        NewRun(runs),
        LocalMarket(generate_auction_prices(days=_DAYS, seed=seed), speed=_SPEED, notice_s=notice_s),
        policy=_POLICY,
        seed=seed,
    )
    try:
        ended = run_local(folder, policy_for(sweep, _POLICY))
    finally:
        end_local(folder)
    seconds = time.monotonic() - began
    return live_report(folder, sweep, ended.outcome, ended.billed_usd, ended.left_running, seconds)


def live_report(
    folder: RunFolder, sweep: Sweep, outcome: Outcome, billed_usd: float, left_running: int, seconds: float
) -> LiveReport:
    """Compute the results of a run that has ended.

    Args:
        folder: Folder of the run.
        sweep: The sweep that was trained.
        outcome: The engine's outcome of the run.
        billed_usd: Cost by the provider's record, USD.
        left_running: Number of machines still running after the run.
        seconds: Duration of the run, real seconds.

    Raises:
        InputError: No trial was trained to its end, so there is no best one.
    """
    catalogue = default_catalogue()
    on_demand_usd = 0.0
    for lease in outcome.leases:
        listed = catalogue.on_demand_usd_per_hour(lease.market, lease.requested_s)
        if lease.is_charged and listed is not None:
            on_demand_usd += (lease.ended_s - lease.started_s) / 3600.0 * listed
    twice = sum(job.steps_run - job.steps_lost - job.steps_done for job in outcome.jobs)
    return LiveReport(
        trials=len(outcome.jobs),
        revocations=outcome.revocations,
        identical_weights=_identical(folder, sweep, winner(sweep, folder, outcome)),
        steps_lost=outcome.steps_lost,
        steps_counted_twice=max(twice, 0.0),
        instances_left_running=left_running,
        cost_usd=outcome.cost_usd,
        refund_usd=outcome.refund_usd,
        ledger_difference_usd=abs(outcome.cost_usd - billed_usd),
        saved_share=1.0 - outcome.cost_usd / on_demand_usd if on_demand_usd else 0.0,
        seconds=seconds,
    )


def winner(sweep: Sweep, folder: RunFolder, outcome: Outcome) -> int:
    """Return the number of the best trial that was trained to its end.

    Raises:
        InputError: No trial was trained to its end.
    """
    best = {}
    for number, (job, metrics) in enumerate(zip(outcome.jobs, metrics_of(folder), strict=True)):
        if not job.stopped and job.steps_done >= (sweep.max_trial_steps or 0):
            best[number] = metrics[max(metrics)]
    if not best:
        raise InputError(f"no trial of {sweep.name} was trained to its end; see {folder.path / 'logs'}")
    order = sorted(best, key=lambda number: best[number], reverse=sweep.direction is Direction.MAXIMIZE)
    return order[0]


def _identical(folder: RunFolder, sweep: Sweep, number: int) -> bool:
    settings = folder.settings
    with tempfile.TemporaryDirectory(prefix="ebbtide-") as temporary:
        undisturbed, stored = Path(temporary) / "undisturbed", Path(temporary) / "stored"
        subprocess.run(
            command_of(sweep, number),
            cwd=settings.sweep_folder,
            check=True,
            stdout=subprocess.DEVNULL,
            env=os.environ | {CHECKPOINT_DIR: str(undisturbed), MAX_STEPS: str(sweep.max_trial_steps)},
        )
        CheckpointStore(object_store(settings.store), f"{settings.run}-{number:03d}").restore(stored)
        name = f"step-{sweep.max_trial_steps:012d}"
        ours, theirs = (
            torch.load(place / name / "state.pt", weights_only=True)["parts"] for place in (stored, undisturbed)
        )
    return _same(ours, theirs)


def _same(one: object, other: object) -> bool:
    """Return whether two states are equal, tensors element by element."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def main() -> None:
    """Run the demo, and print and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--provider",
        choices=("local", "ec2", "gcp", "skypilot"),
        default="local",
        help="but for local a stand-in here",
    )
    parser.add_argument("--sweep", type=Path, default=Path("examples/live/sweep.yaml"))
    parser.add_argument("--json", type=Path, default=Path("reports/demo-live.json"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="ebbtide-live-") as runs:
        found: LiveReport
        if options.provider != "local":
            from tests.harness.rented_demo import rented_demo

            found = rented_demo(options.sweep, Path(runs), provider=options.provider, seed=options.seed)
        else:
            found = live_demo(options.sweep, Path(runs), seed=options.seed)
    write_text(options.json, json.dumps(asdict(found), indent=2) + "\n")
    for name, value in asdict(found).items():
        shown = f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
        sys.stdout.write(f"{name.replace('_', ' '):>24}  {shown}\n")
    sys.stdout.write(f"wrote {options.json}\n")


if __name__ == "__main__":
    main()
