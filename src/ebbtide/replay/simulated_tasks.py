"""Arrays in simulation: tasks on machines that come, give notice and go, each done whole or not at all.

A step is a task. A machine has room for some of them side by side, begins the next when one has ended, and a
result is stored as soon as there is one. The last tasks take as long as the machine takes that has them, though
others stand idle.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.events import Event, Wake


@dataclass(frozen=True)
class _Running:
    """A task under way, by the time at which it was begun, and will be done."""

    number: int
    began_s: float
    ends_s: float


@dataclass(eq=False)
class TaskMachine:
    """The tasks of one machine.

    A machine that is to be left gives each task that runs as long again as it has run, and one that will be
    revoked as long as there is. Then it begins none but those that will be done by then.

    Attributes:
        lease: The machine.
        side_by_side: Number of tasks that it does at a time.
        task_s: Seconds that each of them takes.
        ready_s: When it has been set up to begin any, seconds since 1970.
        leaves_s: When it was asked to leave; infinity: it was not.
        gives_up_s: When it has to be left because of its notice; infinity: it has none.
        waiting: Tasks that it was handed and has not begun.
        running: Those that it does now.
        lost_s: Seconds that it has worked at tasks which were not done.
    """

    lease: Lease
    side_by_side: int
    task_s: float
    ready_s: float
    leaves_s: float = math.inf
    gives_up_s: float = math.inf
    waiting: deque[int] = field(default_factory=deque)
    running: list[_Running] = field(default_factory=list)
    lost_s: float = 0.0

    @property
    def tasks(self) -> list[int]:
        """Numbers of the tasks that it has, those under way first."""
        return [*(each.number for each in self.running), *self.waiting]

    @property
    def is_leaving(self) -> bool:
        """True if the machine was asked to leave."""
        return self.leaves_s < math.inf

    def hand(self, numbers: Iterable[int], now_s: float) -> None:
        """Have it do these as well."""
        self.waiting.extend(numbers)
        self._begin(now_s)

    def leave(self, now_s: float) -> None:
        """Ask it to leave."""
        self.leaves_s = min(self.leaves_s, now_s)

    def notice(self, margin_s: float, now_s: float) -> None:
        """Note that the machine will be revoked: it gives up its tasks `margin_s` seconds before."""
        self.gives_up_s = max(self.lease.revoke_at_s - margin_s, now_s)

    def has_left(self, now_s: float) -> bool:
        """Return whether the machine will do no more tasks: it gave up, or leaves and runs none."""
        return now_s >= self.gives_up_s or (self.is_leaving and not self.running)

    def next_time_s(self) -> float:
        """Time of the machine's next own event, seconds since 1970; infinity if there is none."""
        return min([self.gives_up_s, *(min(each.ends_s, self._killed_s(each)) for each in self.running)])

    def advance(self, now_s: float) -> list[int]:
        """Do what is due by now; returns the tasks that are done, in order."""
        done = [each.number for each in self.running if each.ends_s <= now_s]
        killed = [each for each in self.running if each.ends_s > now_s >= self._killed_s(each)]
        self.running = [each for each in self.running if each.ends_s > now_s and each not in killed]
        self.lost_s += sum(now_s - each.began_s for each in killed)
        self.waiting.extendleft(each.number for each in reversed(killed))
        self._begin(now_s)
        return done

    def lose(self, now_s: float) -> None:
        """Count the work of running tasks as lost, since the machine is gone."""
        self.lost_s += sum(now_s - each.began_s for each in self.running)

    def _killed_s(self, running: _Running) -> float:
        waited_s = self.leaves_s + (self.leaves_s - running.began_s) if self.is_leaving else math.inf
        return min(self.gives_up_s, waited_s)

    def _begin(self, now_s: float) -> None:
        begins_s = max(now_s, self.ready_s)
        if self.is_leaving or begins_s + self.task_s >= self.gives_up_s:
            return
        while self.waiting and len(self.running) < self.side_by_side:
            self.running.append(_Running(self.waiting.popleft(), begins_s, begins_s + self.task_s))


