"""Machines that train as one: they begin, leave and resume together, whichever of them is taken or fails."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.runs.cloud_as_told import Clock, provider
from tests.runs.fake_controller import FakeController, Given, running, stored

from ebbtide.agent.config import Assignment
from ebbtide.agent.protocol import Ended, Ending, Keep, Leave, Order, Saved, Stepped, Train, Unsaved
from ebbtide.controller.kinds.dispatch import AgentJobs
from ebbtide.controller.kinds.state import TrialState, trial_values
from ebbtide.controller.kinds.stored_checkpoints import ObjectCheckpoints
from ebbtide.controller.kinds.training import AgentTraining
from ebbtide.controller.kinds.trial_failures import MOST_FAILURES
from ebbtide.errors import LostCheckpointError
from ebbtide.jobs.job import Checkpointing, Job
from ebbtide.jobs.progress import JobProgress
from ebbtide.jobs.transfers import Bucket
from ebbtide.market.leases import LeaseState
from ebbtide.policies.api.events import Wake
from ebbtide.storage.checkpoints.manifest import Manifest
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.checkpoints.whole import Whole
from ebbtide.storage.objects import FolderStore

IDS = ("run-000", "run-000-r1", "run-000-r2", "run-000-r3")


def part(rank: int, step: int, number: int) -> Manifest:
    return Manifest(IDS[rank], number, 1, step, 0.0, ())


@dataclass
class Gang(FakeController):
    """A job on several machines.

    Attributes:
        machines: As its file has it.
        bucket: Where the job's checkpoints are stored.
        whole: The newest whole checkpoint in storage; an error: storage does not answer, or lacks it.
        older: The newest that storage has where it lacks the newest.
    """

    machines: Any = 2
    bucket: Bucket | None = None
    whole: Whole | OSError | None = None
    best: Whole | None = None
    older: Whole | None = None

    def make(self, given: Given) -> AgentTraining:
        return AgentTraining(
            "run",
            *given,
            stored=stored(newest_whole=self.newest, best_whole=lambda *_, **__: self.best),
            address=lambda lease_id: f"10.0.0.{lease_id}",
        )

    def job(self) -> dict[str, Any]:
        checkpoint = Checkpointing(size_bytes=1_000)
        return {"machines": self.machines, "checkpoint": checkpoint, "bucket": self.bucket}

    def newest(self, _trial: TrialState, *, skips_damaged: bool) -> Whole | None:
        if isinstance(self.whole, OSError) and not (skips_damaged and isinstance(self.whole, LostCheckpointError)):
            raise self.whole
        return self.older if isinstance(self.whole, OSError) else self.whole


def test_it_begins_when_all_are_there_and_each_knows_the_others() -> None:
    gang = Gang(machines=3)
    gang.rent(2)
    assert gang.trained() == []
    gang.rent()
    ordered = [assignment for _, assignment in gang.trained()]
    assert [(each.trial_id, each.rank, each.attempt) for each in ordered] == [(IDS[n], n, 1) for n in range(3)]
    assert {each.addresses for each in ordered} == {("10.0.0.0", "10.0.0.1", "10.0.0.2")}
    assert len({each.port for each in ordered}) == 1
    assert {each.resume for each in ordered} == {()}


def test_where_one_is_taken_the_others_leave_soon_and_all_resume_from_a_whole_checkpoint() -> None:
    gang = Gang()
    first, second = gang.rent(2)
    for rank, lease in enumerate((first, second)):
        gang.tell(lease, Saved(IDS[rank], 1, 40, 4 + rank))
    assert gang.progress.steps_saved == 40
    gang.tell(first, Saved(IDS[0], 1, 60, 5))
    # What only one has stored is not whole.
    assert (gang.progress.steps_saved, gang.progress.checkpoints) == (40, 1)
    gang.tell(first, Stepped(IDS[0], 1, 70, 0.0))
    gang.take(second)
    assert gang.left() == [(0, Leave(1, IDS[0], alone=True))]
    assert not any(event.wake is Wake.FINISHED for event in gang.events)
    gang.tell(first, Ended(IDS[0], 1, Ending.LEFT, 60))
    assert gang.progress.steps_lost == 30
    # One is not enough; with the next, the one that stayed keeps its rank.
    gang.whole = Whole(40, {0: part(0, 40, 4), 1: part(1, 40, 5)})
    gang.training.converge()
    assert len(gang.trained()) == 2
    gang.rent()
    again = gang.trained()[2:]
    assert [(lease_id, each.rank, each.attempt) for lease_id, each in again] == [(0, 0, 2), (2, 1, 2)]
    assert [each.resume for _, each in again] == [((IDS[0], 4),), ((IDS[1], 5),)]
    assert (gang.progress.steps_done, gang.progress.steps_lost) == (40, 30)
    # What belongs to the assignment before is not heard any more.
    gang.tell(first, Stepped(IDS[0], 1, 90, 0.0))
    assert gang.progress.steps_done == 40


def test_the_steps_that_were_stored_unheard_are_not_lost() -> None:
    gang = Gang()
    first, second = gang.rent(2)
    gang.tell(first, Stepped(IDS[0], 1, 70, 0.0))
    gang.take(second)
    gang.take(first)
    assert gang.progress.steps_lost == 70
    gang.whole = Whole(65, {0: part(0, 65, 1), 1: part(1, 65, 1)})
    gang.rent(2)
    assert (gang.progress.steps_saved, gang.progress.steps_lost) == (65, 5)
    assert [stretch.step_kept for stretch in gang.trial.stretches] == [65, 65]


def test_it_is_finished_when_all_are() -> None:
    gang = Gang()
    first, second = gang.rent(2)
    gang.tell(first, Ended(IDS[0], 1, Ending.FINISHED, 100))
    assert not gang.trial.ended
    assert gang.left() == []
    gang.tell(second, Ended(IDS[1], 1, Ending.FINISHED, 100))
    assert gang.trial.ended
    assert all(stretch.is_final for stretch in gang.trial.stretches)


def test_one_that_is_taken_after_others_have_finished_is_trained_again() -> None:
    gang = Gang()
    first, second = gang.rent(2)
    gang.tell(first, Ended(IDS[0], 1, Ending.FINISHED, 100))
    gang.take(second)
    assert not gang.trial.ended
    gang.rent()
    assert [each.attempt for _, each in gang.trained()] == [1, 1, 2, 2]


@pytest.mark.parametrize("noticed", [False, True])
def test_a_program_that_fails_because_another_left_has_not_failed(*, noticed: bool) -> None:
    gang = Gang()
    first, second = gang.rent(2)
    if noticed:
        second.state = LeaseState.NOTICED
    gang.tell(first, Ended(IDS[0], 1, Ending.FAILED, 10, code=1, tail=("connection reset",)))
    assert gang.left() == [(1, Leave(1, IDS[1], alone=True))]
    if not noticed:
        gang.take(second)
    else:
        gang.tell(second, Ended(IDS[1], 1, Ending.LEFT, 10))
    assert gang.trial.failures == 0
    # The same without any of this is a failure of its own.
    alone = Gang()
    first, second = alone.rent(2)
    alone.tell(first, Ended(IDS[0], 1, Ending.FAILED, 10, code=1, tail=("wrong",)))
    alone.tell(second, Ended(IDS[1], 1, Ending.LEFT, 10))
    assert alone.trial.failures == 1


def test_a_program_that_always_fails_is_given_up() -> None:
    gang = Gang()
    first, second = gang.rent(2)
    for attempt in range(1, MOST_FAILURES + 1):
        assert not gang.trial.ended
        gang.training.converge()
        gang.tell(second, Ended(IDS[1], attempt, Ending.FAILED, 0, code=1, tail=("wrong",)))
        gang.tell(first, Ended(IDS[0], attempt, Ending.LEFT, 0))
    assert gang.trial.problem == f"failed {MOST_FAILURES} times, last with exit code 1: wrong"
    assert gang.trial.ended


def test_a_checkpoint_that_training_fails_from_is_not_resumed_from_again() -> None:
    gang = Gang(whole=Whole(40, {0: part(0, 40, 7), 1: part(1, 40, 9)}))
    first, second = gang.rent(2)
    for attempt in (1, 2):
        gang.training.converge()
        gang.tell(second, Ended(IDS[1], attempt, Ending.FAILED, 0, number=9, code=1, tail=("wrong",)))
        gang.tell(first, Ended(IDS[0], attempt, Ending.LEFT, 0))
    assert gang.trial.aside == (7,)


def test_an_elastic_one_goes_on_smaller_and_grows_again() -> None:
    gang = Gang(machines={"min": 2, "max": 3})
    first, second, third = gang.rent(3)
    first.state = LeaseState.NOTICED
    gang.training.converge()
    assert gang.left() == []  # it trains while there is time
    gang.tell(first, Ended(IDS[0], 1, Ending.LEFT, 30))
    assert [lease_id for lease_id, _ in gang.left()] == [1, 2]
    gang.tell(second, Ended(IDS[1], 1, Ending.LEFT, 30))
    gang.tell(third, Ended(IDS[2], 1, Ending.LEFT, 30))
    gang.whole = Whole(30, {rank: part(rank, 30, 3) for rank in range(3)})
    gang.training.converge()
    smaller = gang.trained()[3:]
    assert [(lease_id, each.rank, each.resume) for lease_id, each in smaller] == [
        (2, 0, ((IDS[0], 3),)),
        (1, 1, ((IDS[1], 3),)),
    ]
    (fourth,) = gang.rent()
    assert [lease_id for lease_id, _ in gang.left()[2:]] == [2, 1]
    gang.tell(second, Ended(IDS[1], 2, Ending.LEFT, 30))
    gang.tell(third, Ended(IDS[0], 2, Ending.LEFT, 30))
    gang.whole = Whole(50, {rank: part(rank, 50, 5) for rank in range(2)})
    gang.training.converge()
    grown = gang.trained()[5:]
    # The new one has nothing of that step, and resumes from the first one's.
    assert [(lease_id, each.resume) for lease_id, each in grown] == [
        (2, ((IDS[0], 5),)),
        (1, ((IDS[1], 5),)),
        (fourth.lease_id, ((IDS[0], 5),)),
    ]


def test_machines_under_notice_go_on_if_fewer_replace_them_and_leave_at_once_for_as_many() -> None:
    gang = Gang(machines={"min": 1, "max": 4})
    for lease in gang.rent(2):
        lease.state = LeaseState.NOTICED
    gang.rent()
    assert gang.left() == []
    gang.rent()
    assert [lease_id for lease_id, _ in gang.left()] == [0, 1]
    for rank in range(2):
        gang.tell(gang.leases[rank], Ended(IDS[rank], 1, Ending.LEFT, 30))
    gang.training.converge()
    assert sorted(lease_id for lease_id, _ in gang.trained()[2:]) == [2, 3]


def test_its_last_checkpoint_counts_once_all_have_stored_it() -> None:
    gang = Gang()
    first, second = gang.rent(2)
    for rank, lease in enumerate((first, second)):
        gang.tell(lease, Saved(IDS[rank], 1, 40, 4))
    gang.tell(first, Saved(IDS[0], 1, 100, 5), Ended(IDS[0], 1, Ending.FINISHED, 100, stored=5))
    # The other machine may be gone before it has stored its part.
    assert (gang.progress.steps_saved, gang.progress.checkpoints) == (40, 1)
    gang.tell(second, Saved(IDS[1], 1, 100, 5), Ended(IDS[1], 1, Ending.FINISHED, 100, stored=5))
    assert (gang.progress.steps_saved, gang.progress.checkpoints) == (100, 2)
    assert gang.trial.ended


def test_an_end_without_checkpoints_counts_once_all_have_finished() -> None:
    gang = Gang()
    first, second = gang.rent(2)
    gang.tell(first, Ended(IDS[0], 1, Ending.FINISHED, 100))
    gang.take(second)
    assert (gang.progress.steps_done, gang.progress.steps_lost) == (0, 100)
    gang.rent()
    for rank, (lease_id, _) in enumerate(gang.trained()[2:]):
        gang.tell(gang.leases[lease_id], Ended(IDS[rank], 2, Ending.FINISHED, 100))
    assert gang.trial.ended
    assert (gang.progress.steps_saved, gang.progress.steps_run) == (100, 200)


def test_while_storage_does_not_answer_nothing_begins() -> None:
    gang = Gang(whole=OSError("no answer"))
    gang.rent(2)
    with pytest.raises(OSError, match="no answer"):
        gang.training.converge()
    assert gang.trained() == []
    gang.whole = None
    gang.training.converge()
    assert len(gang.trained()) == 2


def test_every_part_of_its_newest_checkpoint_is_known_to_be_stored() -> None:
    gang = Gang()
    first, second = gang.rent(2)
    assert gang.trial.stored_parts == {}
    gang.tell(first, Saved(IDS[0], 1, 10, 4))
    gang.tell(second, Saved(IDS[1], 1, 10, 7))
    # The first has stored a newer one, of which the second has stored nothing.
    gang.tell(first, Saved(IDS[0], 1, 20, 5))
    assert gang.trial.stored_parts == {IDS[0]: 4, IDS[1]: 7}
    gang.take(first)
    gang.tell(second, Ended(IDS[1], 1, Ending.LEFT, 10))
    assert gang.trial.stored_parts == {IDS[0]: 4, IDS[1]: 7}
    gang.whole = Whole(10, {0: part(0, 10, 4), 1: part(1, 10, 7)})
    gang.rent(1)
    assert gang.trial.attempt == 2
    assert gang.trial.stored_parts == {IDS[0]: 4, IDS[1]: 7}


def test_one_whose_checkpoint_storage_lacks_keeps_no_other_from_its_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[tuple[int, Order]] = []

    def whole(trial: TrialState, **_options: bool) -> None:
        if trial.progress.job_id == 0:
            raise LostCheckpointError("storage has no checkpoint 4 of trial run-000, which was stored")

    training = AgentTraining(
        "run",
        lambda _: Assignment("", ("true",), 100, "loss"),
        lambda lease_id, order: orders.append((lease_id, order)),
        lambda _: None,
        lambda: 0.0,
        stored=stored(newest_whole=whole),
        address=lambda lease_id: f"10.0.0.{lease_id}",
    )
    job = Job(name="one", steps=100, steps_per_hour={"c3.xlarge": 1.0}, machines=2)
    rents = provider(tmp_path, None, None)
    rents._cloud.markets, jobs = (), AgentJobs(training, {}, training.speeds)  # type: ignore[misc]
    jobs.begin([JobProgress(number, job) for number in range(2)])
    rents._training = jobs
    leases = [running(number) for number in range(4)]
    for job_id in range(2):
        training.assign(job_id, leases[2 * job_id : 2 * job_id + 2])
    orders.clear()
    training.trials[1].members = ()
    written: list[int] = []
    monkeypatch.setattr(rents._mailboxes, "write", lambda _: written.append(len(orders)))
    with pytest.raises(LostCheckpointError):
        rents._look()
    assert [lease_id for lease_id, order in orders if isinstance(order, Train)] == [2, 3]
    assert written == [2]


@pytest.mark.parametrize("has_older", [True, False])
def test_what_storage_lacks_for_long_is_given_up(monkeypatch: pytest.MonkeyPatch, has_older: bool) -> None:
    """Before, the machines of a gang were paid without end. It goes on from an older one, or fails."""
    clock = Clock()
    gang = Gang(machines=2, whole=LostCheckpointError("storage has no checkpoint 4 of trial run-000"))
    monkeypatch.setattr(gang.training, "_runtime", clock)
    gang.trial.stored_number = 4
    gang.older = Whole(20, {rank: part(rank, 20, 2) for rank in range(2)}) if has_older else None
    gang.rent(2)
    for clock.now_s in (0.0, 150.0, 300.0):
        with pytest.raises(LostCheckpointError):
            gang.training.converge()
    assert gang.trained() == []
    clock.now_s = 301.0
    gang.training.converge()
    if has_older:
        assert [assignment.resume for _, assignment in gang.trained()] == [((IDS[0], 2),), ((IDS[1], 2),)]
    else:
        assert gang.trial.ended
        assert gang.trial.problem == "storage has no checkpoint 4 of trial run-000"
        assert gang.trained() == []


def test_a_gang_whose_checkpoints_are_all_damaged_does_not_begin_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before, it began at 0, and its next checkpoints replaced those that were there."""
    objects, clock = FolderStore(tmp_path / "objects"), Clock()
    for trial_id in IDS[:2]:
        writer = CheckpointStore(objects, trial_id).begin_writing("m", machines=2)
        objects.put_once(f"trials/{trial_id}/data/00000001-{writer.writer:06d}/000000", b"state")
        objects.put_once(f"trials/{trial_id}/manifests/00000001", b"{")

    class Stored(Gang):
        def newest(self, trial: TrialState, *, skips_damaged: bool) -> Whole | None:
            return ObjectCheckpoints(objects).newest_whole(trial, skips_damaged=skips_damaged)

    gang = Stored(machines=2)
    monkeypatch.setattr(gang.training, "_runtime", clock)
    gang.rent(2)
    for clock.now_s in (0.0, 300.0):
        with pytest.raises(LostCheckpointError):
            gang.training.converge()
    clock.now_s = 301.0
    gang.training.converge()
    assert gang.trial.ended
    assert "has no whole manifest" in gang.trial.problem
    assert gang.trained() == []


