"""Training in simulation: one job on machines that come, give notice and go.

A job runs in process groups: a gang is one group over all its machines, an independent job one group a machine.
A group restores, trains, and saves; whenever its machines should change it saves, then restores on the new ones.
What it has trained since its last save is lost if one of its machines goes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from ebbtide.jobs.job import Coupling
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.events import Event, Wake

# Steps are whole; times are floating. A step within this of complete is complete: this share of a step, or what is
# trained in so many seconds, since the clock tells no shorter times apart.
STEP_TOLERANCE = 1e-6
CLOCK_S = 1e-6


class _Phase(Enum):
    IDLE = auto()
    RESTORING = auto()
    TRAINING = auto()
    SAVING = auto()


@dataclass(slots=True, eq=False)
class _Group:
    """Processes that work as one.

    Attributes:
        members: The machines it is on.
        until_s: When restoring or saving will be done.
        unsaved: Steps since the last save, as of `since_s`.
        since_s: Time up to which `unsaved` is counted, seconds.
        steps_per_s: How fast they grow while training.
        save_due_s: When the next periodic save begins.
        leaves: Whether it leaves all its machines once it is saved, whatever comes of those it was to go to: the
            agents that were ordered to leave have ended by then.
    """

    members: list[Lease] = field(default_factory=list)
    phase: _Phase = _Phase.IDLE
    until_s: float = math.inf
    unsaved: float = 0.0
    since_s: float = 0.0
    steps_per_s: float = 0.0
    save_due_s: float = math.inf
    leaves: bool = False

    def is_on(self, leases: Sequence[Lease]) -> bool:
        """Return whether its machines are these, in any order."""
        members = self.members
        return members == leases or (len(members) == len(leases) and all(lease in members for lease in leases))

    def unsaved_at(self, now_s: float) -> float:
        if self.phase is _Phase.TRAINING:
            return self.unsaved + (now_s - self.since_s) * self.steps_per_s
        return self.unsaved


class SimulatedTraining:
    """Simulated training of one job.

    Args:
        progress: Kept up to date.
        rate: Steps a second on one machine of a lease.
        vcpus: Cores of a machine of a lease, by which checkpoints move.
        margin_s: Seconds before a machine's revocation by which a save is to be done.
    """

    def __init__(
        self, progress: JobProgress, rate: Callable[[Lease], float], vcpus: Callable[[Lease], int], margin_s: float
    ) -> None:
        self.progress = progress
        self.job = progress.job
        self.version = 0
        self.finished = False
        self._rate = rate
        self._vcpus = vcpus
        self._margin_s = margin_s
        self._assigned: list[Lease] = []
        self._leave_at_s: dict[int, float] = {}
        self._head: Lease | None = None
        # Of a cluster: whether a machine on demand was requested that has not booted yet.
        self.head_comes: Callable[[], bool] = lambda: False
        # Whether other jobs that are to leave a machine still fill it.
        self.has_no_room: Callable[[Lease], bool] = lambda _lease: False
        self._groups = [_Group()] if self.job.coupling is Coupling.GANG else []
        self._milestones: list[int] = []
        self._stopping = False
        self._events: list[Event] = []
        self._now_s = -math.inf
        self._tolerance = STEP_TOLERANCE
        self._phase_ends = self.job.phase_ends()
        self._phase_end = math.inf

    def assign(self, leases: Sequence[Lease], now_s: float) -> list[Event]:
        """Run on exactly these, as soon as they have booted."""
        self._assigned = list(leases)
        return self.advance(now_s)

    def concerns(self, lease: Lease) -> bool:
        """Return whether the job is on the machine or is to be."""
        return lease in self._assigned or self.is_on(lease)

    @property
    def leaving(self) -> list[Lease]:
        """The machines that it is still on, and is to leave."""
        on = (lease for group in self._groups for lease in group.members)
        return [lease for lease in on if lease not in self._assigned]

    def is_on(self, lease: Lease) -> bool:
        """Return whether a group is on the machine."""
        return any(lease in group.members for group in self._groups)

    def lease_noticed(self, lease: Lease, now_s: float) -> list[Event]:
        """Plan to be off the machine, saved, just before it goes; where that cannot be, stay to the end."""
        save_s = self.job.save_s(self._vcpus(lease), lease.market.place)
        save_by_s = lease.revoke_at_s - self._margin_s - save_s
        can_save = self.job.checkpoint is not None and lease.revoke_at_s - save_s >= now_s
        self._leave_at_s[lease.lease_id] = max(save_by_s, now_s) if can_save else lease.revoke_at_s
        return self.advance(now_s)

    def lease_lost(self, lease: Lease, now_s: float) -> list[Event]:
        """The machine is gone, and with it what its group had not saved."""
        self._settle(now_s)
        for group in self._groups:
            if lease in group.members:
                self._lose(group)
                # The machines that are left have to begin again, too.
                group.members = []
                self._enter(group, _Phase.IDLE, now_s, math.inf)
        self._assigned = [other for other in self._assigned if other is not lease]
        return self.advance(now_s)

    def save(self, now_s: float) -> list[Event]:
        """Save what is being trained now."""
        self._settle(now_s)
        for group in self._groups:
            if group.phase is _Phase.TRAINING and self._can_save(group):
                self._begin_save(group, now_s)
        return self.advance(now_s)

    def stop(self, now_s: float) -> list[Event]:
        """Save, and count the job as finished."""
        self._stopping = True
        self.progress.stopped = True
        return self.advance(now_s)

    def wake_at_step(self, step: int, now_s: float) -> list[Event]:
        """Tell when so many steps are done."""
        self._milestones = sorted({*self._milestones, step})
        return self.advance(now_s)

    def refresh(self, now_s: float) -> None:
        """Bring the steps of `progress` up to date."""
        self._settle(now_s)
        done = self._done()
        # Who is told of a step finds it done.
        whole = math.ceil(done - self._tolerance)
        done = float(whole) if 0.0 < whole - done <= self._tolerance else done
        self.progress.steps_done = min(done, float(self.job.steps))

    def next_time_s(self) -> float:
        """Time of the job's next own event, seconds since 1970; infinity if there is none."""
        if self.finished:
            return math.inf
        times = [math.inf]
        total_rate, unsaved, since_s = 0.0, 0.0, 0.0
        for group in self._groups:
            if group.phase is _Phase.TRAINING:
                total_rate += group.steps_per_s
                since_s = group.since_s
                times.append(group.save_due_s)
            else:
                times.append(group.until_s)
            unsaved += group.unsaved
            leaving = (self._leave_at_s.get(member.lease_id, math.inf) for member in group.members)
            times += [leave_s for leave_s in leaving if leave_s > self._now_s]
        if total_rate > 0:
            # Rates are settled together, so all training groups share one `since_s`.
            done = self.progress.steps_saved + unsaved
            goals = [float(self.job.steps), self._phase_end, *(float(step) for step in self._milestones[:1])]
            times += [since_s + (goal - done) / total_rate for goal in goals if goal - done > self._tolerance]
            if done >= self.job.steps - self._tolerance:
                # Parts of steps on several machines make no whole one: the next to be whole is waited for.
                times += [
                    since_s + (self._whole(group.unsaved) + 1 - group.unsaved) / group.steps_per_s
                    for group in self._groups
                    if group.phase is _Phase.TRAINING
                ]
        return min(times)

    def advance(self, now_s: float) -> list[Event]:
        """Do everything that is due by now; returns what to tell."""
        self.version += 1
        self._events = []
        self._settle(now_s)
        while not self.finished and self._step(now_s):
            pass
        self.refresh(now_s)
        events, self._events = self._events, []
        return events

    def _step(self, now_s: float) -> bool:
        """Do one due thing; whether there was one."""
        for group in self._groups:
            if group.until_s <= now_s:
                if group.phase is _Phase.SAVING:
                    self._end_save(group, now_s)
                    if group.leaves:
                        self._lose(group)
                        group.members = []
                        self._enter(group, _Phase.IDLE, now_s, math.inf)
                        return True
                else:
                    group.save_due_s = now_s + self._interval_s
                self._enter(group, _Phase.TRAINING, now_s, math.inf)
                return True
        if self._done() >= self._phase_end - self._tolerance:
            self._set_rates()
            return True
        for step in self._milestones:
            if self._done() >= step - self._tolerance:
                self._milestones.remove(step)
                self._tell(Wake.MILESTONE, now_s, f"step {step}")
                return True
        if self._stopping or self._whole_done() >= self.job.steps:
            return self._finish(now_s)
        for group in self._groups:
            if group.phase is _Phase.IDLE and group.members:
                # It had paused for an end that did not come: another group's steps were lost.
                self._enter(group, _Phase.TRAINING, now_s, math.inf)
                return True
            if group.phase is _Phase.TRAINING and group.save_due_s <= now_s:
                group.save_due_s = now_s + self._interval_s
                if self._can_save(group):
                    self._begin_save(group, now_s)
                return True
        return self._reconcile(now_s)

    @property
    def _interval_s(self) -> float:
        checkpoint = self.job.checkpoint
        return checkpoint.interval_s if checkpoint and checkpoint.interval_s else math.inf

    def _finish(self, now_s: float) -> bool:
        """All steps are done, or the job is to stop: save what is not saved, then tell."""
        for group in self._groups:
            if group.phase is _Phase.TRAINING:
                if self._can_save(group):
                    self._begin_save(group, now_s)
                else:
                    self._enter(group, _Phase.IDLE, now_s, math.inf)
                return True
        if any(group.phase is _Phase.SAVING for group in self._groups):
            return False
        if self.job.checkpoint is None and not self.progress.stopped:
            self.progress.steps_saved = float(self.job.steps)
        for group in self._groups:
            if self.job.checkpoint is not None or self.progress.stopped:
                self._lose(group)
            group.unsaved = 0.0
            group.members = []
            self._enter(group, _Phase.IDLE, now_s, math.inf)
        self.finished = True
        self.progress.finished_s = now_s
        self._tell(Wake.FINISHED, now_s, "stopped" if self.progress.stopped else "done")
        return False

    def _reconcile(self, now_s: float) -> bool:
        """Move groups towards the machines they should be on; whether one moved."""
        if self.job.coupling is Coupling.GANG:
            return self._move(self._groups[0], self._target(now_s), now_s)
        target = self._target(now_s)
        for group in self._groups:
            wanted = [lease for lease in group.members if lease in target]
            if not group.members and group.phase is _Phase.IDLE:
                self._groups.remove(group)
                return True
            if self._move(group, wanted, now_s):
                return True
        for lease in target:
            if not self.is_on(lease):
                self._groups.append(_Group())
                return self._move(self._groups[-1], [lease], now_s)
        return False

    def _target(self, now_s: float) -> list[Lease]:
        """The machines to be on: none, if they are fewer than the job needs."""
        usable = self._usable(now_s)
        if self.job.coupling is Coupling.GANG:
            return self.progress.gang(usable, self._groups[0].members)
        found = [lease for lease in usable if lease.state is LeaseState.RUNNING or self.is_on(lease)]
        return found if self.job.framework is None else self._cluster(found)

    def _cluster(self, ready: list[Lease]) -> list[Lease]:
        """The head of a cluster and its workers, those that work already first: none without a head.

        The head is the machine that has the program, else one on demand; any other only where none is coming.
        """
        if self._head not in ready:
            waits = self.head_comes() or any(lease.on_demand for lease in self._assigned)
            able = (
                lease for lease in ready if lease.state is LeaseState.RUNNING and (lease.on_demand or not waits)
            )
            self._head = next(able, None)
        if self._head is None:
            return []
        workers = [lease for lease in ready if lease is not self._head]
        steady = [lease for lease in workers if lease.state is LeaseState.RUNNING]
        steady.sort(key=lambda one: not self.is_on(one))
        # As many as there may be, while machines under notice work on to the last moment.
        noticed = [lease for lease in workers if lease.state is not LeaseState.RUNNING]
        return [self._head, *noticed, *steady[: self.job.most_machines]]

    def _usable(self, now_s: float) -> list[Lease]:
        """The machines that have booted and have room, without those that it is to be off by now."""
        return [
            lease
            for lease in self._assigned
            if lease.is_booted
            and (lease.state is LeaseState.RUNNING or self._leave_at_s.get(lease.lease_id, math.inf) > now_s)
            and not self.has_no_room(lease)
        ]

    def _move(self, group: _Group, target: list[Lease], now_s: float) -> bool:
        if group.is_on(target):
            return False
        if group.phase is _Phase.SAVING:
            group.leaves = True
            return False
        if group.phase is _Phase.TRAINING:
            if self._can_save(group):
                self._begin_save(group, now_s)
                group.leaves = True
                return True
            self._lose(group)
        group.members = target
        if target:
            place, saved_at = target[0].market.place, self.progress.saved_at
            restore_s = self.job.restore_s(self._slowest(target), saved_at, place)
            restore_s += self.progress.begin_on(target, now_s)
            self.progress.moving_s += restore_s
            self._enter(group, _Phase.RESTORING, now_s, now_s + restore_s)
        else:
            self._enter(group, _Phase.IDLE, now_s, math.inf)
        return True

    def _can_save(self, group: _Group) -> bool:
        return self.job.checkpoint is not None and group.unsaved >= 1 - self._tolerance

    def _begin_save(self, group: _Group, now_s: float) -> None:
        group.leaves = False
        save_s = self.job.save_s(self._slowest(group.members), group.members[0].market.place)
        self.progress.moving_s += save_s
        self._enter(group, _Phase.SAVING, now_s, now_s + save_s)

    def _slowest(self, leases: Sequence[Lease]) -> int:
        """The fewest cores of several machines: a gang waits for its slowest."""
        return min((self._vcpus(lease) for lease in leases), default=1)

    def _end_save(self, group: _Group, now_s: float) -> None:
        whole = self._whole(group.unsaved)
        # A step that is under way stays so; it is lost only if the process then ends.
        group.unsaved = max(group.unsaved - whole, 0.0)
        saved = min(self.progress.steps_saved + whole, float(self.job.steps))
        # Two machines may end a step at one moment when only one was left to do.
        self.progress.steps_lost += self.progress.steps_saved + whole - saved
        self.progress.steps_saved = saved
        self.progress.checkpoints += 1
        self.progress.saved_on(group.members[0], now_s)
        self._tell(Wake.SAVED, now_s, f"step {self.progress.steps_saved:.0f}")

    def _lose(self, group: _Group) -> None:
        if group.unsaved > self._tolerance:
            self.progress.steps_lost += group.unsaved
        group.unsaved = 0.0

    def _enter(self, group: _Group, phase: _Phase, now_s: float, until_s: float) -> None:
        self._settle(now_s)
        group.phase, group.until_s, group.since_s = phase, until_s, now_s
        self._set_rates()

    def _set_rates(self) -> None:
        """By who trains now, and in which phase of the job."""
        done = self._done() + self._tolerance
        self._phase_end = next((end for end in self._phase_ends if end > done), math.inf)
        training = [other for other in self._groups if other.phase is _Phase.TRAINING]
        for other in self._groups:
            other.steps_per_s = 0.0
        for other in training:
            base = sum(self._rate(lease) for lease in other.members)
            machines = len(other.members) if self.job.coupling is Coupling.GANG else len(training)
            other.steps_per_s = base * self.job.speedup_of(machines, done) / machines
        # What all do in the least time that the clock tells apart. It never shrinks: what was complete stays so.
        self._tolerance = max(self._tolerance, CLOCK_S * sum(other.steps_per_s for other in training))

    def _settle(self, now_s: float) -> None:
        """Count the steps of training groups up to now."""
        self._now_s = now_s
        for group in self._groups:
            unsaved = group.unsaved_at(now_s)
            run = unsaved - group.unsaved
            if run > 0.0:
                self.progress.steps_run += run
                self.progress.training_s += now_s - group.since_s
                on = self.progress.steps_on
                for lease in group.members:
                    on[lease.lease_id] = on.get(lease.lease_id, 0.0) + run / len(group.members)
            group.unsaved, group.since_s = unsaved, now_s

    def _whole(self, steps: float) -> int:
        return math.floor(steps + self._tolerance)

    def _whole_done(self) -> float:
        return self.progress.steps_saved + sum(self._whole(group.unsaved) for group in self._groups)

    def _done(self) -> float:
        return self.progress.steps_saved + sum(group.unsaved for group in self._groups)

    def _tell(self, wake: Wake, now_s: float, detail: str) -> None:
        self._events.append(Event(wake, now_s, job_id=self.progress.job_id, detail=detail))
