"""Jobs that agents train: which machine trains which job, how far it is, and what was lost."""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ebbtide.agent.config import Assignment
from ebbtide.agent.patience import LACKS_S
from ebbtide.agent.protocol import (
    REPORTS,
    Ended,
    Ending,
    Keep,
    Leave,
    Named,
    OfTrial,
    Order,
    Repeat,
    Restored,
    Saved,
    SaveOrder,
    Stepped,
    Train,
    Unsaved,
    decoded,
    plain,
)
from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.controller.kinds.measured_speed import MeasuredSpeeds
from ebbtide.controller.kinds.state import (
    LOST,
    UNSAVED,
    WARNED_AFTER_S,
    Member,
    Stretch,
    TrialRecord,
    TrialState,
    note_metric,
    restore_trial,
    resumed,
    silent_s,
    trial_id_of,
    warnings_of,
)
from ebbtide.controller.kinds.stored_checkpoints import StoredCheckpoints
from ebbtide.controller.kinds.trial_failures import count_failure
from ebbtide.errors import InputError, LostCheckpointError
from ebbtide.jobs.job import Coupling
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.events import Event, Wake
from ebbtide.storage.checkpoints.store import is_better
from ebbtide.storage.checkpoints.whole import Whole

_LOGGER = logging.getLogger(__name__)

# Machines of a gang meet at a port of this range, which is below the ephemeral ports. Each assignment has eight
# ports of its own, since machines of the local cloud share their ports.
_FIRST_PORT, _PORTS, _PORTS_EACH = 20_000, 12_000, 8
_FINISHED, _FAILED = Ending.FINISHED.value, Ending.FAILED.value
# Number of stored checkpoints that are remembered for each machine.
_MOST_SAVED = 16
# First words of the warning of checkpoints that lack a file.
_LACKS = "its checkpoints lack"
# Checkpoints of a gang that may be waited for.
_NEWEST, _BEST = "newest", "best"


@dataclass
class _Silence:
    """Start of an agent's silence on a training, by the controller's clock, and how often it was asked since."""

    since_s: float
    asked: int = 0