def test_a_part_that_storage_refuses_is_told_until_it_is_stored() -> None:
    """Without it, what the others store is not whole."""
    gang = Gang(machines=2)
    first, second = gang.rent(2)
    gang.tell(second, Unsaved(IDS[1], 1, 10, "AccessDenied (403)"))
    gang.tell(first, Saved(IDS[0], 1, 10, 1))
    assert gang.progress.steps_saved == 0
    (warning,) = [each for each in gang.trial.warnings if "not stored" in each]
    assert warning.startswith("its newest checkpoint is not stored by machine 1: AccessDenied (403)")
    gang.tell(second, Saved(IDS[1], 1, 10, 1))
    assert gang.progress.steps_saved == 10
    assert not any("not stored" in each for each in gang.trial.warnings)


def test_older_checkpoints_may_go_once_two_are_whole() -> None:
    gang = Gang()
    first, second = gang.rent(2)
    for number, step in ((1, 10), (2, 20), (3, 30)):
        gang.tell(first, Saved(IDS[0], 1, step, number))
        gang.tell(second, Saved(IDS[1], 1, step, number + 5))
    kept = [(lease_id, order.number) for lease_id, order in gang.orders if isinstance(order, Keep)]
    assert kept == [(0, 1), (1, 6), (0, 2), (1, 7)]


