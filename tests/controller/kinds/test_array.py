"""The controller's side of an array: what is handed out, what comes back, and when all is done."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.cloud_as_told import Clock
from tests.runs.fake_controller import FakeController, Given
from tests.runs.sweeps import START_S

from ebbtide.agent.protocol import Ended, Ending, Hand, Leave, TaskDone, TaskFailed
from ebbtide.controller.kinds.array import MOST_FAILURES, AgentTasks, ArrayPlan
from ebbtide.controller.kinds.state import ArrayState, trial_values
from ebbtide.errors import InputError
from ebbtide.jobs.job import Coupling, Job
from ebbtide.jobs.progress import JobProgress
from ebbtide.jobs.transfers import Bucket
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.events import Wake

TRIAL = "run-000"


class Stored:
    """Results in storage; `answers` is off while it does not."""

    def __init__(self) -> None:
        self.kept: set[int] = set()
        self.answers = True
        self.asked = 0

    def _check(self) -> None:
        self.asked += 1
        if not self.answers:
            raise OSError("storage does not answer")

    def numbers(self) -> set[int]:
        self._check()
        return set(self.kept)

    def has(self, number: int) -> bool:
        self._check()
        return number in self.kept


@dataclass
class Array(FakeController):
    """An array of tasks on machines that do two at a time.

    Attributes:
        tasks: Number of its tasks.
        machines: Most machines at a time.
        bucket: Where results are stored.
    """

    tasks: int = 10
    machines: int = 4
    bucket: Bucket | None = None
    stored: Stored = field(default_factory=Stored)

    def make(self, given: Given) -> AgentTasks:
        plan = ArrayPlan([f"v{number}" for number in range(self.tasks)], lambda _lease: 2, 0.0)
        return AgentTasks("run", plan, *given, results=lambda _trial: self.stored)  # type: ignore[arg-type, return-value]

    @property
    def trial(self) -> ArrayState:
        found: ArrayState = self.training.trials[0]
        return found

    def job(self) -> dict[str, Any]:
        independent = {"machines": self.machines, "coupling": Coupling.INDEPENDENT}
        return {"steps": self.tasks, "bucket": self.bucket, **independent}

    def resume(self) -> None:
        """Another controller goes on from what this one has written."""
        kept, before = json.loads(json.dumps(trial_values(self.trial))), self.progress
        self.begin()
        for name in ("steps_done", "steps_saved", "steps_run", "steps_lost", "stopped", "finished_s"):
            setattr(self.progress, name, getattr(before, name))
        self.training.restore([kept], {lease.lease_id: lease for lease in self.leases})

    def attempt_on(self, lease: Lease) -> int:
        return self.trained(lease)[-1][1].attempt

    def handed(self, lease: Lease) -> list[int]:
        hands = [hand for _, hand in self.ordered(Hand, lease)]
        return [task for hand in hands if hand.attempt == self.attempt_on(lease) for task in hand.tasks]

    def done(self, lease: Lease, number: int, attempt: int = 0) -> None:
        self.stored.kept.add(number)
        self.tell(lease, TaskDone(TRIAL, attempt or self.attempt_on(lease), number, START_S, 1.0))

    def fail(self, lease: Lease, number: int, **others: Any) -> None:
        failed = TaskFailed(TRIAL, self.attempt_on(lease), number, 1, ("it broke",))
        self.tell(lease, TaskFailed(**{**vars(failed), **others}))

    @property
    def finished(self) -> list[str]:
        return [event.detail for event in self.events if event.wake is Wake.FINISHED]


def test_each_machine_is_handed_what_it_does_at_a_time_with_its_values() -> None:
    array = Array()
    one, other = array.rent(2)
    assert (array.handed(one), array.handed(other)) == ([0, 1], [2, 3])
    ((_, hand),) = array.ordered(Hand, other)
    assert hand.values == ("v2", "v3")
    array.done(one, 1)
    assert array.handed(one) == [0, 1, 4]
    assert (array.progress.steps_done, array.progress.steps_saved) == (1, 1)


def test_a_task_that_failed_is_done_by_another_machine_if_there_is_any() -> None:
    """One machine with a bad disk would fail every task as often as it takes to count as failed."""
    array = Array(tasks=6)
    bad, good = array.rent(2)
    while array.finished == []:
        for number in [task for task in array.handed(good) if task not in array.stored.kept]:
            array.done(good, number)
        for member in [each for each in array.trial.members if each.lease_id == bad.lease_id]:
            for number in member.tasks:
                array.fail(bad, number)
    assert (array.finished, array.trial.problem, array.trial.tasks.failed) == (["done"], "", ())
    assert all(count == 1 for count in array.trial.tasks.failures.values())


def test_a_machine_that_is_alone_tries_again_what_failed_on_it() -> None:
    array = Array(tasks=4)
    one, other = array.rent(2)
    array.fail(one, 0)
    assert array.handed(one) == [0, 1]
    array.take(other)
    array.training.converge()
    assert array.handed(one) == [0, 1, 0]


def test_no_more_machines_have_it_than_it_asks_for() -> None:
    array = Array(machines=1)
    one, other = array.rent(2)
    assert array.training.in_use(one)
    assert not array.training.in_use(other)


def test_what_a_lost_machine_had_is_handed_to_others_but_for_what_it_has_stored() -> None:
    array = Array(tasks=4)
    one, other = array.rent(2)
    array.stored.kept.add(1)  # stored, and never reported
    array.take(one)
    assert (array.progress.steps_done, array.progress.steps_lost) == (1, 1)
    array.done(other, 2)
    assert array.handed(other) == [2, 3, 0]
    array.done(one, 0, attempt=1)  # late, from a machine that is gone
    array.done(other, 3)
    assert array.finished == []
    array.done(other, 0)
    assert array.finished == ["done"]
    assert array.progress.steps_run == array.progress.steps_done + array.progress.steps_lost == 5


def test_while_storage_does_not_answer_a_lost_machine_s_results_are_asked_for_once() -> None:
    """Each request may wait for seconds, and nobody looks meanwhile."""
    array = Array(machines=1, tasks=40)
    (lease,) = array.rent()
    array.stored.kept.add(0)
    array.stored.answers, array.stored.asked = False, 0
    array.take(lease)
    assert array.stored.asked == 1
    assert array.progress.steps_done == 0
    array.stored.answers = True
    assert array.handed(array.rent()[0])[:2] == [0, 1]


def test_a_report_that_comes_twice_counts_once() -> None:
    array = Array()
    (one,) = array.rent()
    array.done(one, 0)
    array.done(one, 0)
    assert array.progress.steps_done == 1


def test_it_ends_only_when_storage_has_every_result() -> None:
    array = Array(tasks=2)
    (one,) = array.rent()
    array.done(one, 0)
    array.stored.answers = False
    with pytest.raises(OSError, match="storage"):
        array.tell(one, TaskDone(TRIAL, 1, 1, START_S, 1.0))
    array.stored.answers = True
    array.training.converge()
    # It was reported and is not there: it is made again.
    assert (array.finished, array.handed(one), array.progress.steps_done) == ([], [0, 1, 1], 1)
    array.done(one, 1)
    assert array.finished == ["done"]
    assert not array.training.in_use(one)


def test_a_task_that_fails_is_tried_again_and_then_left_out() -> None:
    array = Array(tasks=3)
    (one,) = array.rent()
    for _ in range(MOST_FAILURES):
        array.fail(one, 0)
    array.done(one, 1)
    array.done(one, 2)
    assert array.handed(one).count(0) == MOST_FAILURES
    (detail,) = array.finished
    assert detail.startswith("1 of 3 tasks failed; task 0 (v0) failed 3 times")
    assert "it broke" in detail


def test_where_every_task_fails_it_is_given_up() -> None:
    array = Array(tasks=100)
    (one,) = array.rent()
    for number in range(5):
        for _ in range(MOST_FAILURES):
            array.fail(one, number)
    assert "so did all 5" in array.trial.problem
    array.tell(one, Ended(TRIAL, 1, Ending.LEFT, 0))
    assert array.finished == [array.trial.problem]


def test_a_program_that_is_not_there_ends_it_at_once() -> None:
    array = Array()
    (one,) = array.rent()
    array.fail(one, 0, code=None, cannot_start=True, tail=("no such program",))
    assert array.trial.problem == "cannot be started: no such program"


def test_machines_that_can_begin_no_task_fail_the_array_and_no_task() -> None:
    """Five in a row, however many tasks each was handed; a task that is done between begins the count anew."""
    array = Array(tasks=60)
    for count in (1, 2, 3, 4, 1, 2, 3, 4, 5):
        if (count, array.trial.failures) == (1, 4):
            (good,) = array.rent()
            array.done(good, array.handed(good)[0])
            array.take(good)
        (full,) = array.rent()
        for number in array.handed(full):
            array.fail(full, number, code=None, tail=("the disk is full",), of_machine=True)
        assert array.trial.failures == count
        array.take(full, LeaseState.RELEASED)
    assert array.trial.problem == "5 machines in a row could do no task, last with the disk is full"
    assert (array.trial.tasks.failed, array.trial.tasks.failures) == ((), {})


def test_a_task_that_fills_the_disk_of_each_machine_fails_alone() -> None:
    """It comes last, so that its machine has done another before: then it counts against the task."""
    array, rented, done = Array(tasks=12), 0, set[int]()
    while not array.trial.tasks.failed and not array.trial.ended:
        (lease,) = array.rent()
        rented += 1
        while mine := [number for number in array.handed(lease) if number not in done]:
            if mine[0] == 3:
                array.fail(lease, 3, code=None, tail=("the disk is full",), of_machine=True)
                break
            array.done(lease, mine[0])
            done.add(mine[0])
        array.take(lease, LeaseState.RELEASED)
    assert array.trial.tasks.failed == (3,)
    assert rented <= 6


def test_machines_that_give_up_at_once_do_not_do_so_for_ever() -> None:
    array = Array()
    (one,) = array.rent()
    for attempt in range(1, 6):
        array.tell(one, Ended(TRIAL, attempt, Ending.LEFT, 0))
        if not array.trial.problem:
            array.training.converge()
    assert "could not begin" in array.trial.problem
    assert array.finished


def test_one_that_is_to_be_left_gets_no_more_and_what_it_did_not_do_is_waiting() -> None:
    array = Array(tasks=3)
    one, other = array.rent(2)
    array.training.assign(0, [other])
    assert array.left(one) == [(0, Leave(1, TRIAL))]
    array.done(one, 0)
    array.tell(one, Ended(TRIAL, 1, Ending.LEFT, 1))
    assert not array.training.in_use(one)
    array.done(other, 2)
    assert array.handed(other) == [2, 1]


def test_one_with_a_notice_goes_on_but_is_handed_nothing_more() -> None:
    array = Array()
    (one,) = array.rent()
    one.state = LeaseState.NOTICED
    array.done(one, 0)
    array.training.converge()
    assert array.handed(one) == [0, 1]
    assert array.ordered(Leave) == []


def test_a_stop_lets_what_runs_end() -> None:
    array = Array()
    (one,) = array.rent()
    array.training.stop(0)
    array.done(one, 0)
    assert array.handed(one) == [0, 1]
    array.tell(one, Ended(TRIAL, 1, Ending.LEFT, 1))
    assert array.finished == ["stopped"]
    assert array.progress.stopped


def test_other_jobs_are_refused() -> None:
    array = Array()
    job = Job(name="gang", steps=10, steps_per_hour={"c3.xlarge": 1.0}, machines=2)
    with pytest.raises(InputError, match="array of 10 tasks"):
        array.training.begin([JobProgress(0, job)])


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 30), st.integers(0, 2**32))
def test_whatever_happens_each_task_is_done_or_failed_once(tasks: int, seed: int) -> None:
    draw, array = random.Random(seed), Array(tasks=tasks, machines=3)
    fails = {number for number in range(tasks) if draw.random() < 0.1}
    for _ in range(3000):
        if array.finished:
            break
        working = [(lease, n) for lease in array.leases if lease.is_open for n in sorted(set(array.handed(lease)))]
        outstanding = {(m.lease_id, n) for m in array.trial.members for n in m.tasks}
        running = [(lease, n) for lease, n in working if (lease.lease_id, n) in outstanding]
        match draw.choice(("rent", "work", "work", "work", "work", "take", "unseen", "resume", "look", "again")):
            case "rent" if sum(lease.is_open for lease in array.leases) < 4:
                array.rent()
            case "work" if running:
                lease, number = draw.choice(running)
                if number in fails and number not in array.stored.kept:
                    array.fail(lease, number)
                else:
                    array.done(lease, number)
            case "unseen" if running:
                array.stored.kept.add(draw.choice(running)[1])
            case "again" if working:
                lease, number = draw.choice(working)
                if number in array.stored.kept:
                    array.done(lease, number)
            case "take" if running and draw.random() < 0.5:
                array.take(draw.choice(running)[0])
            case "resume":
                array.resume()
            case "look":
                array.training.converge()
        progress = array.progress
        assert progress.steps_run == progress.steps_done + progress.steps_lost
        assert progress.steps_done == progress.steps_saved == array.trial.tasks.done
    assert array.finished or array.trial.problem
    state = array.trial.tasks
    if not array.progress.stopped or state.done:
        assert array.stored.kept | set(state.failed) == set(range(tasks)) or array.trial.stopping


def test_speed_is_measured_by_each_task_though_those_side_by_side_end_together() -> None:
    array = Array(tasks=100, machines=1)
    (one,) = array.rent()
    for number in range(40):
        # Two at a time, each for a hundred seconds: two end at each hundredth second.
        told_s = START_S + 100.0 * (1 + number // 2)
        array.stored.kept.add(number)
        array.tell(one, TaskDone(TRIAL, array.attempt_on(one), number, told_s, 100.0))
        measured = array.training.speeds.measured(0, "c3.xlarge")
        if number:
            assert measured == pytest.approx(2 / 100.0)
    # What another machine had done before took no time here.
    array.tell(one, TaskDone(TRIAL, array.attempt_on(one), 40, START_S + 2000.0, 0.0))
    assert array.training.speeds.measured(0, "c3.xlarge") == pytest.approx(2 / 100.0)


def test_results_are_charged_on_their_way_to_the_bucket_and_none_comes_back() -> None:
    array = Array(bucket=Bucket(cloud="aws", region="eu-west-1"))
    (lease,) = array.rent()
    array.tell(lease, TaskDone(TRIAL, 1, 0, START_S, 1.0, 70))
    array.tell(lease, TaskDone(TRIAL, 1, 1, START_S, 1.0))
    array.rent()
    moved = [(move.lease_id, move.destination.region, move.size_bytes) for move in array.progress.transfers]
    assert moved == [(0, "eu-west-1", 70)]


def test_a_machine_that_works_on_is_told_again_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order was lost: the machine did, and was paid for, all that it had been handed."""
    array, clock = Array(tasks=40), Clock()
    (lease,) = array.rent(1)
    monkeypatch.setattr(array.training, "_runtime", clock)
    for _ in range(20):
        number = next(task for task in array.handed(lease) if task not in array.stored.kept)
        array.done(lease, number)
    array.training.assign(0, [])
    clock.now_s += 40.0
    array.done(lease, next(task for task in array.handed(lease) if task not in array.stored.kept))
    clock.now_s += 40.0
    array.training.converge()
    assert len(array.ordered(Leave, lease)) == 2


def test_results_that_a_listing_does_not_show_are_not_made_again() -> None:
    array = Array(tasks=4)
    (lease,) = array.rent(1)
    listed = set[int]()
    array.stored.numbers = lambda: listed  # type: ignore[method-assign]
    for number in range(4):
        array.done(lease, number)
    assert array.finished == ["done"]
