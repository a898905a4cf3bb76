"""Machines that could not begin a job, as their disk is full: all jobs save and leave, and the machine is given back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.controller.test_silent_machines import Cloud, Rented, ended
from tests.runs.cloud_as_told import KEY, Clock

from ebbtide.agent.messages import MessageLog
from ebbtide.agent.protocol import REPORTS, Channel, Ended, Ending, Envelope, Report, Up, key_of
from ebbtide.jobs.job import Job
from ebbtide.jobs.progress import JobProgress

FULL = Ended(
    "run-001", 1, Ending.FAILED, 0, code=None, tail=("[Errno 28] No space left on device",), of_machine=True
)
SAVED = Ended("run-000", 1, Ending.LEFT, 50, stored=0)


class Shared(Rented):
    """Two jobs on one machine."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Cloud(Clock()))
        job = Job(name="half", steps=100, steps_per_hour={"c3.xlarge": 1.0})
        self.jobs = [JobProgress(number, job) for number in range(2)]
        self.rents._training.begin(self.jobs)
        self.sent = 0
        self.tell(Up(0.0))
        self.look_for(20.0)
        for number in range(2):
            self.rents.assign(number, self.leases)
        self.look_for(10.0)

    def tell(self, report: Report) -> None:
        self.sent += 1
        log = MessageLog(self.store, Channel("run-m0000", REPORTS, key_of(KEY, "run-m0000")))
        log.write(self.sent, [Envelope("boot", self.sent, 1, report)])


def test_the_machine_is_given_back_once_the_other_job_has_left_it(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    shared.tell(FULL)
    assert ended(shared.look_for(60.0)) == []
    trials = shared.rents._training.trainings
    assert [(trial.leaving, len(trial.present)) for trial in trials] == [(True, 1), (False, 0)]
    # The engine may assign the machine once more: it does not know yet.
    shared.rents.assign(1, shared.leases)
    assert trials[1].assigned == ()
    shared.tell(SAVED)
    assert ended(shared.look_for(20.0)) == [(0, "[Errno 28] No space left on device")]
    assert not shared.leases[0].is_open
    assert [(trial.failures, trial.problem) for trial in trials] == [(0.0, ""), (1.0, "")]
    assert shared.rents.snapshot()["unfit"] == []


def test_a_controller_that_begins_meanwhile_gives_it_back_all_the_same(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    shared.tell(FULL)
    shared.look_for(20.0)
    kept = shared.rents.snapshot()
    assert kept["unfit"] == [(0, "[Errno 28] No space left on device")]
    again = Rented(tmp_path, shared.cloud, machines=0)
    again.rents._training.begin(shared.jobs)
    again.rents.resume_from(kept, shared.leases)
    again.rents._restore(kept)
    shared.tell(SAVED)
    assert ended(again.look_for(20.0)) == [(0, "[Errno 28] No space left on device")]


def test_five_such_machines_fail_the_job(tmp_path: Path) -> None:
    """Each costs one failure: no disk is large enough."""
    shared = Shared(tmp_path)
    trial = shared.rents._training.trainings[1]
    trial.failures = 4.0
    shared.tell(replace(FULL, attempt=trial.attempt))
    shared.look_for(20.0)
    assert trial.problem == "failed 5 times, last [Errno 28] No space left on device"