def test_the_whole_checkpoint_of_the_best_metric_stays() -> None:
    gang = Gang(direction="minimize")
    first, second = gang.rent(2)
    for number, (step, loss) in enumerate([(10, 0.5), (20, 0.3), (30, 0.4), (40, 0.35)], start=1):
        # Only the first process knows the metric.
        gang.tell(first, Saved(IDS[0], 1, step, number, metric=loss))
        gang.tell(second, Saved(IDS[1], 1, step, number + 5))
    assert (gang.trial.best_stored, gang.trial.best_stored_step) == (0.3, 20)
    kept = [(lease_id, order.number, order.best) for lease_id, order in gang.orders if isinstance(order, Keep)]
    # The first is whole before it is known that the second machine stores a part.
    assert kept == [(0, 0, 1), (0, 1, 2), (1, 6, 7), (0, 2, 2), (1, 7, 7), (0, 3, 2), (1, 8, 7)]


def test_what_a_later_assignment_has_of_the_best_checkpoint_is_read_from_storage() -> None:
    gang = Gang(direction="maximize")
    gang.best = Whole(20, {rank: replace(part(rank, 20, 4 + rank), metric=0.9) for rank in range(2)})
    first, second = gang.rent(2)
    assert [assignment.best for _, assignment in gang.trained()] == [4, 5]
    for number, step in ((8, 30), (9, 40)):
        gang.tell(first, Saved(IDS[0], 1, step, number, metric=0.8))
        gang.tell(second, Saved(IDS[1], 1, step, number))
    kept = [(lease_id, order.number, order.best) for lease_id, order in gang.orders if isinstance(order, Keep)]
    assert kept == [(0, 8, 4), (1, 8, 5)]