class AgentTraining:
    """All jobs of a run: compares where each should train with where it does, and sends the missing orders.

    A job trains on one machine, or on several as a gang. The machines of a gang get their assignments together.
    When one of them is to leave, has left, has failed or is gone, all leave, and the next assignment resumes from
    a step of which all have stored a checkpoint.

    Args:
        run: Id of the run, from which trials are named.
        assignment: Gives the assignment of a job's agent, without its attempt number.
        order: Gives an order to the agent of a lease, by lease id.
        notify: Called with each event that the policy should see.
        now: Gives the cloud's time in seconds since 1970.
        stored: The checkpoints in storage.
        address: Gives the address of a lease's machine, by lease id; empty: it is not known yet.
        secret: Gives the common secret of an assignment's machines, covered for that of a lease, by lease id, id
            of the trial and number of the assignment, id on that machine and number there; empty: none.
        fingerprint: The run's fingerprint, so that machines of different runs meet at different ports.
        log: Called with a trial's id and a line for its log.
        metric: Gives the name of the metric that trials of a job are compared by, by job id; None: there is none.
        speeds: Collects measured speeds; None: a new object of its own.
        runtime: Gives the time of the controller's own clock.
    """

    def __init__(
        self,
        run: str,
        assignment: Callable[[JobProgress], Assignment],
        order: Callable[[int, Order], None],
        notify: Callable[[Event], None],
        now: Callable[[], float],
        *,
        stored: StoredCheckpoints,
        address: Callable[[int], str] = lambda _lease_id: "",
        secret: Callable[[int, str, int, str, int], str] = lambda *_: "",
        fingerprint: str = "",
        log: Callable[[str, str], None] = lambda _trial, _line: None,
        metric: Callable[[int], str | None] = lambda _job_id: None,
        speeds: MeasuredSpeeds | None = None,
        runtime: Runtime = RUNTIME,
    ) -> None:
        self._runtime = runtime
        # Completes the assignment of a cluster's head, for which other machines work.
        self.complete: Callable[[TrialState, Member, Assignment], Assignment] | None = None
        self._stored, self._address = stored, address
        # For gangs: the parts of the best checkpoint, by the id under which each is stored, and the metric of
        # steps whose checkpoint may still become whole, by job id and step.
        self._best_parts: dict[str, int] = {}
        self._metrics: dict[tuple[int, int], float] = {}
        self._run, self._fingerprint, self._assignment = run, fingerprint, assignment
        self._log, self._metric, self._secret = log, metric, secret
        self._order, self._notify, self._now = order, notify, now
        self.trials: list[TrialState] = []
        self._of_job: dict[int, TrialState] = {}
        # The trial and rank of each id under which machines report.
        self._by_id: dict[str, tuple[TrialState, int]] = {}
        self._silent: dict[tuple[int, int], _Silence] = {}
        # Trials that train on a lease's machine now, and those assigned to it, by lease id and job id.
        self._on: dict[int, dict[int, TrialState]] = {}
        self._assigned: dict[int, dict[int, TrialState]] = {}
        # Since when the newest or the best checkpoint of a gang cannot be read, by job id and which of the two.
        self._unread_since_s: dict[tuple[int, str], float] = {}
        self._warned: set[str] = set()
        self._leases: dict[int, Lease] = {}
        # Bytes of the parts that the machines of a gang have uploaded of its newest steps, by job id and step.
        self._part_bytes: dict[tuple[int, int], int] = {}
        self.speeds = MeasuredSpeeds() if speeds is None else speeds

    def begin(self, jobs: Sequence[JobProgress]) -> None:
        """Make a trial for each job.

        Raises:
            InputError: The machines of a job work independently.
        """
        for progress in jobs:
            if progress.job.coupling is not Coupling.GANG:
                raise InputError(f"the machines of job {progress.job.name} work alone; agents train as one")
            self.add(TrialState(progress, self.id_of(progress)))

    def id_of(self, progress: JobProgress) -> str:
        """The id under which the first machine of a job reports and saves."""
        return trial_id_of(self._run, progress.job_id)

    def add(self, trial: TrialState) -> None:
        """Train a job, of whatever kind."""
        job = trial.progress.job
        self.trials.append(trial)
        self._of_job[trial.progress.job_id] = trial
        ranks = job.most_machines if trial.is_gang else 1
        self._by_id |= {trial.id_of(rank): (trial, rank) for rank in range(ranks)}

    def assign(self, job_id: int, leases: Sequence[Lease]) -> None:
        """Allow a job to run on these leases, and no others, from now on."""
        self._assign(self._of_job[job_id], leases)
        # If storage does not answer, the next poll tries again and reports it.
        with suppress(OSError):
            self._converge(self._of_job[job_id])

    def converge(self) -> None:
        """Send the orders that are missing.

        Raises:
            LostCheckpointError: Storage lacks the checkpoint of a trial; the others have their orders.
            OSError: Storage does not answer.
        """
        lost: LostCheckpointError | None = None
        for trial in self.trials:
            try:
                self._converge(trial)
            except LostCheckpointError as error:
                lost = error
            self._ask_again(trial)
            if trial.present and self._runtime.epoch_s() - trial.began_epoch_s >= WARNED_AFTER_S:
                self._warn(trial)
        if lost is not None:
            raise lost

    def in_use(self, lease: Lease) -> bool:
        """Return whether a trial is trained or saved on the lease's machine."""
        return bool(self._on.get(lease.lease_id))

    def save(self, job_id: int) -> None:
        """Order the agent of a job to save it; programs on several machines agree on the step."""
        trial = self._of_job[job_id]
        for member in trial.present[:1]:
            self._order(member.lease_id, SaveOrder(trial.id_of(member.rank)))

    def stop(self, job_id: int) -> None:
        """Stop training a job; it counts as finished once it is saved."""
        trial = self._of_job[job_id]
        trial.stopping = trial.progress.stopped = True
        if trial.present:
            self._leave(trial)
        else:
            self._finish(trial, "stopped")

    def wake_at_step(self, job_id: int, step: int) -> None:
        """Notify once when a job has done this many steps; at once if it already has."""
        trial = self._of_job[job_id]
        if not trial.ended:
            trial.milestones = tuple(sorted({*trial.milestones, step}))
            self._reached(trial)

    def measured(self, job_id: int) -> tuple[Floats, Floats]:
        """Steps and metric values that a job reported: two arrays of the same length, in order of steps.

        Of values that are not finite, only the last is there, as NaN, and only if the training has diverged.
        """
        trial = self._of_job[job_id]
        found, diverged = sorted(trial.metrics.items()), trial.divergence
        if diverged.at > 0:
            # Steps that were lost may have had values later than the last finite one.
            found = [one for one in found if one[0] <= diverged.finite_at]
            found += [(diverged.at, math.nan)] if found else []
        return np.array([float(step) for step, _ in found]), np.array([metric for _, metric in found])

    def gone(self, lease: Lease) -> None:
        """The lease's machine has ended: training on it stops, and steps that were not saved are lost."""
        for trial in [*self._assigned.get(lease.lease_id, {}).values()]:
            self._assign(trial, [other for other in trial.assigned if other is not lease])
        for _, trial in sorted(self._on.get(lease.lease_id, {}).items()):
            if lease.state is LeaseState.REVOKED:
                self._warn(trial)
            for member in trial.present:
                if member.lease_id == lease.lease_id:
                    self._left(trial, member, LOST)

    def is_trial(self, trial_id: str) -> bool:
        """Return whether this is the id of a trial, or of a machine of one."""
        return trial_id in self._by_id

    def member_of(self, lease: Lease, report: OfTrial) -> tuple[TrialState, Member] | None:
        """Find the trial and machine that a report is about; None: its assignment is over, or no trial of ours.

        After the end of an assignment only its stored checkpoints count, which are found when it is restored.
        """
        trial, rank = self._by_id.get(report.trial, (None, 0))
        if trial is None or trial.ended or trial.attempt != report.attempt:
            return None
        found = (each for each in trial.present if each.rank == rank and each.lease_id == lease.lease_id)
        return next(((trial, member) for member in found), None)

    def receive(self, lease: Lease, report: OfTrial) -> None:
        """Handle a report of an agent about a trial.

        Raises:
            OSError: The report says that a training has finished, and storage does not answer to confirm it.
        """
        found = self.member_of(lease, report)
        if found is not None:
            trial, member = found
            # Reports of steps are no answer to an order to leave, which may have been lost.
            if not trial.leaving:
                self._heard(trial, member)
            self._receive_of(trial, member, lease, report)

    def restore(self, kept: Sequence[TrialRecord], leases: Mapping[int, Lease]) -> None:
        """Continue from a snapshot.

        Args:
            kept: Values of each trial, in the order of jobs.
            leases: The run's leases by lease id.
        """
        self._leases |= leases
        for trial, values in zip(self.trials, kept, strict=True):
            restore_trial(trial, values, leases)
            self._assign(trial, trial.assigned)
            self._note_present(trial)
            self._warned.update(trial.warnings)

    def _assign(self, trial: TrialState, leases: Sequence[Lease]) -> None:
        for lease in trial.assigned:
            self._assigned.get(lease.lease_id, {}).pop(trial.progress.job_id, None)
        trial.assigned = tuple(leases)
        for lease in leases:
            self._leases[lease.lease_id] = lease
            self._assigned.setdefault(lease.lease_id, {})[trial.progress.job_id] = trial

    def _note_present(self, trial: TrialState) -> None:
        """Note which leases' agents have the trial now."""
        for member in trial.members:
            on = self._on.setdefault(member.lease_id, {})
            if member.ended:
                on.pop(trial.progress.job_id, None)
            else:
                on[trial.progress.job_id] = trial

    def _target(self, trial: TrialState) -> list[Lease]:
        """The leases to train on; empty if the job needs more machines."""
        booted = [lease for lease in trial.assigned if lease.is_booted]
        return trial.progress.gang(booted, [self._leases[member.lease_id] for member in trial.present])

    def _converge(self, trial: TrialState) -> None:
        if trial.ended or trial.stopping:
            return
        target, present = self._target(trial), trial.present
        if not target:
            self._unread_since_s.pop((trial.progress.job_id, _NEWEST), None)
        if not present:
            if target:
                self._train(trial, target)
        elif {lease.lease_id for lease in target} != {member.lease_id for member in present}:
            self._leave(trial)

    def _train(self, trial: TrialState, leases: Sequence[Lease]) -> None:
        """Give an assignment to the agents of these machines, to train as one."""
        progress = trial.progress
        if trial.is_gang and not all(self._address(lease.lease_id) for lease in leases):
            return  # the cloud has not reported their addresses yet
        whole = self._whole(trial) if trial.is_gang else None
        if trial.ended:
            return
        if trial.is_gang and (direction := self._assignment(progress).direction):
            self._note_best(trial, direction)
        if trial.is_gang and not trial.attempt:
            # A lost journal had assignments to count on from: the newest assignment's checkpoint is the newest.
            trial.attempt = self._stored.newest_attempt(trial)
        seats = self._seats(trial, leases)
        trial.members = tuple(
            Member(rank, lease.lease_id, resume=self._resume(trial, whole, rank))
            for rank, lease in enumerate(seats)
        )
        self._note_present(trial)
        trial.leaving, trial.alone, trial.failure = False, False, None
        trial.attempt += 1
        trial.began_s, trial.began_epoch_s = self._now(), self._runtime.epoch_s()
        trial.began_step, trial.began_number, trial.has_saved = progress.steps_saved, 0, False
        if trial.is_gang:
            self._resumes_as_one(trial, whole, seats)
        for member in trial.members:
            self._heard(trial, member)
            self._order(member.lease_id, self._train_order(trial, member))
        # With a bucket, a single machine's download counts once its report says what it resumes from.
        progress.begin_on(seats, self._now(), downloads=trial.is_gang or progress.job.bucket is None)

    def _whole(self, trial: TrialState) -> Whole | None:
        """Return the newest whole checkpoint of a gang; an older one, once storage has lacked the newest for long.

        Raises:
            LostCheckpointError: Storage lacks the newest.
            OSError: Storage does not answer.
        """
        read = partial(self._stored.newest_whole, trial)
        try:
            whole = read(skips_damaged=False)
        except LostCheckpointError as error:
            self._wait_to_read(trial, _NEWEST, error)
            whole = read(skips_damaged=True)
            if whole is None:
                # All are gone or damaged: it would begin at 0.
                trial.problem = str(error)
                self.stop(trial.progress.job_id)
                return None
        self._unread_since_s.pop((trial.progress.job_id, _NEWEST), None)
        if whole is None and trial.stored_parts and not trial.aside:
            trial.problem = f"no checkpoint of trial {trial.trial_id} is whole any more; it would begin at 0"
            self.stop(trial.progress.job_id)
        return whole

    def _note_best(self, trial: TrialState, direction: str) -> None:
        """Note a gang's best checkpoint, whose parts stay in storage.

        Raises:
            LostCheckpointError: A checkpoint that may be the best cannot be read, and has not been so for long.
            OSError: Storage does not answer.
        """
        read = partial(self._stored.best_whole, trial, direction)
        try:
            best = read(skips_damaged=False)
        except LostCheckpointError as error:
            self._wait_to_read(trial, _BEST, error)
            best = read(skips_damaged=True)
        else:
            self._unread_since_s.pop((trial.progress.job_id, _BEST), None)
        self._resumes_best(trial, best)

    def _wait_to_read(self, trial: TrialState, which: str, error: LostCheckpointError) -> None:
        """Raise the error, until that checkpoint could not be read for long."""
        now_s = self._runtime.monotonic_s()
        if now_s - self._unread_since_s.setdefault((trial.progress.job_id, which), now_s) <= LACKS_S:
            raise error

    def _seats(self, trial: TrialState, leases: Sequence[Lease]) -> list[Lease]:
        """Machines by rank: each keeps the rank that it had in the last assignment, if that rank still exists."""
        last = {member.lease_id: member.rank for member in trial.members}
        seats: dict[int, Lease] = {}
        others = []
        for lease in leases:
            rank = last.get(lease.lease_id, len(leases))
            if rank < len(leases):
                seats[rank] = lease
            else:
                others.append(lease)
        free = (rank for rank in range(len(leases)) if rank not in seats)
        seats.update(zip(free, others, strict=False))
        return [seats[rank] for rank in range(len(leases))]

    @staticmethod
    def _resume(trial: TrialState, whole: Whole | None, rank: int) -> tuple[tuple[str, int], ...] | None:
        if not trial.is_gang:
            return None
        return () if whole is None else whole.parts_for(rank)

    def _resumes_best(self, trial: TrialState, best: Whole | None) -> None:
        """Note the parts of a gang's best checkpoint, which stay in storage."""
        if best is not None and best.metric is not None:
            self._best_parts |= best.numbers()
            trial.best_stored, trial.best_stored_step = best.metric, best.step

    def _resumes_as_one(self, trial: TrialState, whole: Whole | None, seats: Sequence[Lease]) -> None:
        """Note the checkpoint that a gang resumes from, which is known before its machines report it."""
        step, number = (0, 0) if whole is None else (whole.step, whole.number)
        trial.resumed = trial.attempt
        self._resumed(trial, step, number)
        trial.stored_number = max(trial.stored_number, number)
        if whole is not None:
            trial.savers = tuple(sorted({*trial.savers, *whole.parts}))
            for rank, part in whole.parts.items():
                if rank < len(trial.members):
                    trial.put(replace(trial.members[rank], saved=((step, part.number),)))
        types = {lease.market.instance_type for lease in seats}
        if len(types) == 1:
            speedup = trial.progress.job.speedup_of(len(seats), step)
            self.speeds.begin(trial.progress.job_id, trial.attempt, types.pop(), step, speedup)

    def _heard(self, trial: TrialState, member: Member) -> None:
        """Restart the clock of an agent's silence: it was heard from, or was just given an order."""
        self._silent[trial.progress.job_id, member.rank] = _Silence(self._runtime.monotonic_s())

    def _ask_again(self, trial: TrialState) -> None:
        """Repeat orders that had no answer for long, and ask for the answer again: either may have been lost."""
        now_s = self._runtime.monotonic_s()
        for member in trial.present:
            silence = self._silent.setdefault((trial.progress.job_id, member.rank), _Silence(now_s))
            if now_s - silence.since_s < silent_s(silence.asked):
                continue
            silence.since_s, silence.asked = now_s, silence.asked + 1
            # Repeating an order is harmless: an agent obeys it only once.
            if trial.leaving:
                self._order(member.lease_id, self._leave_order(trial, member))
            elif self._has_addresses(trial):
                self._order(member.lease_id, self._train_order(trial, member))
            self._order(member.lease_id, Repeat())

    def _has_addresses(self, trial: TrialState) -> bool:
        """Tell whether all addresses that an order to train has are known: a resumed run may not know them yet."""
        needs_them = trial.is_gang or self.complete is not None
        return not needs_them or all(self._address(each.lease_id) for each in trial.members)

    def _ordered(self, trial: TrialState, member: Member) -> Assignment:
        """The current assignment of a trial on a machine."""
        assignment = replace(
            self._assignment(trial.progress), trial_id=trial.id_of(member.rank), attempt=trial.attempt
        )
        if not trial.is_gang:
            assignment = replace(assignment, share=trial.progress.job.share)
            plain = replace(assignment, aside=tuple(trial.aside), expected=trial.stored_number)
            return plain if self.complete is None else self.complete(trial, member, plain)
        return replace(
            assignment,
            keep=0,
            addresses=tuple(self._address(each.lease_id) for each in trial.members),
            rank=member.rank,
            port=self.meeting_port(trial),
            resume=member.resume,
            best=self._best_parts.get(trial.id_of(member.rank), 0),
            secret=self._secret(
                member.lease_id, trial.trial_id, trial.attempt, trial.id_of(member.rank), trial.attempt
            ),
        )

    def meeting_port(self, trial: TrialState) -> int:
        """The port at which the machines of a trial's assignment meet."""
        own = f"{trial.trial_id}/{trial.attempt}{self._fingerprint}"
        return _FIRST_PORT + zlib.crc32(own.encode()) % (_PORTS // _PORTS_EACH) * _PORTS_EACH

    def _train_order(self, trial: TrialState, member: Member) -> Train:
        """The order to train on a machine, with the ids of the trainings that share it and stay."""
        on = self._on.get(member.lease_id, {})
        others = [other for _, other in sorted(on.items()) if other is not trial and not other.leaving]
        beside = [
            other.id_of(each.rank)
            for other in others
            for each in other.present
            if each.lease_id == member.lease_id
        ]
        return Train(self._ordered(trial, member), tuple(beside))

    @staticmethod
    def _leave_order(trial: TrialState, member: Member) -> Leave:
        return Leave(trial.attempt, trial.id_of(member.rank), trial.alone)

    def _leave(self, trial: TrialState, *, alone: bool = False) -> None:
        """Order all agents that have a training to leave it.

        Args:
            trial: The training.
            alone: Whether one of its machines is gone, so that the others may wait for it for ever.
        """
        if trial.present and (not trial.leaving or (alone and not trial.alone)):
            trial.leaving, trial.alone = True, trial.alone or alone
            for member in trial.present:
                self._heard(trial, member)
                self._order(member.lease_id, self._leave_order(trial, member))

    def _left(self, trial: TrialState, member: Member, ended: str) -> None:
        """Handle that an agent no longer has a training. Once none has, it may go on elsewhere.

        Args:
            trial: The training.
            member: The machine.
            ended: How the assignment ended there, the value of an `Ending`, or `LOST`.
        """
        trial.stretches = (*trial.stretches, self._stretch(trial, member))
        trial.put(replace(member, ended=ended))
        self._note_present(trial)
        endings = {each.ended for each in trial.members}
        if trial.present:
            if endings - {"", _FINISHED}:
                self._leave(trial, alone=bool(endings & {LOST, _FAILED}))
            return
        if endings == {_FINISHED}:
            trial.stretches = tuple(
                replace(each, is_final=True) if each.attempt == trial.attempt else each for each in trial.stretches
            )
            trial.began_s = math.nan
            self._warn(trial, is_over=True)
            self._finish(trial, "done")
            return
        trial.began_s = math.nan
        self._lost(trial)
        failure = None if LOST in endings or trial.failure is None else decoded(trial.failure, REPORTS)
        if isinstance(failure, Ended):
            self._failed(trial, failure)
        else:
            self._released(trial)

    def _released(self, trial: TrialState) -> None:
        """Finish a training that no agent has any more, or make it available again."""
        trial.leaving = trial.alone = False
        if trial.stopping:
            self._finish(trial, trial.problem or "stopped")
        else:
            # A policy may wait for the machine to be free.
            self._notify(Event(Wake.SAVED, self._now(), job_id=trial.progress.job_id))

    def _finish(self, trial: TrialState, detail: str) -> None:
        if not trial.ended:
            trial.ended = True
            trial.progress.finished_s = self._now()
            self._notify(Event(Wake.FINISHED, self._now(), job_id=trial.progress.job_id, detail=detail))

    def _lost(self, trial: TrialState) -> None:
        progress = trial.progress
        lost = max(progress.steps_done - progress.steps_saved, 0.0)
        # Steps may have been lost before, since the last resumption.
        trial.lost_above += lost
        progress.steps_lost += lost
        progress.steps_done = progress.steps_saved

    def _stretch(self, trial: TrialState, member: Member) -> Stretch:
        """A training's time on a machine, which has ended, with what it did there."""
        progress = trial.progress
        return Stretch(
            member.lease_id,
            max(self._now() - trial.began_s, 0.0),
            trial.began_number,
            trial.began_step,
            max(progress.steps_done, trial.began_step),
            progress.steps_saved,
            trial.has_saved,
            attempt=trial.attempt,
        )

    def _resumed(self, trial: TrialState, step: float, number: int) -> None:
        """Note the resume step: it may be above the reported saves, or below them if a checkpoint is damaged."""
        progress = trial.progress
        found = min(max(step - progress.steps_saved, 0.0), trial.lost_above)
        missing = max(progress.steps_saved - step, 0.0)
        unreported = max(step - progress.steps_saved, 0.0) - found
        if unreported > 0.0 and trial.stretches:
            before = trial.stretches[-1].lease_id
            progress.steps_on[before] = progress.steps_on.get(before, 0.0) + unreported
            progress.steps_run += unreported
        progress.steps_lost = max(progress.steps_lost - found + missing, 0.0)
        trial.lost_above = 0.0
        progress.steps_saved = progress.steps_done = step
        trial.began_step, trial.began_number = step, number
        trial.divergence = trial.divergence.resumed(int(step))
        trial.stretches = resumed(trial.stretches, step, number)

    def _warn(self, trial: TrialState, *, is_over: bool = False) -> None:
        """Give each new warning about a trial once."""
        for warning in warnings_of(trial, self._metric(trial.progress.job_id), is_over=is_over):
            if warning not in trial.warnings:
                trial.warnings = (*trial.warnings, warning)
                self._log(trial.trial_id, f"ebbtide: warning: {warning}")
                # Logged for the first trial only, since trials of a sweep run the same program.
                if warning not in self._warned:
                    self._warned.add(warning)
                    _LOGGER.warning("trial %s: %s", trial.trial_id, warning)

    def _note_lacks(self, trial: TrialState, path: str) -> None:
        """Warn of checkpoints that lack a file, or withdraw that warning."""
        others = [warning for warning in trial.warnings if not warning.startswith(_LACKS)]
        trial.warnings = (*others, *([f"{_LACKS} {path}, which Ebbtide's agent may not read"] if path else []))

    def _note_unsaved(self, trial: TrialState, member: Member, why: str) -> None:
        """Warn of a checkpoint that storage refuses, in place of the warning that nothing is saved."""
        still = warnings_of(trial, self._metric(trial.progress.job_id), is_over=True)
        told = _unsaved(trial, member)
        others = [
            each
            for each in trial.warnings
            if each in still or (each.startswith((_LACKS, UNSAVED)) and not each.startswith(told))
        ]
        warning = f"{told} {why}; the upload is tried again, and the machine is paid meanwhile"
        trial.warnings = (*others, warning)
        if trial.is_gang:
            # It has a part to store, so that no checkpoint is whole without it.
            trial.savers = tuple(sorted({*trial.savers, member.rank}))
        _LOGGER.warning("trial %s: %s", trial.trial_id, warning)

    def _withdraw_warnings(self, trial: TrialState) -> None:
        """Drop warnings that are no longer true, once a metric is reported or a checkpoint saved."""
        if trial.warnings:
            still = warnings_of(trial, self._metric(trial.progress.job_id))
            trial.warnings = tuple(
                warning for warning in trial.warnings if warning in still or warning.startswith((_LACKS, UNSAVED))
            )

    def _receive_of(self, trial: TrialState, member: Member, lease: Lease, report: OfTrial) -> None:
        progress = trial.progress
        origin = None if trial.is_gang else _origin(report)
        if origin is not None and trial.resumed != trial.attempt:
            # The first report of this assignment says where it resumed.
            step, number = origin
            trial.resumed = trial.attempt
            self._resumed(trial, step, number)
            if progress.job.bucket is not None and number:
                self._note_download(trial, lease, number)
            trial.stored_number = max(trial.stored_number, number)
            self.speeds.begin(progress.job_id, trial.attempt, lease.market.instance_type, step)
        if isinstance(report, Saved):
            self._note_lacks(trial, report.lacks)
            told = _unsaved(trial, member)
            trial.warnings = tuple(each for each in trial.warnings if not each.startswith(told))
        match report:
            case Unsaved(why=why):
                self._note_unsaved(trial, member, why)
            case Stepped() | Named() if member.rank > 0:
                pass  # all machines of a gang do the same steps
            case Stepped(step=step, at=at, metric=metric):
                self._stepped(trial, float(step))
                if math.isfinite(metric):
                    note_metric(trial, at, metric)
                    self._withdraw_warnings(trial)
                trial.divergence = trial.divergence.after(at, metric)
                self._reached(trial)
            case Named(names=names):
                trial.fields = tuple(sorted({*trial.fields, *names}))
            case Saved(step=step, number=number, metric=metric) if trial.is_gang:
                if math.isfinite(metric):
                    self._metrics.setdefault((progress.job_id, step), metric)
                self._note_upload(trial, lease, report)
                trial.put(replace(member, saved=(*member.saved, (step, number))[-_MOST_SAVED:]))
                if step == trial.best_stored_step:
                    # The first checkpoint was whole before it was known that this machine stores a part, too.
                    own = trial.id_of(member.rank)
                    self._best_parts[own] = self._best_parts.get(own) or number
                trial.savers = tuple(sorted({*trial.savers, member.rank}))
                self._note_whole(trial)
            case Saved(step=step, number=number, metric=metric):
                self._is_best(trial, step, metric)
                # Steps since the last report were done on this machine.
                self._stepped(trial, step)
                progress.saved_on(lease, self._now(), report.size_bytes, report.uploaded_bytes)
                self._saved(trial, step, number)
            case Ended(how=Ending.FINISHED, step=step) if self._is_stored(trial, member, report):
                reached = max(step, progress.steps_saved)
                self._stepped(trial, reached)
                # Until the last of a gang has finished, its part of the checkpoint may be missing.
                if all(each is member or each.ended == _FINISHED for each in trial.members):
                    progress.steps_done = progress.steps_saved = reached
                self._done_with(trial, member)
                self._left(trial, member, _FINISHED)
            case Ended(how=Ending.FAILED):
                # If others of the gang left or are to be revoked, a program that waits for them fails as well.
                is_alone = trial.is_gang and (trial.leaving or self._is_any_noticed(trial))
                if trial.failure is None and not is_alone:
                    trial.failure = plain(report)
                self._done_with(trial, member)
                self._left(trial, member, _FAILED)
            case Ended(how=how):
                if how is Ending.FINISHED:
                    _LOGGER.warning(
                        "trial %s is said to have finished, and storage does not have it; it is continued",
                        trial.trial_id,
                    )
                if lease.state is LeaseState.NOTICED:
                    self._warn(trial)
                self._done_with(trial, member)
                self._left(trial, member, Ending.LEFT.value)

    def _stepped(self, trial: TrialState, step: float) -> None:
        progress = trial.progress
        new = step - progress.steps_done
        if new <= 0:
            return
        progress.steps_done = step
        progress.steps_run += new
        for member in trial.members:
            before = progress.steps_on.get(member.lease_id, 0.0)
            progress.steps_on[member.lease_id] = before + new / len(trial.members)

    def _note_download(self, trial: TrialState, lease: Lease, number: int) -> None:
        """A machine has downloaded the checkpoint of a number from the job's bucket."""
        progress = trial.progress
        size_bytes, uploaded_bytes = progress.saved_bytes, 0
        if number != trial.stored_number:
            size_bytes, uploaded_bytes = self._stored.size_bytes(trial.trial_id, number)
            progress.saved_bytes = size_bytes
        if number > trial.stored_number and trial.stretches:
            # The previous machine stored it, maybe with earlier ones, but was gone before it could report that.
            before = self._leases[trial.stretches[-1].lease_id]
            for older in range(trial.stored_number + 1, number):
                progress.upload_from(before, self._now(), self._stored.size_bytes(trial.trial_id, older)[1])
            progress.saved_on(before, self._now(), size_bytes, uploaded_bytes if size_bytes else None)
        progress.download_to(lease, self._now())

    def _note_upload(self, trial: TrialState, lease: Lease, saved: Saved) -> None:
        """Note that one of several machines has uploaded its part of a checkpoint."""
        if trial.progress.job.bucket is not None:
            sent_bytes = saved.size_bytes if saved.uploaded_bytes is None else saved.uploaded_bytes
            trial.progress.upload_from(lease, self._now(), sent_bytes)
            key = (trial.progress.job_id, saved.step)
            self._part_bytes[key] = self._part_bytes.get(key, 0) + saved.size_bytes

    def _saved_as_one(self, trial: TrialState, step: int) -> None:
        """Note where a whole checkpoint is, and its upload if no machine has reported how much that was."""
        progress = trial.progress
        told_bytes = self._part_bytes.get((progress.job_id, step), 0)
        self._part_bytes = {
            key: size_bytes
            for key, size_bytes in self._part_bytes.items()
            if key[0] != progress.job_id or key[1] > step
        }
        if progress.job.bucket is not None and told_bytes:
            progress.saved_at, progress.saved_bytes = progress.job.bucket.place, told_bytes
        else:
            progress.saved_on(self._leases[trial.members[0].lease_id], self._now())

    def _saved(self, trial: TrialState, step: int, number: int) -> None:
        """Note that a checkpoint is stored, by all machines that store one."""
        progress = trial.progress
        trial.stored_number = max(trial.stored_number, number)
        progress.steps_saved = max(progress.steps_saved, step)
        progress.checkpoints += 1
        trial.has_saved = True
        self._withdraw_warnings(trial)
        if step > trial.best:
            trial.best, trial.failures = step, 0
        self._notify(Event(Wake.SAVED, self._now(), job_id=progress.job_id))

    def _note_whole(self, trial: TrialState) -> None:
        """Note a checkpoint that the newest report made whole; those before the last whole one may be deleted."""
        savers = [member for member in trial.members if member.rank in trial.savers]
        numbers = [dict(member.saved) for member in savers]
        whole = sorted(set.intersection(*map(set, numbers)))
        if not whole or whole[-1] <= trial.progress.steps_saved:
            return
        self._stepped(trial, whole[-1])
        self._saved_as_one(trial, whole[-1])
        self._saved(trial, whole[-1], numbers[0][whole[-1]])
        metric = self._metrics.get((trial.progress.job_id, whole[-1]), math.nan)
        self._metrics = {
            at: value for at, value in self._metrics.items() if at[0] != trial.progress.job_id or at[1] > whole[-1]
        }
        is_best = self._is_best(trial, whole[-1], metric)
        if is_best:
            self._best_parts |= {trial.id_of(member.rank): 0 for member in trial.members}
        for member, of_member in zip(savers, numbers, strict=True):
            own = trial.id_of(member.rank)
            if is_best:
                self._best_parts[own] = of_member[whole[-1]]
            if (is_best or len(whole) > 1) and not member.ended:
                oldest = of_member[whole[-2]] if len(whole) > 1 else 0
                self._order(member.lease_id, Keep(trial.attempt, oldest, own, self._best_parts.get(own, 0)))

    def _is_best(self, trial: TrialState, step: int, metric: float) -> bool:
        """Note the metric of a checkpoint that is stored; tell whether it is the best."""
        best = None if math.isnan(trial.best_stored) else trial.best_stored
        is_best = math.isfinite(metric) and is_better(metric, best, self._assignment(trial.progress).direction)
        if is_best:
            trial.best_stored, trial.best_stored_step = metric, step
        return is_best

    def _is_any_noticed(self, trial: TrialState) -> bool:
        of_trial = {member.lease_id for member in trial.members}
        return any(
            lease.lease_id in of_trial and lease.state is not LeaseState.RUNNING for lease in trial.assigned
        )

    def _is_stored(self, trial: TrialState, member: Member, ended: Ended) -> bool:
        """Return whether storage has the last checkpoint that a training reported as stored, if there is any."""
        return ended.stored == 0 or self._stored.has(trial.id_of(member.rank), ended.stored)

    def _reached(self, trial: TrialState) -> None:
        job_id = trial.progress.job_id
        reached = [step for step in trial.milestones if trial.progress.steps_done >= step]
        trial.milestones = tuple(step for step in trial.milestones if step not in reached)
        for step in reached:
            self._notify(Event(Wake.MILESTONE, self._now(), job_id=job_id, detail=f"step {step}"))

    def _done_with(self, trial: TrialState, member: Member) -> None:
        """A restarted agent reads its orders again: tell it that this assignment is over."""
        self._order(member.lease_id, Leave(trial.attempt, trial.id_of(member.rank), reported=True))

    def _failed(self, trial: TrialState, ended: Ended) -> None:
        """The program failed: it is tried again a few times, from an older checkpoint if necessary."""
        failed = count_failure(trial, ended, self._runtime.epoch_s())
        _LOGGER.warning("trial %s failed %s", trial.trial_id, failed.how)
        if ended.cannot_start:
            self._cannot_start(trial, failed.tail or f"exit code {ended.code}")
        elif failed.is_final:
            # The names that it reports may explain a missing metric.
            if trial.fields:
                self._warn(trial, is_over=True)
            trial.problem = f"failed {trial.failures:g} times, last {failed.how}"
            trial.stopping = trial.progress.stopped = True
        self._released(trial)

    def _cannot_start(self, trial: TrialState, problem: str) -> None:
        """Fail all trials that call an executable that does not exist, so that no machine is rented for them."""
        called = self._called(trial)
        for other in self.trials:
            if not other.ended and not other.problem and (other is trial or self._called(other) == called):
                other.problem, other.tail = f"cannot be started: {problem}", (problem,)
                other.stopping = other.progress.stopped = True
                if other is trial:
                    continue
                if other.present:
                    self._leave(other)
                else:
                    self._finish(other, other.problem)

    def _called(self, trial: TrialState) -> str:
        """The executable that a trial's command calls."""
        return next(iter(self._assignment(trial.progress).arguments), "")


def _origin(report: OfTrial) -> tuple[int, int] | None:
    """Resume step of an assignment, and number of the checkpoint that it resumed from; None: not reported."""
    match report:
        case Restored(step=step, number=number):
            return step, number
        case Stepped(began=int(began), restored=number) | Saved(began=int(began), restored=number):
            return began, number
        case Ended(began=int(began), number=number):
            return began, number
        case _:
            return None


def _unsaved(trial: TrialState, member: Member) -> str:
    """First words of the warning that storage refuses a machine's checkpoint."""
    return f"{UNSAVED} by machine {member.rank}:" if trial.is_gang else f"{UNSAVED}:"
