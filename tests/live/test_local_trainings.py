"""The local provider: real processes, real signals, real checkpoints."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.engine.scripted import Scripted
from tests.markets import C3, R3, START_S, history, job

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.jobs.job import Checkpointing
from ebbtide.jobs.reference_training import load, main
from ebbtide.policies.api.actions import Request
from ebbtide.policies.api.events import Wake
from ebbtide.policies.deepspotcloud.policy import MoveWhen
from ebbtide.simulation.start_delay import StartDelay

# A market hour in three real seconds.
SPEED = 1200.0
QUICK = StartDelay(request_s=20.0, boot_s=60.0)


def run_locally(policy, jobs, prices, folder: Path, billing: str = "ec2-second") -> eb.Outcome:
    return eb.run(
        policy,
        jobs,
        "local",
        prices=prices,
        start=START_S,
        billing=billing,
        speed=SPEED,
        folder=folder,
        delay=QUICK,
    )


def test_the_same_policy_runs_for_real_through_revocations(tmp_path: Path) -> None:
    # Above c3.xlarge's list price of 0.21 for half an hour in every two: each time it is taken.
    spikes = [point for n in range(20) for point in ((7200 * n, 0.05), (7200 * n + 5400, 0.5))]
    prices = history({C3: spikes, R3: [(0, 0.08)]}, hours=40)
    work = job(4000, per_hour=1200.0)
    outcome = run_locally(eb.Reactive(), work, prices, tmp_path)
    assert outcome.finished
    assert outcome.revocations >= 1
    assert outcome.jobs[0].steps_saved == 4000
    assert outcome.checkpoints >= 2
    assert not any(lease.is_open for lease in outcome.leases)
    step, weights = load(tmp_path / "job-0.json")
    main(["--steps", "4000", "--checkpoint", str(tmp_path / "uninterrupted.json")])
    assert (step, weights) == load(tmp_path / "uninterrupted.json")


@pytest.mark.parametrize("overlap", [False, True])
def test_a_job_moves_of_its_own_will_between_regions(tmp_path: Path, overlap: bool) -> None:
    """DeepSpotCloud for real: after an hour another region is cheaper; what the job had saved goes with it."""
    far = eb.Market("aws", "eu-west-1", "eu-west-1a", "c3.xlarge")
    prices = history({C3: [(0, 0.05), (3000, 0.15)], far: [(0, 0.10)]}, hours=40)
    heavy = Checkpointing(save_s=10.0, restore_s=20.0, size_bytes=2**30)
    policy = eb.DeepSpotCloud(MoveWhen.PERIOD_END, overlap=overlap)
    outcome = run_locally(policy, job(3000, per_hour=1200.0, checkpoint=heavy), prices, tmp_path, "ec2-hourly")
    assert outcome.finished
    assert [lease.market for lease in outcome.leases] == [C3, far]
    assert outcome.revocations == 0
    assert outcome.checkpoints >= 2
    assert outcome.egress_usd == pytest.approx(0.02)
    assert outcome.cost_usd == pytest.approx(sum(line.usd for line in outcome.ledger.lines))
    main(["--steps", "3000", "--checkpoint", str(tmp_path / "uninterrupted.json")])
    assert load(tmp_path / "job-0.json") == load(tmp_path / "uninterrupted.json")


def test_several_jobs_run_side_by_side(tmp_path: Path) -> None:
    works = [job(600, per_hour=1200.0), job(900, per_hour=1200.0)]
    outcome = run_locally(eb.CheapestSpot(), works, history({C3: [(0, 0.05)]}, hours=40), tmp_path)
    assert outcome.finished
    assert [progress.steps_saved for progress in outcome.jobs] == [600, 900]
    assert len(outcome.leases) == 2
    # Charged by the market's clock: half an hour and three quarters of work, and what start and end took.
    assert outcome.cost_usd > 0.05 * (0.5 + 0.75)


def test_a_history_that_ends_leaves_no_process_behind(tmp_path: Path) -> None:
    outcome = run_locally(
        eb.CheapestSpot(), job(10**6, per_hour=1200.0), history({C3: [(0, 0.05)]}, hours=2.5), tmp_path
    )
    assert not outcome.finished
    assert outcome.jobs[0].steps_done > 0
    running = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert running.stdout == ""


def test_periodic_checkpoints_survive_the_end_of_the_history(tmp_path: Path) -> None:
    policy = Scripted({Wake.START: lambda _view, _event: [Request(C3, job=0)]})
    # Long enough for several of them, even where the process takes seconds to start on a busy machine.
    prices = history({C3: [(0, 0.05)]}, hours=2.4)
    work = job(10**6, per_hour=60_000.0, interval_s=900.0)
    outcome = run_locally(policy, work, prices, tmp_path)
    assert outcome.checkpoints >= 1
    assert 0 < outcome.jobs[0].steps_saved <= outcome.jobs[0].steps_done
    assert load(tmp_path / "job-0.json")[0] >= outcome.jobs[0].steps_saved


def test_what_the_local_provider_cannot_do_is_told(tmp_path: Path) -> None:
    prices = history({C3: [(0, 0.05)]})
    with pytest.raises(InputError, match="local provider gives each job one"):
        run_locally(eb.CheapestSpot(), job(machines=2), prices, tmp_path)
    with pytest.raises(InputError, match="unknown provider 'cloud'"):
        eb.run(eb.CheapestSpot(), job(), "cloud")
    unlisted = eb.Market("aws", "us-east-1", "us-east-1a", "m5.large")
    with pytest.raises(InputError, match="no rate for any instance type"):
        eb.run(eb.CheapestSpot(), job(), prices=history({unlisted: [(0, 0.05)]}))


def test_run_replays_by_default_and_tells_what_came_of_it() -> None:
    outcome = eb.run(eb.CheapestSpot(), job(7200), prices=history({C3: [(0, 0.36)]}), start=START_S)
    assert outcome.finished
    assert str(outcome).startswith("cheapest-spot: finished after 2.0 h for 0.7")
    assert len(outcome.timeline) == 5