def test_what_is_under_way_survives_its_controller() -> None:
    gang = Gang()
    first, second = gang.rent(2)
    gang.tell(first, Saved(IDS[0], 1, 40, 4))
    gang.tell(first, Ended(IDS[0], 1, Ending.FAILED, 45, code=3, tail=("wrong",)))
    again = Gang(leases=gang.leases)
    again.training.restore([trial_values(gang.trial)], dict(enumerate(gang.leases)))
    again.progress.leases = gang.leases
    assert trial_values(again.trial) == trial_values(gang.trial)
    assert again.training.in_use(second)
    assert not again.training.in_use(first)
    again.tell(second, Ended(IDS[1], 1, Ending.LEFT, 40))
    assert again.trial.failures == 1


def test_each_machine_s_part_is_charged_on_its_way_to_the_bucket_and_the_whole_on_its_way_back() -> None:
    bucket = Bucket(cloud="aws", region="eu-west-1")
    gang = Gang(bucket=bucket)
    first, second = gang.rent(2)
    gang.tell(first, Saved(IDS[0], 1, 40, 1, 300))
    gang.tell(second, Saved(IDS[1], 1, 40, 1, 20))
    assert [(move.lease_id, move.size_bytes) for move in gang.progress.transfers] == [(0, 300), (1, 20)]
    # From here on it is known that both save: a checkpoint is whole once they have.
    gang.tell(first, Saved(IDS[0], 1, 45, 2, 301))
    gang.tell(second, Saved(IDS[1], 1, 45, 2, 19))
    assert (gang.progress.saved_at, gang.progress.checkpoint_bytes) == (bucket.place, 320)
    # Where none says how much, the job's size is charged once, when the checkpoint is whole.
    gang.tell(first, Saved(IDS[0], 1, 50, 3))
    assert len(gang.progress.transfers) == 4
    gang.tell(second, Saved(IDS[1], 1, 50, 3))
    assert [(move.lease_id, move.size_bytes) for move in gang.progress.transfers[4:]] == [(0, 1_000)]


