"""The controller's side of a cluster: where the head is, and which workers know of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.runs.cloud_as_told import Clock
from tests.runs.fake_controller import FakeController, Given, stored
from tests.runs.sweeps import START_S, A

from ebbtide.agent.protocol import Ended, Ending, Repeat
from ebbtide.controller.kinds.cluster import AgentCluster, ClusterPlan
from ebbtide.controller.kinds.state import trial_values
from ebbtide.controller.kinds.training import AgentTraining
from ebbtide.errors import InputError
from ebbtide.jobs.job import Coupling
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.events import Wake


@dataclass
class Cluster(FakeController):
    """A job of at most two workers."""

    unknown: set[int] = field(default_factory=set)
    head_comes: bool = False
    ended: dict[int, str] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)

    def make(self, given: Given) -> AgentCluster:
        def address(lease_id: int) -> str:
            return "" if lease_id in self.unknown else f"10.0.0.{lease_id}"

        plan = ClusterPlan(
            "spark",
            address,
            lambda lease_id, trial, attempt, own, number: f"{lease_id}/{trial}/{attempt}/{own}/{number}",
            lambda: self.head_comes,
            self.give_back,
        )
        head = AgentTraining(
            "run",
            *given,
            stored=stored(),
            address=address,
            runtime=self.clock,
        )  # type: ignore[arg-type]
        return AgentCluster(plan, head, *given, runtime=self.clock)  # type: ignore[arg-type]

    def job(self) -> dict[str, Any]:
        return {"machines": 2, "coupling": Coupling.INDEPENDENT}

    def give_back(self, lease: Lease, why: str) -> None:
        self.ended[lease.lease_id] = why
        self.take(lease, LeaseState.RELEASED)

    def fail(self, lease: Lease, times: int) -> None:
        """Have a worker fail as soon as it was begun, so many times."""
        for _ in range(times):
            self.end(lease, Ending.FAILED, code=1, tail=("no Java",))
            self.now_s += 100.0
            self.training.converge()

    def end(self, lease: Lease, how: Ending, **others: Any) -> None:
        _, last = self.trained(lease)[-1]
        self.tell(lease, Ended(last.trial_id, last.attempt, how, 0, **others))


def test_the_head_is_where_the_market_does_not_take_it_and_workers_know_its_address() -> None:
    cluster = Cluster()
    one, other = cluster.rent(2)
    (head,) = cluster.rent(on_demand=True)
    # Rented on demand later than a spot machine had begun: that one goes on.
    ((_, of_one),) = cluster.trained(one)
    assert (of_one.framework, of_one.rank, of_one.addresses) == ("spark", 0, ("10.0.0.0",))
    ((_, of_other),) = cluster.trained(other)
    assert (of_other.rank, of_other.addresses, of_other.port) == (1, ("10.0.0.0", "10.0.0.1"), of_one.port)
    assert of_other.resume == ()
    assert cluster.trained(head)[0][1].rank == 1
    assert of_one.secret == "0/run-000/1/run-000/1"
    assert of_other.secret == "1/run-000/1/run-000-w1/1"


def test_a_head_that_is_on_its_way_is_waited_for() -> None:
    cluster = Cluster()
    head = Lease(0, A, 0.2, on_demand=True, requested_s=START_S, state=LeaseState.STARTING)
    cluster.leases.append(head)
    cluster.rent(2)
    assert cluster.orders == []
    head.state, head.running_s, head.started_s = LeaseState.RUNNING, START_S, START_S
    cluster.training.converge()
    assert cluster.trained(head)[0][1].rank == 0
    assert [len(cluster.trained(lease)) for lease in cluster.leases] == [1, 1, 1]


def test_no_machine_begins_whose_address_is_not_known() -> None:
    cluster = Cluster(unknown={0})
    (head,) = cluster.rent(on_demand=True)
    assert cluster.orders == []
    cluster.unknown.clear()
    cluster.training.converge()
    assert len(cluster.trained(head)) == 1


def test_a_head_whose_address_is_not_known_any_more_goes_on() -> None:
    """A resumed controller knows no address while its cloud is silent; before, the head lost all that it had."""
    cluster = Cluster()
    (head,) = cluster.rent(on_demand=True)
    (one,) = cluster.rent()
    cluster.unknown = {head.lease_id, one.lease_id}
    (new,) = cluster.rent()
    assert [cluster.left(lease) for lease in (head, one)] == [[], []]
    # What cannot be told the head's address begins later, and no order is repeated without one.
    assert cluster.trained(new) == []
    cluster.clock.now_s += 1_000.0
    cluster.training.converge()
    assert [len(cluster.trained(lease)) for lease in (head, one)] == [1, 1]
    cluster.unknown.clear()
    cluster.training.converge()
    assert cluster.trained(new)[0][1].addresses[0] == "10.0.0.0"


def test_a_lost_worker_changes_nothing_for_the_others_and_another_takes_its_place() -> None:
    cluster = Cluster()
    (head,) = cluster.rent(on_demand=True)
    one, other = cluster.rent(2)
    cluster.take(one)
    assert not cluster.training.in_use(one)
    (new,) = cluster.rent()
    assert [len(cluster.trained(lease)) for lease in (head, other, new)] == [1, 1, 1]
    assert cluster.left(head) == cluster.left(other) == []


def test_workers_of_a_head_that_failed_are_told_of_the_next_one() -> None:
    cluster = Cluster()
    (head,) = cluster.rent(on_demand=True)
    (one,) = cluster.rent()
    cluster.end(head, Ending.FAILED, code=1)
    cluster.training.converge()
    assert len(cluster.trained(head)) == 2
    assert len(cluster.left(one)) == 1
    cluster.end(one, Ending.LEFT)
    cluster.training.converge()
    (_, first), (_, second) = cluster.trained(one)
    assert (first.port == second.port, first.secret == second.secret) == (False, False)
    assert second.port == cluster.trained(head)[1][1].port


def test_with_the_head_all_is_done_and_workers_leave() -> None:
    cluster = Cluster()
    (head,) = cluster.rent(on_demand=True)
    (one,) = cluster.rent()
    cluster.end(head, Ending.FINISHED)
    assert [event.detail for event in cluster.events if event.wake is Wake.FINISHED] == ["done"]
    assert len(cluster.left(one)) == 1
    cluster.end(one, Ending.LEFT)
    assert not cluster.training.in_use(one)


def test_workers_that_always_fail_end_it() -> None:
    cluster = Cluster()
    cluster.rent(on_demand=True)
    (one,) = cluster.rent()
    cluster.fail(one, 10)
    assert cluster.trial.problem == "its workers failed 10 times, last with no Java"
    assert cluster.trial.stopping
    assert cluster.ended == {}


def test_a_silent_worker_is_ordered_again_and_asked_to_report() -> None:
    """The order, or its answer, may have been unreadable: a machine that cannot leave is paid for ever."""
    cluster = Cluster()
    cluster.rent(on_demand=True)
    (one,) = cluster.rent()
    cluster.clock.now_s += 61.0
    cluster.training.converge()
    (_, first), (_, again) = cluster.trained(one)
    assert again == first
    assert len(cluster.ordered(Repeat, one)) == 1
    cluster.training.assign(0, cluster.leases[:1])
    cluster.clock.now_s += 61.0
    cluster.training.converge()
    assert len(cluster.left(one)) == 2
    assert len(cluster.ordered(Repeat, one)) == 2
    cluster.end(one, Ending.LEFT)
    cluster.clock.now_s += 7_200.0
    cluster.training.converge()
    assert len(cluster.left(one)) == 2
    # All the time the head was asked as well.
    assert cluster.ordered(Repeat, cluster.leases[0])


def test_one_machine_whose_workers_always_fail_is_given_back_and_ends_nothing() -> None:
    """As where one disk of many is bad: the head and the other workers are at work."""
    cluster = Cluster()
    cluster.rent(on_demand=True)
    good, bad = cluster.rent(2)
    cluster.fail(bad, 5)
    assert list(cluster.ended) == [bad.lease_id]
    assert "failed 5 times in a row" in cluster.ended[bad.lease_id]
    (other,) = cluster.rent()
    cluster.fail(other, 5)
    assert (cluster.trial.problem, cluster.trial.stopping, len(cluster.ended)) == ("", False, 2)
    assert cluster.training.in_use(good)


def test_a_machine_whose_worker_failed_is_tried_again_less_and_less_often() -> None:
    cluster = Cluster()
    cluster.rent(on_demand=True)
    (one,) = cluster.rent()
    begun = []
    for _ in range(6):
        cluster.end(one, Ending.FAILED, code=1)
        before = cluster.now_s
        while not cluster.training.in_use(one):
            cluster.now_s += 1.0
            cluster.training.converge()
        begun.append(cluster.now_s - before)
    assert begun == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0]


def test_workers_that_fail_now_and_then_after_hours_of_work_end_nothing() -> None:
    """As by want of memory, in a run of weeks whose machines nobody takes."""
    cluster = Cluster()
    cluster.rent(on_demand=True)
    (one,) = cluster.rent()
    for _ in range(30):
        cluster.now_s += 3600.0
        cluster.end(one, Ending.FAILED, code=137)
        cluster.now_s += 2.0
        cluster.training.converge()
    assert (cluster.trial.problem, cluster.trial.stopping) == ("", False)
    # They still count once none works.
    cluster.fail(one, 9)
    assert cluster.trial.problem.startswith("its workers failed 10 times")


def test_another_controller_goes_on_with_the_same_workers() -> None:
    cluster = Cluster()
    (head,) = cluster.rent(on_demand=True)
    (one,) = cluster.rent()
    kept, leases = json.loads(json.dumps(trial_values(cluster.trial))), list(cluster.leases)
    cluster.begin()
    cluster.progress.leases = leases
    cluster.training.restore([kept], {lease.lease_id: lease for lease in leases})
    cluster.training.converge()
    assert [len(cluster.trained(lease)) for lease in (head, one)] == [1, 1]
    cluster.end(one, Ending.LEFT)
    assert not cluster.training.in_use(one)


def test_other_jobs_are_refused() -> None:
    cluster = Cluster()
    with pytest.raises(InputError, match="cluster"):
        cluster.training.begin([])


def test_the_time_of_a_worker_is_written_down_and_that_of_a_lost_one_counts_as_lost() -> None:
    cluster = Cluster()
    cluster.rent(on_demand=True)
    stayed, taken = cluster.rent(2)
    cluster.end(stayed, Ending.LEFT)
    cluster.take(taken)
    assert [(each.lease_id, each.kept_share) for each in cluster.trial.stretches] == [
        (stayed.lease_id, 1.0),
        (taken.lease_id, 0.0),
    ]


def test_there_are_no_more_workers_than_it_asks_for_in_whatever_order_they_are_given() -> None:
    cluster = Cluster()
    cluster.rent(on_demand=True)
    one, other = cluster.rent(2)
    (new,) = cluster.rent()
    assert not cluster.training.in_use(new)
    head = cluster.leases[0]
    cluster.training.assign(0, [new, head, one, other])
    assert not cluster.training.in_use(new)
    cluster.take(one)
    cluster.assign()
    assert cluster.training.in_use(new)


def test_a_machine_that_the_market_may_take_is_no_head_while_one_on_demand_boots() -> None:
    """The engine gives a job machines that have booted: a worker may have done so first."""
    cluster = Cluster(head_comes=True)
    (worker,) = cluster.rent()
    assert not cluster.training.in_use(worker)
    cluster.head_comes = False
    (head,) = cluster.rent(on_demand=True)
    assert cluster.trained(head)[0][1].rank == 0
    assert cluster.trained(worker)[0][1].rank == 1


def test_a_machine_on_which_the_head_cannot_begin_is_left_and_another_has_the_head() -> None:
    cluster = Cluster()
    one, *others = cluster.rent(3)
    assert isinstance(cluster.training, AgentCluster)
    cluster.end(one, Ending.FAILED, of_machine=True)
    assert cluster.training.leave(one, "run-000")
    assert one not in cluster.training._given
    cluster.training.converge()
    head = next(assignment for lease in others for _, assignment in cluster.trained(lease) if not assignment.rank)
    assert head.addresses in (("10.0.0.1",), ("10.0.0.2",))
    # A worker's machine is judged by how often it fails while others work.
    assert not cluster.training.leave(others[1], f"run-000-w{others[1].lease_id}")
    assert others[1] in cluster.training._given