def task_machine(lease: Lease, progress: JobProgress, steps_per_s: float, vcpus: int, now_s: float) -> TaskMachine:
    """A machine that begins to do tasks of an array.

    Args:
        lease: The machine.
        progress: How far the array is.
        steps_per_s: How many tasks it does a second, with all its cores.
        vcpus: Number of its cores.
        now_s: The present moment, seconds since 1970.
    """
    side_by_side = max(vcpus // (progress.job.cpus_per_task or 1), 1)
    task_s = side_by_side / steps_per_s if steps_per_s > 0 else math.inf
    restore_s = progress.job.restore_s(vcpus, progress.saved_at, lease.market.place)
    return TaskMachine(lease, side_by_side, task_s, now_s + restore_s)


class SimulatedTasks:
    """Simulated task array, whose tasks are handed to machines in order, as many to each as it does at a time.

    Args:
        progress: Kept up to date.
        rate: Tasks a second on one machine of a lease, all that it does side by side together.
        vcpus: Cores of a machine of a lease.
        margin_s: Seconds before its revocation at which a machine gives up its tasks.
    """

    def __init__(
        self, progress: JobProgress, rate: Callable[[Lease], float], vcpus: Callable[[Lease], int], margin_s: float
    ) -> None:
        self.progress = progress
        self.version = 0
        self.finished = False
        self._rate, self._vcpus, self._margin_s = rate, vcpus, margin_s
        self._assigned: list[Lease] = []
        self._machines: list[TaskMachine] = []
        # Tasks that no machine has: those that came back, and from which number on none was handed out.
        self._back: list[int] = []
        self._next = 0
        self._done = 0
        self._milestones: list[int] = []
        self._stopping = False
        self._events: list[Event] = []
        # Whether other jobs that are to leave a machine still fill it.
        self.has_no_room: Callable[[Lease], bool] = lambda _lease: False

    @property
    def leaving(self) -> list[Lease]:
        """The machines that still have tasks, and are to leave."""
        return [machine.lease for machine in self._machines if machine.lease not in self._assigned]

    def assign(self, leases: Sequence[Lease], now_s: float) -> list[Event]:
        """Have tasks done by exactly these, as soon as they have booted."""
        self._assigned = list(leases)
        return self.advance(now_s)

    def concerns(self, lease: Lease) -> bool:
        """Return whether the machine has tasks or is to have some."""
        return lease in self._assigned or self.is_on(lease)

    def is_on(self, lease: Lease) -> bool:
        """Return whether the array is on the machine now."""
        return any(machine.lease is lease for machine in self._machines)

    def lease_noticed(self, lease: Lease, now_s: float) -> list[Event]:
        """The machine is handed no more, and gives up just before it goes."""
        for machine in self._machines:
            if machine.lease is lease:
                machine.notice(self._margin_s, now_s)
        return self.advance(now_s)

    def lease_lost(self, lease: Lease, now_s: float) -> list[Event]:
        """The machine is gone: what it had is for others."""
        self._assigned = [other for other in self._assigned if other is not lease]
        for machine in self._machines:
            if machine.lease is lease:
                self._settle(machine, now_s)
                machine.lose(now_s)
                self._give_back(machine)
        return self.advance(now_s)

    def save(self, now_s: float) -> list[Event]:
        """Nothing to do: results are stored as soon as there are any."""
        return self.advance(now_s)

    def stop(self, now_s: float) -> list[Event]:
        """Begin no more tasks; it counts as finished once no machine has any."""
        self._stopping = self.progress.stopped = True
        return self.advance(now_s)

    def wake_at_step(self, step: int, now_s: float) -> list[Event]:
        """Tell when so many tasks are done."""
        self._milestones = sorted({*self._milestones, step})
        return self.advance(now_s)

    def refresh(self, now_s: float) -> None:
        """Nothing to do: tasks that are under way are not done."""

    def next_time_s(self) -> float:
        """Time of the array's next own event, seconds since 1970; infinity if there is none."""
        return (
            math.inf if self.finished else min((each.next_time_s() for each in self._machines), default=math.inf)
        )

    def advance(self, now_s: float) -> list[Event]:
        """Do everything that is due by now; returns what to tell."""
        self.version += 1
        self._events = []
        if not self.finished:
            for machine in list(self._machines):
                self._settle(machine, now_s)
                if machine.has_left(now_s):
                    self._give_back(machine)
                    self._tell(Wake.SAVED, now_s, f"step {self._done}")
            self._converge(now_s)
        return self._events

    def _settle(self, machine: TaskMachine, now_s: float) -> None:
        """Count what a machine has done by now, and hand it more."""
        for _ in machine.advance(now_s):
            self._done += 1
            progress, lease_id = self.progress, machine.lease.lease_id
            progress.steps_done = progress.steps_saved = float(self._done)
            progress.steps_run += 1.0
            progress.steps_on[lease_id] = progress.steps_on.get(lease_id, 0.0) + 1.0
            progress.training_s += machine.task_s / machine.side_by_side
            progress.checkpoints += 1
            progress.saved_on(machine.lease, now_s)
            for step in [step for step in self._milestones if self._done >= step]:
                self._milestones.remove(step)
                self._tell(Wake.MILESTONE, now_s, f"step {step}")

    def _give_back(self, machine: TaskMachine) -> None:
        self._machines.remove(machine)
        self._back = sorted([*self._back, *machine.tasks])
        progress, lost = self.progress, machine.lost_s / machine.task_s
        progress.steps_lost += lost
        progress.steps_run += lost
        progress.training_s += machine.lost_s / machine.side_by_side

    def _converge(self, now_s: float) -> None:
        """Have those machines do tasks that should, and those leave that should not."""
        if self._done >= self.progress.job.steps or (self._stopping and not self._machines):
            self._finish(now_s)
            return
        target = [] if self._stopping else self._target()
        for machine in self._machines:
            is_noticed = machine.lease in self._assigned and machine.lease.state is LeaseState.NOTICED
            if self._stopping or (machine.lease not in target and not is_noticed):
                machine.leave(now_s)
        for lease in target:
            if not self.is_on(lease):
                rate, vcpus = self._rate(lease), self._vcpus(lease)
                machine = task_machine(lease, self.progress, rate, vcpus, now_s)
                machine.ready_s += self.progress.begin_on(
                    [lease], now_s, downloads=self.progress.job.bucket is None
                )
                self.progress.moving_s += machine.ready_s - now_s
                self._machines.append(machine)
        for machine in self._machines:
            if machine.lease in target and not machine.is_leaving:
                machine.hand(self._take(machine.side_by_side - len(machine.tasks)), now_s)
        left = [machine for machine in self._machines if machine.has_left(now_s)]
        for machine in left:
            self._give_back(machine)
        if left:
            self._converge(now_s)

    def _target(self) -> list[Lease]:
        """The machines that are to have tasks: those without a notice, those that have some first."""
        booted = [lease for lease in self._assigned if lease.is_booted and not self.has_no_room(lease)]
        steady = [lease for lease in booted if lease.state is LeaseState.RUNNING]
        steady.sort(key=lambda lease: not self.is_on(lease))
        return steady[: self.progress.job.most_machines]

    def _take(self, count: int) -> list[int]:
        """The first tasks that no machine has."""
        taken, self._back = self._back[:count], self._back[count:]
        new = range(self._next, min(self._next + count - len(taken), self.progress.job.steps))
        self._next = max(new.stop, self._next)
        return [*taken, *new]

    def _finish(self, now_s: float) -> None:
        self.finished = True
        self._machines = []
        self.progress.finished_s = now_s
        stopped = self.progress.stopped and self._done < self.progress.job.steps
        self._tell(Wake.FINISHED, now_s, "stopped" if stopped else "done")

    def _tell(self, wake: Wake, now_s: float, detail: str) -> None:
        self._events.append(Event(wake, now_s, job_id=self.progress.job_id, detail=detail))
