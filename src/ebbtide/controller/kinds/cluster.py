"""Clusters that agents run: a head with the user's program, and workers that come and go while it runs.

The head is treated like any job on one machine: saved, resumed and retried. Each worker is given the address of
the head, and a new one whenever the head restarts. The framework recomputes what a lost worker had.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ebbtide.agent.config import Assignment
from ebbtide.agent.protocol import Ended, Ending, Leave, OfTrial, Order, Repeat, Train
from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.controller.kinds.state import ClusterState, Member, Stretch, TrialRecord, TrialState, Worker, silent_s
from ebbtide.controller.kinds.training import AgentTraining
from ebbtide.errors import InputError
from ebbtide.jobs.job import Coupling
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.events import Event, Wake

_LOGGER = logging.getLogger(__name__)

# After this many failures in a row per machine, and no worker that worked, the set-up is at fault.
_MOST_FAILED = 5
# A worker that failed only after this many seconds had worked.
_WORKED_S = 900.0
# A machine on which a worker has run for this many seconds, and none has failed since, is at work.
_SETTLED_S = 300.0
# Seconds until a worker that failed is begun again on its machine, doubled with each failure in a row.
_AGAIN_S, _MOST_AGAIN_S = 2.0, 60.0


@dataclass(frozen=True)
class ClusterPlan:
    """Framework of a cluster, and the addresses and secret by which its machines find each other.

    Attributes:
        framework: Name of the cluster framework.
        address: Gives the address of a lease's machine, by lease id; empty: it is not known yet.
        secret: Gives the machines' common secret, covered for the machine of a lease, by lease id, id of the job
            and number of the head's assignment, id on that machine and number of its own assignment.
        head_comes: Returns whether an on-demand machine was requested that has not booted yet.
        give_back: Ends the machine of a lease, on which no worker can work, for a reason in words.
    """

    framework: str
    address: Callable[[int], str]
    secret: Callable[[int, str, int, str, int], str]
    head_comes: Callable[[], bool] = lambda: False
    give_back: Callable[[Lease, str], None] = lambda _lease, _why: None


class AgentCluster:
    """The one job of a run whose program has a head and workers.

    Args:
        plan: How its machines find each other.
        head: Trains the head; it calls `complete` to complete an assignment.
        assignment: Gives the assignment of an agent, without its attempt number.
        order: Gives an order to the agent of a lease, by lease id.
        notify: Called with each event that the policy should see.
        now: Gives the cloud's time in seconds since 1970.
        runtime: Gives the time of the controller's own clock.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        head: AgentTraining,
        assignment: Callable[[JobProgress], Assignment],
        order: Callable[[int, Order], None],
        notify: Callable[[Event], None],
        now: Callable[[], float],
        *,
        runtime: Runtime = RUNTIME,
    ) -> None:
        self._plan, self._head, self._runtime = plan, head, runtime
        self._assignment, self._order, self._notify, self._now = assignment, order, notify, now
        head.complete = self.completed
        self._given: Sequence[Lease] = ()
        # Failures in a row of the workers of a machine, and the time of the last one, by lease id.
        self._failing: dict[int, tuple[int, float]] = {}
        # By number of a worker's assignment: when it was ordered something, and how often it was asked since.
        self._silent: dict[int, tuple[float, int]] = {}

    @property
    def trials(self) -> Sequence[TrialState]:
        """The job, whose member is the head, with its workers."""
        return self._head.trials

    def begin(self, jobs: Sequence[JobProgress]) -> None:
        """Begin with no machine.

        Raises:
            InputError: It is not a single job whose machines come and go independently.
        """
        if len(jobs) != 1 or jobs[0].job.coupling is not Coupling.INDEPENDENT:
            raise InputError(f"{len(jobs)} jobs for a cluster; it is one, whose machines come and go alone")
        self._trial = ClusterState(jobs[0], self._head.id_of(jobs[0]))
        self._head.add(self._trial)

    def assign(self, job_id: int, leases: Sequence[Lease]) -> None:  # noqa: ARG002
        """Allow these machines, and no others, to be in the cluster from now on."""
        self._given = tuple(leases)
        with suppress(OSError):
            self._converge()

    def leave(self, lease: Lease, trial_id: str) -> bool:
        """Leave a machine on which the head could not begin; returns whether the id is the head's."""
        if not self._head.is_trial(trial_id):
            return False
        self.assign(self._trial.progress.job_id, [other for other in self._given if other is not lease])
        return True

    def converge(self) -> None:
        """Send the orders that are missing."""
        self._converge()
        self._ask_again()
        self._head.converge()

    def in_use(self, lease: Lease) -> bool:
        """Return whether the head or a worker is on the lease's machine."""
        on = any(worker.lease_id == lease.lease_id for worker in self._trial.workers)
        return on or self._head.in_use(lease)

    def save(self, job_id: int) -> None:
        """Order the head to save, if it can."""
        self._head.save(job_id)

    def stop(self, job_id: int) -> None:
        """End the program; it counts as finished once it is saved."""
        self._head.stop(job_id)
        self._leave(self._trial.workers)

    def wake_at_step(self, job_id: int, step: int) -> None:
        """Notify once when the program has reported this many steps."""
        self._head.wake_at_step(job_id, step)

    def measured(self, job_id: int) -> tuple[Floats, Floats]:
        """Steps and metric values that the program reported."""
        return self._head.measured(job_id)

    def gone(self, lease: Lease) -> None:
        """Note that the lease's machine has ended."""
        self._given = tuple(other for other in self._given if other is not lease)
        of_lease = [worker for worker in self._trial.workers if worker.lease_id == lease.lease_id]
        self._drop(of_lease, lost=True)
        self._failing.pop(lease.lease_id, None)
        self._head.gone(lease)

    def is_trial(self, trial_id: str) -> bool:
        """Return whether this is the id of the program or of a worker."""
        return self._head.is_trial(trial_id) or trial_id.startswith(f"{self._trial.trial_id}-w")

    def receive(self, lease: Lease, report: OfTrial) -> None:
        """Handle a report of an agent.

        Raises:
            OSError: The program says that it has finished, and storage does not answer to confirm it.
        """
        worker = self._worker(lease, report)
        if worker is None:
            self._head.receive(lease, report)
        elif isinstance(report, Ended):
            self._order(worker.lease_id, Leave(worker.attempt, report.trial, reported=True))
            self._drop([worker])
            has_worked = self._now() - worker.began_s >= _WORKED_S
            if report.how is Ending.LEFT or (report.how is Ending.FAILED and has_worked):
                self._trial.worker_failures = 0
                self._failing.pop(lease.lease_id, None)
            if report.how is Ending.FAILED and not worker.leaving and lease.state is LeaseState.RUNNING:
                self._failed(lease, report)
        if self._trial.ended:
            self._leave(self._trial.workers)

    def restore(self, kept: Sequence[TrialRecord], leases: Mapping[int, Lease]) -> None:
        """Continue from a snapshot."""
        self._head.restore(kept, leases)
        job = self._trial.progress
        self._given = tuple(job.leases)

    def completed(self, trial: TrialState, member: Member, assignment: Assignment) -> Assignment:
        """The head's assignment, with what its workers need."""
        return self._meeting(trial, member.lease_id, assignment, (self._plan.address(member.lease_id),))

    def _converge(self) -> None:
        trial = self._trial
        if trial.ended or trial.stopping:
            return
        head = self._chosen_head()
        self._head.assign(trial.progress.job_id, [] if head is None else [head])
        present = trial.present
        led_by = present[0].lease_id if present and not trial.leaving else None
        wanted = [
            lease
            for lease in self._given
            if lease.is_booted and lease is not head and lease.state is LeaseState.RUNNING
        ]
        noticed = {lease.lease_id for lease in self._given if lease.state is LeaseState.NOTICED}
        ids = {lease.lease_id for lease in wanted} | noticed
        # A worker of an earlier head has an outdated address.
        self._leave([each for each in trial.workers if each.lease_id not in ids or each.rank != trial.attempt])
        if led_by is None:
            return
        have = {worker.lease_id for worker in trial.workers}
        # Machines that already work come first, wherever they are in the list.
        wanted.sort(key=lambda lease: lease.lease_id not in have)
        for lease in wanted[: trial.progress.job.most_machines]:
            is_due = lease.lease_id not in have and self._now() >= self._begins_again_s(lease)
            # After a resume, the cloud may not have listed them yet.
            if is_due and self._plan.address(lease.lease_id) and self._plan.address(led_by):
                self._begin(trial, led_by, lease)

    def _chosen_head(self) -> Lease | None:
        """The machine for the head: the one that has it, else an on-demand one if there is or will be any."""
        booted = [lease for lease in self._given if lease.is_booted]
        has_it = [member.lease_id for member in self._trial.present]
        steady = [lease for lease in booted if lease.lease_id in has_it]
        if not steady:
            running = [
                lease
                for lease in booted
                if lease.state is LeaseState.RUNNING and self._plan.address(lease.lease_id)
            ]
            waits = self._plan.head_comes() or any(lease.on_demand for lease in self._given)
            steady = [lease for lease in running if lease.on_demand or not waits]
        return steady[0] if steady else None

    def _begin(self, trial: ClusterState, head: int, lease: Lease) -> None:
        """Have a machine work for the head."""
        trial.worker_attempt += 1
        worker = Worker(trial.attempt, lease.lease_id, trial.worker_attempt, self._now())
        trial.workers = (*trial.workers, worker)
        self._train(worker, head)
        # A worker gets what it needs from the head.
        trial.progress.begin_on([lease], self._now(), downloads=trial.progress.job.bucket is None)

    def _train(self, worker: Worker, head: int) -> None:
        """Order a machine to work for the head on the machine of another lease."""
        trial, lease_id = self._trial, worker.lease_id
        addresses = (self._plan.address(head), self._plan.address(lease_id))
        plain = replace(
            self._assignment(trial.progress),
            trial_id=self._id_of(lease_id),
            attempt=worker.attempt,
            max_steps=0,
            keep=0,
            resume=(),
            rank=1,
        )
        self._order(lease_id, Train(self._meeting(trial, lease_id, plain, addresses)))
        self._silent[worker.attempt] = self._runtime.monotonic_s(), 0

    def _ask_again(self) -> None:
        """Repeat orders that had no answer for long, and ask for the answer again: either may have been lost."""
        trial, now_s = self._trial, self._runtime.monotonic_s()
        for worker in trial.workers:
            since_s, asked = self._silent.setdefault(worker.attempt, (now_s, 0))
            if now_s - since_s < silent_s(asked):
                continue
            heads = [member.lease_id for member in trial.present if worker.rank == trial.attempt]
            # Repeating an order is harmless: an agent obeys it only once.
            if worker.leaving:
                self._order(worker.lease_id, Leave(worker.attempt, self._id_of(worker.lease_id)))
            elif heads and all(self._plan.address(each) for each in (heads[0], worker.lease_id)):
                self._train(worker, heads[0])
            self._order(worker.lease_id, Repeat())
            self._silent[worker.attempt] = now_s, asked + 1

    def _meeting(
        self, trial: TrialState, lease_id: int, assignment: Assignment, addresses: tuple[str, ...]
    ) -> Assignment:
        secret = self._plan.secret(
            lease_id, trial.trial_id, trial.attempt, assignment.trial_id, assignment.attempt
        )
        return replace(
            assignment,
            framework=self._plan.framework,
            addresses=addresses,
            port=self._head.meeting_port(trial),
            secret=secret,
        )

    def _id_of(self, lease_id: int) -> str:
        return f"{self._trial.trial_id}-w{lease_id}"

    def _worker(self, lease: Lease, report: OfTrial) -> Worker | None:
        if report.trial != self._id_of(lease.lease_id):
            return None
        found = (each for each in self._trial.workers if each.lease_id == lease.lease_id)
        return next((each for each in found if each.attempt == report.attempt), None)

    def _leave(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            if not worker.leaving:
                self._put(replace(worker, leaving=True))
                self._silent[worker.attempt] = self._runtime.monotonic_s(), 0
                self._order(worker.lease_id, Leave(worker.attempt, self._id_of(worker.lease_id)))

    def _drop(self, workers: Sequence[Worker], *, lost: bool = False) -> None:
        trial = self._trial
        for worker in workers:
            trial.workers = tuple(each for each in trial.workers if each.attempt != worker.attempt)
            self._silent.pop(worker.attempt, None)
            # A worker that left has handed over what it had; all work of a lost one counts as lost.
            duration_s = max(self._now() - worker.began_s, 0.0)
            stretch = Stretch(worker.lease_id, duration_s, 0, 0.0, 0.0, 0.0, not lost, attempt=worker.rank)
            trial.stretches = (*trial.stretches, stretch)
            # A policy may wait for the machine to be free.
            self._notify(Event(Wake.SAVED, self._now(), job_id=self._trial.progress.job_id))

    def _begins_again_s(self, lease: Lease) -> float:
        """Time from which a worker may be begun on a machine, which waits after failures there."""
        failures, last_s = self._failing.get(lease.lease_id, (0, -math.inf))
        return last_s + min(_AGAIN_S * 2.0 ** (failures - 1), _MOST_AGAIN_S)

    def _failed(self, lease: Lease, ended: Ended) -> None:
        """Count a failure: of its machine, if others are at work, else of the set-up that all have in common."""
        trial, now_s = self._trial, self._now()
        last = " | ".join(line for line in ended.tail[-3:] if line.strip())
        _LOGGER.warning("a worker of %s failed: %s", trial.trial_id, last)
        trial.worker_failures += 1
        failures = self._failing.get(lease.lease_id, (0, now_s))[0] + 1
        self._failing[lease.lease_id] = failures, now_s
        are_others_at_work = any(
            not each.leaving and each.lease_id not in self._failing and now_s - each.began_s >= _SETTLED_S
            for each in trial.workers
        )
        if are_others_at_work:
            if failures >= _MOST_FAILED:
                trial.worker_failures = max(trial.worker_failures - failures, 0)
                why = f"its worker failed {failures} times in a row while others worked, last with {last}"
                _LOGGER.warning("machine of lease %d is given back: %s", lease.lease_id, why)
                self._plan.give_back(lease, why)
        elif (
            trial.worker_failures >= _MOST_FAILED * max(trial.progress.job.most_machines, 1) and not trial.problem
        ):
            trial.problem = f"its workers failed {trial.worker_failures} times, last with {last}"
            self.stop(trial.progress.job_id)

    def _put(self, worker: Worker) -> None:
        self._trial.workers = tuple(
            worker if each.attempt == worker.attempt else each for each in self._trial.workers
        )
