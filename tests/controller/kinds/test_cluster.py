"""The controller's side of a cluster: where the head is, and which workers know of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.runs.fake_controller import FakeController, Given
from tests.runs.sweeps import START_S, A

from ebbtide.agent.protocol import Ended, Ending
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

    def make(self, given: Given) -> AgentCluster:
        plan = ClusterPlan(
            "spark",
            lambda lease_id: "" if lease_id in self.unknown else f"10.0.0.{lease_id}",
            lambda lease_id, trial, attempt, own, number: f"{lease_id}/{trial}/{attempt}/{own}/{number}",
            lambda: self.head_comes,
        )
        return AgentCluster(plan, AgentTraining("run", *given), *given)

    def job(self) -> dict[str, Any]:
        return {"machines": 2, "coupling": Coupling.INDEPENDENT}

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
    for _ in range(10):
        cluster.end(one, Ending.FAILED, code=1, tail=("no Java",))
        cluster.training.converge()
    assert cluster.trial.problem == "its workers failed 10 times, last with no Java"
    assert cluster.trial.stopping


def test_workers_that_fail_now_and_then_after_hours_of_work_end_nothing() -> None:
    """As by want of memory, in a run of weeks whose machines nobody takes."""
    cluster = Cluster()
    cluster.rent(on_demand=True)
    (one,) = cluster.rent()
    for _ in range(30):
        cluster.now_s += 3600.0
        cluster.end(one, Ending.FAILED, code=137)
        cluster.training.converge()
    assert (cluster.trial.problem, cluster.trial.stopping) == ("", False)
    # They still count once none works.
    for _ in range(9):
        cluster.end(one, Ending.FAILED, code=1)
        cluster.training.converge()
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