def test_one_whose_journal_was_lost_goes_on_above_the_assignments_that_storage_knows(tmp_path: Path) -> None:
    objects, folder = FolderStore(tmp_path / "objects"), tmp_path / "work"
    folder.mkdir()

    def save(rank: int, attempt: int, step: int) -> None:
        (folder / "state").write_text(f"{rank} at {step}")
        writer = CheckpointStore(objects, IDS[rank]).begin_writing("m", attempt=attempt, machines=2)
        writer.save(folder, step, keep=0, oldest=0)

    class Stored(Gang):
        def make(self, given: Given) -> AgentTraining:
            return AgentTraining(
                "run",
                *given,
                stored=ObjectCheckpoints(objects),
                address=lambda lease_id: f"10.0.0.{lease_id}",
            )

    for rank in range(2):
        save(rank, 5, 40)
    # What its first machine alone had stored in a later one is whole with nothing of another.
    save(0, 6, 60)
    gang = Stored()
    first, second = gang.rent(2)
    assert {each.attempt for _, each in gang.trained()} == {7}
    assert gang.progress.steps_saved == 40
    for rank in range(2):
        save(rank, 7, 60)
    gang.take(first)
    gang.take(second)
    gang.rent(2)
    assert [each.attempt for _, each in gang.trained()[2:]] == [8, 8]
    assert gang.progress.steps_saved == 60
