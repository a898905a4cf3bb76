"""What the controller concludes from reports: what was lost, what has finished, and what it does not believe."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.runs.cloud_as_told import Clock
from tests.runs.fake_controller import FakeController, Given, running, stored
from tests.runs.sweeps import START_S, A

from ebbtide.agent.config import Assignment
from ebbtide.agent.protocol import Ended, Ending, Leave, Order, Repeat, Restored, Saved, Stepped, Train
from ebbtide.controller.kinds import state as agent_state
from ebbtide.controller.kinds.state import trial_values
from ebbtide.controller.kinds.training import AgentTraining
from ebbtide.controller.kinds.trial_failures import MOST_FAILURES
from ebbtide.jobs.job import Checkpointing, Job
from ebbtide.jobs.progress import JobProgress
from ebbtide.jobs.transfers import Bucket
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.events import Wake

TRIAL = "run-000"


@dataclass
class Trained(FakeController):
    """A training on one machine after the other.

    Attributes:
        stored: Numbers of the checkpoints that storage has; None: it does not answer.
        bucket: Where the job's checkpoints are stored.
        sizes: Sizes in bytes of checkpoints in storage, by number.
        clock: Time between two orders of the same.
    """

    stored: set[int] | None = field(default_factory=set)
    bucket: Bucket | None = None
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)

    def make(self, given: Given) -> AgentTraining:
        return AgentTraining(
            "run",
            *given,
            stored=stored(has=self.has, size_bytes=lambda _, number: self.sizes.get(number, (0, 0))),
            runtime=self.clock,
        )

    def job(self) -> dict[str, Any]:
        return {"checkpoint": Checkpointing(size_bytes=1_000), "bucket": self.bucket}

    def has(self, trial_id: str, number: int) -> bool:
        assert trial_id == TRIAL
        if self.stored is None:
            raise OSError("storage does not answer")
        return number in self.stored

    def machine(self) -> Lease:
        return self.rent()[0]

    @property
    def sent(self) -> list[Order]:
        return [order for _, order in self.orders]


def test_steps_lost_are_those_that_had_to_be_trained_again() -> None:
    trained = Trained()
    first = trained.machine()
    trained.tell(first, Restored(TRIAL, 1, 0, 0), Stepped(TRIAL, 1, 60, 0.0), Saved(TRIAL, 1, 50, 1))
    trained.take(first)
    assert trained.progress.steps_lost == 10
    # The next one finds a checkpoint that was stored and not told of, and reaches 80 without saving.
    second = trained.machine()
    trained.tell(second, Restored(TRIAL, 2, 55, 2), Stepped(TRIAL, 2, 80, 0.0))
    assert trained.progress.steps_lost == 5
    trained.take(second)
    assert trained.progress.steps_lost == 5 + 25
    # A machine that is gone before it has restored anything changes nothing.
    third = trained.machine()
    trained.take(third)
    fourth = trained.machine()
    trained.tell(fourth, Restored(TRIAL, 4, 70, 3))
    assert trained.progress.steps_lost == 5 + 10
    # The newest checkpoint is damaged: what it had is lost, too.
    trained.take(fourth)
    fifth = trained.machine()
    trained.tell(fifth, Restored(TRIAL, 5, 50, 1))
    assert trained.progress.steps_lost == 5 + 10 + 20
    assert trained.progress.steps_saved == 50


def test_every_step_is_credited_to_the_machine_that_did_it() -> None:
    """Also those done after the last report: up to a save, or to the end of the training."""
    trained = Trained(stored={3})
    first = trained.machine()
    trained.tell(first, Restored(TRIAL, 1, 0, 0), Stepped(TRIAL, 1, 340, 0.0), Saved(TRIAL, 1, 357, 1))
    trained.take(first)
    second = trained.machine()
    # It finds a checkpoint that was stored and not told of.
    trained.tell(second, Restored(TRIAL, 2, 360, 2), Stepped(TRIAL, 2, 390, 0.0))
    trained.tell(second, Ended(TRIAL, 2, Ending.FINISHED, 400, stored=3))
    assert trained.progress.steps_on == {first.lease_id: 360.0, second.lease_id: 40.0}
    assert (trained.progress.steps_done, trained.progress.steps_run) == (400.0, 400.0)


def test_finished_is_believed_where_storage_has_it() -> None:
    trained = Trained()
    lease = trained.machine()
    trained.tell(lease, Restored(TRIAL, 1, 0, 0), Stepped(TRIAL, 1, 100, 0.0))
    forged = Ended(TRIAL, 1, Ending.FINISHED, 100, stored=7)
    trained.tell(lease, forged)
    assert not trained.trial.ended
    assert math.isnan(trained.progress.finished_s)
    trained.stored = {7}
    trained.training.converge()
    trained.tell(lease, Restored(TRIAL, 2, 0, 0), Ended(TRIAL, 2, Ending.FINISHED, 100, stored=7))
    assert trained.trial.ended
    assert trained.progress.steps_done == 100
    assert Wake.FINISHED in {event.wake for event in trained.events}


def test_where_storage_does_not_answer_the_end_waits() -> None:
    trained = Trained(stored=None)
    lease = trained.machine()
    ended = Ended(TRIAL, 1, Ending.FINISHED, 100, stored=3)
    with pytest.raises(OSError, match="does not answer"):
        trained.tell(lease, ended)
    assert [member.lease_id for member in trained.trial.present] == [lease.lease_id]
    trained.stored = {3}
    trained.tell(lease, ended)
    assert trained.trial.ended


def test_a_program_that_saves_nothing_is_believed() -> None:
    trained = Trained()
    trained.tell(trained.machine(), Ended(TRIAL, 1, Ending.FINISHED, 100))
    assert trained.trial.ended


def test_reports_of_another_machine_or_assignment_change_nothing() -> None:
    trained = Trained()
    lease = trained.machine()
    other = Lease(9, A, 0.2, on_demand=False, requested_s=START_S, state=LeaseState.RUNNING)
    trained.tell(other, Stepped(TRIAL, 1, 60, 0.0))
    trained.tell(lease, Stepped(TRIAL, 2, 60, 0.0), Stepped("run-001", 1, 60, 0.0))
    assert trained.progress.steps_done == 0


def test_an_assignment_says_which_checkpoint_is_known_to_be_stored() -> None:
    """Storage without it is not mounted, and no reason to begin again."""
    trained = Trained()
    first = trained.machine()
    trained.tell(first, Restored(TRIAL, 1, 0, 0), Saved(TRIAL, 1, 50, 1), Saved(TRIAL, 1, 60, 2))
    trained.take(first)
    again = Trained()
    again.training.restore([trial_values(trial) for trial in trained.training.trials], {0: first})
    second = again.machine()
    # Number 2 is damaged.
    again.tell(second, Restored(TRIAL, 2, 50, 1))
    again.take(second)
    again.machine()
    orders = [*trained.trained(), *again.trained()]
    assert [assignment.expected for _, assignment in orders] == [0, 2, 2]


def test_a_failure_without_an_exit_code_is_told_by_its_reason() -> None:
    trained = Trained()
    for attempt in range(1, MOST_FAILURES + 1):
        lease = trained.machine()
        assert not trained.progress.stopped
        trained.tell(lease, Ended(TRIAL, attempt, Ending.FAILED, 0, tail=("is it mounted?",)))
        trained.take(lease, LeaseState.RELEASED)
    assert trained.trial.problem == f"failed {MOST_FAILURES} times, last is it mounted?"


def test_where_an_assignment_resumed_is_known_though_that_report_was_lost() -> None:
    trained = Trained()
    first = trained.machine()
    trained.tell(first, Restored(TRIAL, 1, 0, 0), Stepped(TRIAL, 1, 60, 0.0), Saved(TRIAL, 1, 50, 1))
    trained.take(first)
    second = trained.machine()
    # It resumed at step 55, which was stored and not reported; of 60 steps 5 were lost, and 20 are new.
    trained.tell(second, Stepped(TRIAL, 2, 75, 0.0, began=55, restored=2))
    assert (trained.progress.steps_lost, trained.progress.steps_run) == (5.0, 80.0)
    # The report that was late changes nothing.
    trained.tell(second, Restored(TRIAL, 2, 55, 2), Stepped(TRIAL, 2, 76, 0.0, began=55, restored=2))
    assert (trained.progress.steps_lost, trained.progress.steps_run) == (5.0, 81.0)
    assert trained.progress.steps_done == 76.0


def test_what_is_not_answered_for_long_is_ordered_again() -> None:
    trained = Trained()
    clock = trained.clock
    lease = trained.machine()
    trained.training.converge()
    assert [type(order) for order in trained.sent] == [Train]
    clock.now_s = 59.0
    trained.training.converge()
    assert len(trained.orders) == 1
    clock.now_s = 61.0
    trained.training.converge()
    first, again, repeat = trained.sent
    assert (again, type(repeat)) == (first, Repeat)
    # Twice as long the next time, and anew once its agent has said something.
    clock.now_s = 150.0
    trained.training.converge()
    assert len(trained.orders) == 3
    trained.tell(lease, Restored(TRIAL, 1, 0, 0))
    clock.now_s = 211.0
    trained.training.converge()
    assert len(trained.orders) == 5
    # One that is to leave is told that again.
    trained.training.assign(0, [])
    clock.now_s = 280.0
    trained.training.converge()
    assert [type(order) for order in trained.sent[5:]] == [Leave, Leave, Repeat]


def test_one_that_trains_on_is_told_again_to_leave() -> None:
    """The order was lost: it went on, and was paid, for as long as it reported its steps."""
    trained = Trained()
    lease = trained.machine()
    trained.training.converge()
    trained.training.assign(0, [])
    for step in range(1, 8):
        trained.clock.now_s += 10.0
        trained.tell(lease, Stepped(TRIAL, 1, step, 0.0))
        trained.training.converge()
    assert [type(order) for order in trained.sent] == [Train, Leave, Leave, Repeat]


def test_a_program_that_is_silent_for_weeks_is_asked_every_half_an_hour() -> None:
    trained = Trained()
    trained.machine()
    for _ in range(1_100):
        trained.clock.now_s += 1_800.0
        trained.training.converge()
    assert len(trained.ordered(Repeat)) == 1_100


def test_steps_of_a_checkpoint_that_is_set_aside_are_lost() -> None:
    trained = Trained()
    first = trained.machine()
    trained.tell(
        first,
        Restored(TRIAL, 1, 0, 0),
        Stepped(TRIAL, 1, 60, 0.0),
        Saved(TRIAL, 1, 50, 1),
        Saved(TRIAL, 1, 60, 2),
    )
    trained.take(first)
    for attempt in (2, 3):
        failing = trained.machine()
        failed = Ended(TRIAL, attempt, Ending.FAILED, 60, number=2, code=1)
        trained.tell(failing, Restored(TRIAL, attempt, 60, 2), failed)
        trained.take(failing, LeaseState.RELEASED)
    assert trained.trial.aside == (2,)
    trained.tell(trained.machine(), Restored(TRIAL, 4, 50, 1))
    assert trained.progress.steps_lost == 10


EUROPE = Bucket(cloud="aws", region="eu-west-1")


def moved(trained: Trained) -> list[tuple[int, str, int]]:
    """Lease, destination and bytes of each transfer."""
    found = trained.progress.transfers
    return [(move.lease_id, move.destination.region, move.size_bytes) for move in found]


def test_through_a_bucket_what_was_stored_is_charged_and_what_was_resumed_from() -> None:
    trained = Trained(bucket=EUROPE)
    first = trained.machine()
    trained.tell(first, Restored(TRIAL, 1, 0, 0), Saved(TRIAL, 1, 50, 1, 700))
    # One that does not say its size has that of the job.
    trained.tell(first, Saved(TRIAL, 1, 60, 2), Saved(TRIAL, 1, 70, 3, 900))
    assert moved(trained) == [(0, "eu-west-1", 700), (0, "eu-west-1", 1_000), (0, "eu-west-1", 900)]
    assert (trained.progress.saved_at, trained.progress.checkpoint_bytes) == (EUROPE.place, 900)
    trained.take(first)
    second = trained.machine()
    # Nothing is charged before the machine has said what it resumes from.
    assert len(moved(trained)) == 3
    trained.tell(second, Restored(TRIAL, 2, 70, 3))
    trained.tell(second, Restored(TRIAL, 2, 70, 3), Stepped(TRIAL, 2, 80, 0.0, began=70, restored=3))
    assert moved(trained)[3:] == [(1, A.region, 900)]


def test_a_checkpoint_that_nobody_told_of_is_charged_once_it_is_found() -> None:
    trained = Trained(bucket=EUROPE, sizes={2: (40, 40), 3: (50, 50)})
    first = trained.machine()
    trained.tell(first, Restored(TRIAL, 1, 0, 0), Saved(TRIAL, 1, 50, 1, 30))
    trained.take(first)
    second = trained.machine()
    trained.tell(second, Restored(TRIAL, 2, 70, 3))
    assert moved(trained) == [
        (0, "eu-west-1", 30),
        (0, "eu-west-1", 40),
        (0, "eu-west-1", 50),
        (1, A.region, 50),
    ]
    # The newest is damaged: an older one is downloaded.
    trained.now_s += 60.0
    trained.take(second)
    trained.tell(trained.machine(), Restored(TRIAL, 3, 60, 2))
    assert moved(trained)[4:] == [(2, A.region, 40)]


def test_content_that_storage_has_is_not_charged_for_again() -> None:
    trained = Trained(bucket=EUROPE, sizes={3: (900, 20), 4: (910, 0)})
    first = trained.machine()
    trained.tell(first, Restored(TRIAL, 1, 0, 0), Saved(TRIAL, 1, 50, 1, 900, uploaded_bytes=900))
    # The same at a notice: nothing has changed.
    trained.tell(first, Saved(TRIAL, 1, 50, 2, 900, uploaded_bytes=0))
    assert moved(trained) == [(0, "eu-west-1", 900)]
    trained.take(first)
    # Two that nobody has told of; the machine downloads all of the second.
    trained.tell(trained.machine(), Restored(TRIAL, 2, 70, 4))
    assert moved(trained)[1:] == [(0, "eu-west-1", 20), (1, A.region, 910)]


def test_who_begins_from_the_beginning_downloads_nothing() -> None:
    trained = Trained(bucket=EUROPE)
    first = trained.machine()
    trained.tell(first, Restored(TRIAL, 1, 0, 0), Saved(TRIAL, 1, 50, 1, 700))
    trained.take(first)
    trained.tell(trained.machine(), Restored(TRIAL, 2, 0, 0))
    assert moved(trained) == [(0, "eu-west-1", 700)]


def test_beside_the_bucket_nothing_is_charged() -> None:
    trained = Trained(bucket=Bucket(cloud="aws", region=A.region))
    first = trained.machine()
    trained.tell(first, Restored(TRIAL, 1, 0, 0), Saved(TRIAL, 1, 50, 1, 700))
    trained.take(first)
    trained.tell(trained.machine(), Restored(TRIAL, 2, 50, 1))
    assert moved(trained) == []


def test_orders_of_a_shared_machine_name_their_trial_and_who_stays() -> None:
    orders: list[Order] = []
    training = AgentTraining(
        "run",
        lambda _: Assignment("", ("true",), 100, "loss"),
        lambda _, order: orders.append(order),
        lambda _: None,
        lambda: START_S,
        stored=stored(),
    )
    jobs = [Job(name=f"j-{n}", steps=100, steps_per_hour={"c3.xlarge": 1.0}, share=0.5) for n in range(3)]
    training.begin([JobProgress(number, job) for number, job in enumerate(jobs)])
    lease = running(0)
    training.assign(0, [lease])
    training.assign(1, [lease])
    first, second = orders
    assert isinstance(first, Train)
    assert isinstance(second, Train)
    assert (first.beside, second.beside) == ((), ("run-000",))
    assert first.assignment.share == second.assignment.share == 0.5
    # Who is to leave does not stay; its end concerns it alone, whatever numbers the assignments have.
    training.assign(0, [])
    training.assign(2, [lease])
    assert orders[2] == Leave(1, "run-000")
    third = orders[3]
    assert isinstance(third, Train)
    assert third.beside == ("run-001",)
    training.receive(lease, Ended("run-000", 1, Ending.LEFT, 0))
    assert orders[4] == Leave(1, "run-000", reported=True)
    assert training.in_use(lease)
    # The machine's end is that of all on it.
    lease.state = LeaseState.REVOKED
    training.gone(lease)
    assert not training.in_use(lease)
    assert all(trial.members[0].ended == "lost" for trial in training.trials[1:])


def test_of_very_many_metrics_some_are_kept_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_state, "_MOST_METRICS", 10)
    trained = Trained()
    first = trained.machine()
    trained.tell(first, *(Stepped(TRIAL, 1, step, 0.0, step, 1.0 / step) for step in range(1, 101)))
    kept = list(trained.trial.metrics)
    assert kept[:10] == list(range(1, 11))
    assert kept[-1] == 100
    assert len(kept) < 40


def test_machines_that_cannot_begin_say_nothing_against_a_checkpoint() -> None:
    """Each counts as a failure; no checkpoint is set aside."""
    trained = Trained()
    (first,) = trained.rent()
    trained.tell(first, Saved(TRIAL, 1, 40, 1))
    trained.take(first)
    for failures in (1.0, 2.0, 3.0):
        (lease,) = trained.rent()
        _, assignment = trained.trained(lease)[-1]
        trained.tell(lease, Restored(TRIAL, assignment.attempt, 40, 1))
        full = Ended(TRIAL, assignment.attempt, Ending.FAILED, 40, number=1, began=40, of_machine=True)
        trained.tell(lease, full)
        trained.take(lease, LeaseState.RELEASED)
        assert (trained.trial.failures, trained.trial.aside, trained.trial.from_one) == (failures, (), {})
    (good,) = trained.rent()
    assert trained.trained(good)[-1][1].aside == ()


def test_a_metric_that_is_no_number_any_more_is_told_to_policies() -> None:
    """Before, a diverged trial was taken for as good as its last finite value, and trained to its end."""
    trained = Trained()
    lease = trained.machine()
    trained.tell(
        lease,
        Restored(TRIAL, 1, 0, 0),
        Stepped(TRIAL, 1, 10, 0.0, at=10, metric=0.5),
        Stepped(TRIAL, 1, 20, 0.0, at=20, metric=math.inf),
        # A step without a metric says nothing of it.
        Stepped(TRIAL, 1, 21, 0.0, at=21),
    )
    steps, metric = trained.training.measured(0)
    assert steps.tolist() == [10.0, 20.0]
    assert metric[0] == 0.5
    assert math.isnan(metric[1])
    # What is trained again from before it may go better.
    trained.take(lease)
    trained.tell(trained.machine(), Restored(TRIAL, 2, 15, 1))
    assert trained.trial.divergence.at == 0
    assert trained.training.measured(0)[0].tolist() == [10.0]


def test_values_of_lost_steps_hide_no_divergence() -> None:
    trained = Trained()
    lease = trained.machine()
    finite = [Stepped(TRIAL, 1, at, 0.0, at=at, metric=1.0 / at) for at in range(10, 100, 10)]
    trained.tell(lease, Restored(TRIAL, 1, 0, 0), *finite)
    trained.take(lease)
    later = [Stepped(TRIAL, 2, at, 0.0, at=at, metric=math.inf) for at in (60, 70)]
    trained.tell(trained.machine(), Restored(TRIAL, 2, 50, 1), *later)
    steps, metric = trained.training.measured(0)
    assert steps.tolist() == [10.0, 20.0, 30.0, 40.0, 50.0, 70.0]
    assert math.isnan(metric[-1])
