"""Trainings on a tape, with `SimulatedTraining`: on one machine, on several as one, or with a head and workers.

A program reports its progress in whole steps, as it does live: at each hundredth of its steps, at each validation,
whenever it starts or stops training, and just before its controller polls. Of several machines, rank 0 reports.
Checkpoints are stored as manifests without files, and the checkpoint to resume from is compared with them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

from tests.harness.parity.tape_agents import TapeSeat, TapeWork

from ebbtide.agent.protocol import Ending, Hand, Keep, Restored, Saved, SaveOrder, Stepped
from ebbtide.errors import InputError
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.events import Event, Wake
from ebbtide.replay.replay import SAVE_MARGIN_S
from ebbtide.replay.simulated_training import SimulatedTraining
from ebbtide.storage.checkpoints.manifest import Manifest
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import ObjectStore

# Number of reports of a training, evenly over its steps; and the divisor of its steps that gives a new attempt's
# first report, from which its speed is measured.
_REPORTS = 100
_FIRST_REPORT = 10**7


class _Counted(TapeWork):
    """A job whose steps `SimulatedTraining` counts, and whose progress one of its agents reports.

    Args:
        progress: The job, and how far it is by what its agents did and saved.
        catalogue: Instance types, for its speed.
        curve: Its metric as it trains; None: it reports none.
    """

    def __init__(self, progress: JobProgress, catalogue: Catalogue, curve: Curve | None = None) -> None:
        self._progress = progress
        self._metrics: dict[int, float] = {}
        if curve is not None:
            pairs = zip(curve.steps.tolist(), curve.metric.tolist(), strict=True)
            self._metrics = {int(step): metric for step, metric in pairs}
        job = progress.job

        def rate(lease: Lease) -> float:
            return job.steps_per_s(lease.market, catalogue)

        def vcpus(lease: Lease) -> int:
            return catalogue.instance_type(lease.market.cloud, lease.market.instance_type).vcpus

        self._training = SimulatedTraining(progress, rate, vcpus, SAVE_MARGIN_S)
        self._told = 0

    @property
    def next_time_s(self) -> float:
        return math.inf if self._teller is None else self._training.next_time_s()

    def advance(self, now_s: float) -> None:
        self._follow(self._training.advance(now_s), now_s)

    def tell_progress(self, now_s: float) -> None:
        self.advance(now_s)

    def obey(self, agent: TapeSeat, order: SaveOrder | Keep | Hand, now_s: float) -> None:
        match order:
            case SaveOrder():
                self._follow(self._training.save(now_s), now_s)
            case Keep(number=number):
                self._forget_before(agent.about[0], number)
            case Hand():
                raise InputError(f"{agent.about[0]} was handed tasks, and is no array")

    def _forget_before(self, trial_id: str, number: int) -> None:
        """Delete checkpoints before the one of this number."""
        raise InputError(f"{trial_id} was told of checkpoint {number}, and none is stored in parts")

    @property
    @abstractmethod
    def _teller(self) -> TapeSeat | None:
        """The agent that reports progress; None: no work is done now."""

    @abstractmethod
    def _saved(self) -> None:
        """Called when the steps done so far are stored."""

    @abstractmethod
    def _finished(self, now_s: float) -> None:
        """Handle the end of all steps."""

    @abstractmethod
    def _check_left(self, now_s: float) -> None:
        """Check which machines have left the training."""

    @property
    def _steps_saved(self) -> int:
        return int(self._progress.steps_saved)

    @cached_property
    def _reports_at(self) -> list[int]:
        """Steps at which its program reports, in order."""
        steps = self._progress.job.steps
        evenly = {max(steps * number // _REPORTS, 1) for number in range(1, _REPORTS + 1)}
        return sorted(evenly | set(self._metrics))

    def _tells_from_here(self, now_s: float) -> None:
        """Schedule a new attempt's early report, before those at the usual steps."""
        self._report_at(self._told + max(self._progress.job.steps // _FIRST_REPORT, 1), now_s)

    def _report_at(self, step: int, now_s: float) -> None:
        self._follow(self._training.wake_at_step(step, now_s), now_s)

    def _follow(self, events: Sequence[Event], now_s: float) -> None:
        """Report the consequences of events."""
        for event in events:
            match event.wake:
                case Wake.MILESTONE:
                    reached = int(event.detail.removeprefix("step "))
                    self._step(reached, now_s)
                    place = bisect_right(self._reports_at, reached)
                    if place < len(self._reports_at):
                        self._report_at(self._reports_at[place], now_s)
                case Wake.SAVED:
                    self._saved()
                case Wake.FINISHED:
                    self._finished(now_s)
                    return
        # Report steps when they are done, not after the pause of a save: speeds are measured from reports.
        self._step(math.floor(self._progress.steps_done), now_s)
        self._check_left(now_s)

    def _step(self, step: int, now_s: float) -> None:
        if self._teller is not None and step > self._told:
            self._told = step
            metric = self._metrics.get(step, math.nan)
            self._teller.report(Stepped(*self._teller.about, step, now_s, step, metric))


class TapeTraining(_Counted):
    """A job on one machine, or on several that begin, save, leave and end together.

    Once one of them is gone, or has to leave, all leave. They continue only with an order that names the members.

    Args:
        progress: The job, and how far it is by what its agents did and saved.
        catalogue: Instance types, for its speed.
        store: Storage that agents and controller share.
        curve: Its metric as it trains; None: it reports none.
    """

    def __init__(
        self, progress: JobProgress, catalogue: Catalogue, store: ObjectStore, curve: Curve | None = None
    ) -> None:
        super().__init__(progress, catalogue, curve)
        self._store = store
        # Agents that have the assignment now, by rank; and whether all are there, and train as one.
        self._members: dict[int, TapeSeat] = {}
        self._is_one = False
        self._number = 0

    def begin(self, agent: TapeSeat, now_s: float) -> None:
        assignment = agent.assignment
        assert assignment is not None
        self._check_resume(agent)
        self._members[assignment.rank] = agent
        step = self._steps_saved
        agent.report(Restored(*agent.about, step, self._number))
        if len(self._members) < assignment.machines:
            return
        self._told = step
        self._is_one = True
        leases = [self._members[rank].lease for rank in sorted(self._members)]
        self._follow(self._training.assign(leases, now_s), now_s)
        if self._is_one:
            self._tells_from_here(now_s)

    def leave(self, agent: TapeSeat, now_s: float) -> None:
        if self._is_one:
            self._follow(self._training.assign([], now_s), now_s)
        else:
            self._drop(agent).end(Ending.LEFT, self._steps_saved, now_s)

    def noticed(self, agent: TapeSeat, now_s: float) -> None:
        self._follow(self._training.lease_noticed(agent.lease, now_s), now_s)

    def gone(self, agent: TapeSeat, now_s: float) -> None:
        self._drop(agent)
        self._is_one = False
        self._training.lease_lost(agent.lease, now_s)
        # The remaining machines wait until they are told to leave.
        self._training.assign([], now_s)

    def _forget_before(self, trial_id: str, number: int) -> None:
        store = CheckpointStore(self._store, trial_id)
        for older in [each for each in store.numbers("manifests") if each < number]:
            self._store.delete(_manifest_key(store, older))

    @property
    def _teller(self) -> TapeSeat | None:
        return self._members[0] if self._is_one else None

    def _saved(self) -> None:
        self._number += 1
        for agent in self._members.values():
            about, step, number = agent.about, self._steps_saved, self._number
            machines = agent.assignment.machines
            if self._progress.job.most_machines > 1:
                # Also on one machine, since an elastic job may resume from this checkpoint on several.
                manifest = Manifest(about[0], number, 1, step, 0.0, (), attempt=about[1], machines=machines)
                store = CheckpointStore(self._store, about[0])
                self._store.put_once(_manifest_key(store, number), manifest.encode())
            agent.report(Saved(*about, step, number))

    def _finished(self, now_s: float) -> None:
        self._all_end(Ending.FINISHED, now_s)

    def _check_left(self, now_s: float) -> None:
        if self._is_one and not all(self._training.is_on(agent.lease) for agent in self._members.values()):
            # The simulated training may have continued on the others, which first need a new assignment.
            self._training.assign([], now_s)
            self._all_end(Ending.LEFT, now_s)

    def _all_end(self, how: Ending, now_s: float) -> None:
        members, self._members, self._is_one = self._members, {}, False
        for agent in members.values():
            agent.end(how, self._steps_saved, now_s)

    def _drop(self, agent: TapeSeat) -> TapeSeat:
        self._members = {rank: other for rank, other in self._members.items() if other is not agent}
        return agent

    def _check_resume(self, agent: TapeSeat) -> None:
        """Raise `InputError` if several machines are told to resume from another step than the last stored."""
        told = agent.assignment.resume
        if agent.assignment.machines == 1 or told is None:
            return
        found = {
            trial: {each.number: each.step for each in CheckpointStore(self._store, trial).manifests()}
            for trial, _ in told
        }
        steps = {found[trial].get(number) for trial, number in told} or {0}
        if steps != {self._steps_saved}:
            raise InputError(
                f"{agent.about[0]} is to resume from {told} at {steps}, not from step {self._steps_saved}"
            )


class TapeCluster(_Counted):
    """A job with a head, whose program reports, and workers that come and go independently.

    The work of a machine that leaves in time is kept; that of a machine lost without notice is done again. Every
    machine works until shortly before it is revoked.
    """

    def __init__(self, progress: JobProgress, catalogue: Catalogue) -> None:
        super().__init__(progress, catalogue)
        self._members: list[TapeSeat] = []
        self._leaving: list[TapeSeat] = []

    def begin(self, agent: TapeSeat, now_s: float) -> None:
        self._members.append(agent)
        if agent.assignment.rank == 0:
            self._told = self._steps_saved
            agent.report(Restored(*agent.about, self._told, 0))
        self._assign(now_s)
        if agent is self._teller:
            self._tells_from_here(now_s)

    def leave(self, agent: TapeSeat, now_s: float) -> None:
        self._leaving.append(agent)
        self._assign(now_s)

    def noticed(self, agent: TapeSeat, now_s: float) -> None:
        self._follow(self._training.lease_noticed(agent.lease, now_s), now_s)

    def gone(self, agent: TapeSeat, now_s: float) -> None:
        self._forget(agent)
        self._follow(self._training.lease_lost(agent.lease, now_s), now_s)

    @property
    def _teller(self) -> TapeSeat | None:
        return next((agent for agent in self._members if agent.assignment.rank == 0), None)

    def _assign(self, now_s: float) -> None:
        # Workers have no work without a head.
        staying = [agent.lease for agent in self._members if agent not in self._leaving and self._teller]
        self._follow(self._training.assign(staying, now_s), now_s)

    def _saved(self) -> None:
        """Do nothing: a worker that leaves hands over its work, not a checkpoint."""

    def _finished(self, now_s: float) -> None:
        head = self._teller
        if head is not None:
            self._forget(head)
            head.end(Ending.FINISHED, self._progress.job.steps, now_s)

    def _check_left(self, now_s: float) -> None:
        for agent in list(self._members):
            is_to_go = agent in self._leaving or agent.lease.state is LeaseState.NOTICED
            if is_to_go and not self._training.is_on(agent.lease):
                self._forget(agent)
                agent.end(Ending.LEFT, self._steps_saved, now_s)

    def _forget(self, agent: TapeSeat) -> None:
        self._members.remove(agent)
        self._leaving = [other for other in self._leaving if other is not agent]


def _manifest_key(store: CheckpointStore, number: int) -> str:
    return f"{store.folder}/manifests/{number:08d}"
