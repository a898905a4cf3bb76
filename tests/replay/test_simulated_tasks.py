"""Arrays in a replay: whole tasks side by side, what a lost machine had, and the end. Worked out by hand."""

from __future__ import annotations

import math

import pytest

from ebbtide.errors import InputError
from ebbtide.jobs import array as arrays
from ebbtide.jobs.job import Coupling, Job
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market
from ebbtide.policies.api.events import Event, Wake
from ebbtide.replay.simulated_tasks import SimulatedTasks

FAST, SLOW = (Market("aws", "us-east-1", "us-east-1a", name) for name in ("c3.xlarge", "r3.large"))
# Tasks an hour of a machine that does two at a time: a minute for each of them, and ten minutes.
RATES = {"c3.xlarge": 120.0, "r3.large": 12.0}


class Array:
    """An array on machines that do two tasks at a time, from 0 s on."""

    def __init__(self, tasks: int, machines: int = 2) -> None:
        job = Job(
            name="array",
            steps=tasks,
            steps_per_hour=RATES,
            machines=machines,
            coupling=Coupling.INDEPENDENT,
            cpus_per_task=2,
            checkpoint={"save_s": 0.0, "restore_s": 0.0},
        )
        self.progress = JobProgress(0, job)
        self.tasks = SimulatedTasks(
            self.progress, lambda lease: RATES[lease.market.instance_type] / 3600.0, lambda _: 4, margin_s=5.0
        )
        self.leases: list[Lease] = []
        self.events: list[Event] = []

    def rent(self, market: Market, now_s: float) -> Lease:
        lease = Lease(len(self.leases), market, 1.0, False, now_s, state=LeaseState.RUNNING, running_s=now_s)
        self.leases.append(lease)
        self.assign(now_s)
        return lease

    def assign(self, now_s: float) -> None:
        self.events += self.tasks.assign([lease for lease in self.leases if lease.is_open], now_s)

    def until(self, end_s: float = math.inf) -> float:
        """Let everything happen that is due; returns when the last thing did."""
        now_s = 0.0
        while (next_s := self.tasks.next_time_s()) <= end_s and next_s < math.inf:
            now_s = next_s
            self.events += self.tasks.advance(now_s)
        return now_s

    def lose(self, lease: Lease, now_s: float) -> None:
        lease.state = LeaseState.REVOKED
        self.events += self.tasks.lease_lost(lease, now_s)

    @property
    def finished_s(self) -> float:
        (found,) = (event.time_s for event in self.events if event.wake is Wake.FINISHED)
        return found


def test_tasks_are_done_side_by_side_and_are_no_part_of_a_step() -> None:
    array = Array(5)
    array.rent(FAST, 0.0)
    array.until(119.0)
    assert (array.progress.steps_done, array.progress.steps_saved) == (2.0, 2.0)
    array.until()
    assert array.finished_s == 180.0
    assert array.progress.steps_on == {0: 5.0}
    assert array.progress.finished_s == 180.0


def test_the_end_waits_for_the_machine_that_has_the_last_task() -> None:
    array = Array(4)
    array.rent(FAST, 0.0)
    array.rent(SLOW, 0.0)
    array.until()
    # Two at once on each; the fast machine has none left after a minute.
    assert array.finished_s == 600.0


def test_of_a_lost_machine_whole_tasks_are_kept_and_the_others_done_again() -> None:
    array = Array(6)
    lost = array.rent(FAST, 0.0)
    array.until(60.0)
    array.lose(lost, 90.0)
    assert array.progress.steps_done == 2.0
    assert array.progress.steps_lost == 1.0  # half of each of two
    array.rent(FAST, 100.0)
    array.until()
    assert array.finished_s == 220.0
    assert array.progress.steps_run == pytest.approx(7.0)


def test_a_noticed_machine_is_handed_no_more_and_gives_up_just_before_it_goes() -> None:
    array = Array(6)
    noticed = array.rent(SLOW, 0.0)
    noticed.state, noticed.revoke_at_s = LeaseState.NOTICED, 405.0
    array.events += array.tasks.lease_noticed(noticed, 285.0)
    other = array.rent(FAST, 300.0)
    array.until(400.0)
    assert not array.tasks.is_on(noticed)
    assert array.tasks.is_on(other)
    # Four were left for the other, and then those two that were given up.
    array.until()
    assert array.finished_s == 300.0 + 3 * 60.0


def test_a_machine_that_is_left_gives_each_task_as_long_again() -> None:
    array = Array(6)
    left = array.rent(FAST, 0.0)
    slow = array.rent(SLOW, 0.0)
    array.events += array.tasks.assign([slow], 40.0)
    assert array.tasks.is_on(left)
    array.until(60.0)  # done within the 40 s that they had, again
    assert not array.tasks.is_on(left)
    assert array.progress.steps_done == 2.0
    array.events += array.tasks.assign([], 100.0)
    array.until(200.0)
    assert not array.tasks.is_on(slow)
    assert array.progress.steps_done == 2.0


def test_no_more_machines_have_it_than_it_asks_for() -> None:
    array = Array(100, machines=1)
    one, other = array.rent(SLOW, 0.0), array.rent(FAST, 0.0)
    assert array.tasks.is_on(one)
    assert not array.tasks.is_on(other)
    assert array.tasks.concerns(other)


def test_a_milestone_is_told_and_a_stop_begins_no_more() -> None:
    array = Array(100)
    array.rent(FAST, 0.0)
    array.events += array.tasks.wake_at_step(3, 0.0)
    array.until(130.0)
    assert [(event.time_s, event.detail) for event in array.events if event.wake is Wake.MILESTONE] == [
        (120.0, "step 3")
    ]
    array.events += array.tasks.stop(150.0)
    array.until()
    assert array.finished_s == 180.0
    assert array.progress.stopped
    assert array.progress.steps_done == 6.0


def test_an_array_says_what_its_tasks_need_and_no_other_job_does() -> None:
    array = arrays.Array.parse(
        {"command": "x {task}", "tasks": 3, "cpus_per_task": 2, "steps_per_hour": {"c3.xlarge": 1}}
    )
    (job,) = array.jobs()
    assert job.cpus_per_task == 2
    for wrong in ({"coupling": "gang"}, {"speedup": {"parallel": 0.9}}, {"framework": "spark"}):
        with pytest.raises(InputError, match="cpus_per_task"):
            Job.parse({**_fields(job), **wrong})


def _fields(job: Job) -> dict[str, object]:
    """What a file of the job has."""
    return job.model_dump(mode="json", exclude_none=True)
