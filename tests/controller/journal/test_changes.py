"""What is written of a run's state: what has changed of it, and together always the whole."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.postgres import Places
from tests.runs.sweeps import START_S, A

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.agent.protocol import Saved, Stepped
from ebbtide.controller.agent_provider import AgentProvider, Callbacks
from ebbtide.controller.journal.changes import ChangeLog, Changes, joined, split
from ebbtide.controller.journal.journal import Journal
from ebbtide.engine.engine import Engine
from ebbtide.engine.snapshot import snapshot
from ebbtide.jobs.job import Job
from ebbtide.market.billing import Bill, Charge, billing_preset
from ebbtide.market.leases import LeaseState
from ebbtide.policies.api.actions import Request
from ebbtide.policies.registry import policy
from ebbtide.storage.objects import FolderStore

TRIALS = 12


class Run:
    """A run without a controller, whose machines are what the test says."""

    def __init__(self, folder: Path) -> None:
        cloud: Any = SimpleNamespace(now_s=START_S, is_over=False, time_of=lambda epoch_s: epoch_s)
        agent = AgentConfig("run", "", str(folder), "")
        callbacks = Callbacks(lambda _: Assignment("", (), 100, "loss"))
        self.provider = AgentProvider(cloud, FolderStore(folder), agent, callbacks, key=bytes(32))
        jobs = [
            Job(name=f"job {number}", steps=100, steps_per_hour={"c3.xlarge": 1.0}) for number in range(TRIALS)
        ]
        self.engine = Engine(policy("reactive"), jobs, self.provider, billing_preset("ec2-second"))
        self.provider.start(self.engine.jobs, watch_prices=False)
        for number in range(TRIALS):
            self.engine._request(Request(A, 0.3, job=number))
        for lease in self.engine.all_leases:
            lease.state, lease.started_s, lease.running_s = LeaseState.RUNNING, START_S, START_S
            self.provider._mailboxes.open(lease.lease_id)
            self.engine._assign(lease.lease_id, [lease])
        self.log = ChangeLog(self.engine, self.provider)

    def report(self, number: int, step: int, *, is_saved: bool = False) -> None:
        lease, trial = self.engine.lease(number), f"run-{number:03d}"
        attempt = self.provider.trials[number].attempt
        if is_saved:
            self.provider._handle(lease, Saved(trial, attempt, step, number=step, began=0))
        else:
            self.provider._handle(
                lease,
                Stepped(trial, attempt, step=step, at=step, told_s=START_S, metric=1.0 / (step + 1), began=0),
            )

    def state(self) -> Any:
        return plain({"engine": snapshot(self.engine), "provider": self.provider.snapshot()})


def plain(values: Any) -> Any:
    # NaN equals nothing, but its name does.
    return json.loads(json.dumps(values), parse_constant=str)


def written(run: Run) -> list[tuple[str, int]]:
    """Kinds and numbers of what is written, without what always is."""
    records = [(record.kind, record.number) for record in run.log.changes().records]
    assert records[:2] == [("engine", 0), ("provider", 0)]
    run.log.written()
    return records[2:]


def test_a_write_has_what_changed_and_nothing_else(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert len(written(run)) == 4 * TRIALS  # leases, jobs, trials and mailboxes
    assert written(run) == []
    run.report(3, 7)
    assert run.log.changes().metrics == [(3, 7, 0.125)]
    assert written(run) == [("jobs", 3), ("trials", 3)]
    assert not run.log.changes().metrics
    run.engine.lease(5).revoke_at_s = START_S + 9.0
    assert written(run) == [("leases", 5)]
    run.provider.save(8)
    assert written(run) == [("mailboxes", 8)]


def test_what_could_not_be_written_is_given_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    written(run)
    run.report(3, 7)
    # The disk is full: nobody says that it was written.
    lost = run.log.changes()
    run.report(3, 8)
    again = run.log.changes()
    assert [record.kind for record in lost.records] == [record.kind for record in again.records]
    assert again.metrics == [(3, 7, 1 / 8), (3, 8, 1 / 9)]


@pytest.mark.usefixtures("processes")
def test_all_that_was_written_is_the_whole_state(tmp_path: Path, journal_place: Places) -> None:
    draw = random.Random(4)
    run, journal = Run(tmp_path / "store"), Journal(journal_place("journal"))
    ledger = run.engine._accounts.ledger
    for round_ in range(60):
        number = draw.randrange(TRIALS)
        match draw.randrange(6):
            case 0 | 1:
                run.report(number, round_, is_saved=draw.random() < 0.5)
            case 2:
                run.provider.wake_at_step(number, draw.randrange(1, 90))
            case 3:
                run.engine._release(run.engine.lease(number), save=True)
            case 4:
                charge = Charge(START_S, START_S + 60.0, 0.1, round_ / 600.0)
                ledger.correct(run.engine.lease(number), Bill((charge,), 0.0))
            case 5:
                run.provider.stop(number)
        if draw.random() < 0.7:
            journal.keep({}, changes=run.log.changes())
            run.log.written()
            assert plain(journal.run()) == run.state()
            # A reader has it, too, and a controller that begins anew writes it as it is.
            assert plain(Journal(journal_place("journal"), read_only=True).run()) == run.state()
    whole = {"engine": snapshot(run.engine), "provider": run.provider.snapshot()}
    Journal(journal_place("anew")).keep({}, changes=split(json.loads(json.dumps(whole))))
    assert plain(Journal(journal_place("anew")).run()) == run.state()


@pytest.mark.parametrize("step", [100 / 3, math.inf])
def test_a_run_whose_policy_waits_for_any_step_is_read_back(
    step: float, tmp_path: Path, journal_place: Places
) -> None:
    run = Run(tmp_path)
    run.provider.wake_at_step(0, step)  # type: ignore[arg-type]
    Journal(journal_place("journal")).keep({}, changes=run.log.changes())
    kept = Journal(journal_place("journal")).run()
    assert kept is not None
    assert kept["provider"]["trials"][0]["milestones"] == [step]


def test_nothing_written_is_no_run(journal_place: Places) -> None:
    assert joined([], []) is None
    assert Journal(journal_place("journal")).run() is None
    assert Journal(journal_place("none"), read_only=True).run() is None


@pytest.mark.usefixtures("processes")
def test_of_metrics_the_ends_can_be_read_alone(journal_place: Places) -> None:
    journal = Journal(journal_place("journal"))
    Journal(journal_place("other")).keep({}, changes=Changes((), [(0, 1, -9.0)]))
    values = [0.5, 0.1, 0.1, 0.9, 0.9, 0.3, 0.4]
    kept = [(job, step, value + job) for job in range(2) for step, value in enumerate(values, 1)]
    journal.keep({}, changes=Changes((), kept))
    with journal._read() as session:
        assert session is not None
        found = session.metric_ends()
    # Each job's lowest, highest and last.
    assert found == [row for row in kept if row[1] in (2, 3, 4, 5, 7)]


def test_where_all_that_was_written_is_lost_all_is_given_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.report(3, 7)
    first = run.log.changes()
    run.log.written()
    assert written(run) == []
    run.log.forget()
    again = run.log.changes()
    assert [(each.kind, each.number) for each in again.records] == [
        (each.kind, each.number) for each in first.records
    ]
    assert again.metrics == [(3, 7, 1 / 8)]
