"""Arrays that agents run: which tasks each machine is handed, which are done, and which a lost machine gives back.

The machines of an array work independently: each comes and goes by itself, and is handed tasks while it stays. A
task whose result is stored is done; every other task of a machine that is gone is handed to another.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ebbtide.agent.config import Assignment
from ebbtide.agent.protocol import Ended, Hand, Leave, OfTrial, Order, Repeat, TaskDone, TaskFailed, Train
from ebbtide.agent.results import TaskResults
from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.controller.kinds.measured_speed import MeasuredSpeeds
from ebbtide.controller.kinds.state import (
    LOST,
    ArrayMachine,
    ArrayState,
    Stretch,
    TaskState,
    TrialRecord,
    restore_trial,
    silent_s,
    trial_id_of,
)
from ebbtide.controller.kinds.task_ranges import TaskRanges
from ebbtide.errors import InputError
from ebbtide.jobs.job import Coupling
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.events import Event, Wake

_LOGGER = logging.getLogger(__name__)

# A task that fails this often has failed.
MOST_FAILURES = 3
# After this many failed tasks, and none that was done, the program is at fault and not its tasks; likewise after
# this many machines that gave up at once.
_MOST_AT_FIRST = 5
# Most tasks that a machine is handed ahead, beside those that it runs now.
_MOST_AHEAD = 256
_TAIL_LINES = 12
# Results that storage is asked for at a time, where a listing does not show them.
_ASKED_AT_A_TIME = 16


@dataclass(frozen=True)
class TaskList:
    """Tasks of an array, and how many of them machines run at a time.

    Attributes:
        values: The value of each task.
        side_by_side: Gives the number of tasks that a machine of a market runs at a time.
    """

    values: Sequence[str]
    side_by_side: Callable[[Market], int]


@dataclass(frozen=True)
class ArrayPlan:
    """Tasks of an array, and the pace at which they are handed out.

    Attributes:
        values: The value of each task, which stands for `{task}` in the command.
        side_by_side: Gives the number of tasks that a lease's machine runs at a time.
        exchange_s: Real seconds from the report of a task to the arrival of the next, where none is handed ahead.
    """

    values: Sequence[str]
    side_by_side: Callable[[Lease], int]
    exchange_s: float


class AgentTasks:
    """The array of a run: compares which machines should have it with which do, and keeps them supplied.

    Args:
        run: Id of the run, from which the array is named.
        plan: Its tasks.
        assignment: Gives the assignment of an agent, without its attempt number.
        order: Gives an order to the agent of a lease, by lease id.
        notify: Called with each event that the policy should see.
        now: Gives the cloud's time in seconds since 1970.
        results: Gives the results in storage, by the id of the array.
        time_of: Gives the cloud's time of a moment by a machine's clock.
        log: Called with the array's id and a line for its log.
        speeds: Collects measured speeds; None: a new object of its own.
        runtime: Gives the time of the controller's own clock.
    """

    def __init__(
        self,
        run: str,
        plan: ArrayPlan,
        assignment: Callable[[JobProgress], Assignment],
        order: Callable[[int, Order], None],
        notify: Callable[[Event], None],
        now: Callable[[], float],
        *,
        results: Callable[[str], TaskResults],
        time_of: Callable[[float], float] = lambda told_s: told_s,
        log: Callable[[str, str], None] = lambda _trial, _line: None,
        speeds: MeasuredSpeeds | None = None,
        runtime: Runtime = RUNTIME,
    ) -> None:
        self._run, self._plan, self._assignment = run, plan, assignment
        self._order, self._notify, self._now = order, notify, now
        self._results_of, self._time_of, self._log, self._runtime = results, time_of, log, runtime
        self.trials: list[ArrayState] = []
        self.speeds = MeasuredSpeeds() if speeds is None else speeds
        # When something was last heard of a machine, by the controller's clock, and how often it was asked since.
        self._heard_s: dict[int, tuple[float, int]] = {}
        # By task that failed and waits: the leases on whose machines it did.
        self._failed_on: dict[int, set[int]] = {}
        # Leases on whose machines no task could be begun, and the tasks that were tried there, which come last.
        self._unfit, self._late = set[int](), set[int]()
        self._leases: dict[int, Lease] = {}

    def begin(self, jobs: Sequence[JobProgress]) -> None:
        """Begin with no task done.

        Raises:
            InputError: It is not a single job whose machines work independently, with a step for each task.
        """
        count = len(self._plan.values)
        if len(jobs) != 1 or jobs[0].job.coupling is not Coupling.INDEPENDENT or jobs[0].job.steps != count:
            raise InputError(
                f"{len(jobs)} jobs for an array of {count} tasks; it is one, with a step for each task"
            )
        tasks = TaskState(TaskRanges.below(count))
        self.trials.append(ArrayState(jobs[0], trial_id_of(self._run, jobs[0].job_id), tasks=tasks))

    def assign(self, job_id: int, leases: Sequence[Lease]) -> None:
        """Allow these machines, and no others, to have tasks from now on."""
        trial = self._trial_of(job_id)
        trial.assigned = tuple(leases)
        self._leases |= {lease.lease_id: lease for lease in leases}
        # If storage does not answer, the next poll tries again and reports it.
        with suppress(OSError):
            self._converge(trial)

    def converge(self) -> None:
        """Send the orders that are missing.

        Raises:
            OSError: All tasks are done, and storage does not answer to confirm all results.
        """
        for trial in self.trials:
            self._converge(trial)
            self._ask_again(trial)

    def in_use(self, lease: Lease) -> bool:
        """Return whether the lease's machine works on the array now."""
        return any(member.lease_id == lease.lease_id for trial in self.trials for member in trial.members)

    def save(self, job_id: int) -> None:
        """Nothing to do: results are stored as soon as there are any."""

    def stop(self, job_id: int) -> None:
        """Begin no more tasks; it counts as finished once no machine has any."""
        trial = self._trial_of(job_id)
        trial.stopping = trial.progress.stopped = True
        if trial.members:
            self._leave(trial, trial.members)
        else:
            self._finish(trial, "stopped")

    def wake_at_step(self, job_id: int, step: int) -> None:
        """Notify once when this many tasks are done."""
        trial = self._trial_of(job_id)
        if not trial.ended:
            trial.milestones = tuple(sorted({*trial.milestones, step}))
            self._reached(trial)

    def measured(self, job_id: int) -> tuple[Floats, Floats]:  # noqa: ARG002
        """Nothing: tasks have results, but no metric."""
        return np.empty(0), np.empty(0)

    def gone(self, lease: Lease) -> None:
        """The lease's machine has ended: what it had and did not store is handed to others."""
        for trial in self.trials:
            trial.assigned = tuple(other for other in trial.assigned if other is not lease)
            for member in trial.members:
                if member.lease_id == lease.lease_id:
                    self._left(trial, self._with_stored(trial, member), LOST)

    def is_trial(self, trial_id: str) -> bool:
        """Return whether this is the id of the array."""
        return any(trial.trial_id == trial_id for trial in self.trials)

    def member_of(self, lease: Lease, report: OfTrial) -> tuple[ArrayState, ArrayMachine] | None:
        """The machine that a report is about; None: it is about an assignment that is over."""
        for trial in self.trials:
            if trial.trial_id == report.trial and not trial.ended:
                for member in trial.members:
                    if (member.lease_id, member.attempt) == (lease.lease_id, report.attempt):
                        return trial, member
        return None

    def receive(self, lease: Lease, report: OfTrial) -> None:
        """Handle a report of an agent.

        Raises:
            OSError: The last task is done, and storage does not answer to confirm all results.
        """
        found = self.member_of(lease, report)
        if found is None:
            return
        trial, member = found
        # Tasks that are done are no answer to an order to leave, which may have been lost.
        if not member.leaving:
            self._hear(member)
        match report:
            case TaskDone(task=number, told_s=told_s, duration_s=duration_s) if number in member.tasks:
                self._measure(trial, lease, told_s, duration_s)
                trial.progress.saved_on(lease, self._now(), report.size_bytes)
                self._done(trial, member, number, duration_s)
                self._converge(trial)
            case TaskFailed(task=number) if number in member.tasks:
                self._failed(trial, member, report)
                self._converge(trial)
            case Ended():
                self._gave_up(trial, member)
                # Tell a restarted agent, which reads its orders again, that this assignment is over.
                self._order(member.lease_id, Leave(member.attempt, trial.trial_id, reported=True))
                self._left(trial, member, report.how.value)

    def _trial_of(self, job_id: int) -> ArrayState:
        return next(trial for trial in self.trials if trial.progress.job_id == job_id)

    def restore(self, kept: Sequence[TrialRecord], leases: Mapping[int, Lease]) -> None:
        """Continue from a snapshot.

        Args:
            kept: Values of the array.
            leases: The run's leases by lease id.
        """
        for trial, values in zip(self.trials, kept, strict=True):
            restore_trial(trial, values, leases)
        self._leases |= leases

    def _target(self, trial: ArrayState) -> list[Lease]:
        """The leases whose machines are to have tasks: those without a notice, those that have some first."""
        present = {member.lease_id for member in trial.members}
        steady = [lease for lease in trial.assigned if lease.is_booted and lease.state is LeaseState.RUNNING]
        steady.sort(key=lambda lease: lease.lease_id not in present)
        return steady[: trial.progress.job.most_machines]

    def _converge(self, trial: ArrayState) -> None:
        if trial.ended or trial.stopping:
            return
        if self._is_done(trial):
            return
        target = {lease.lease_id: lease for lease in self._target(trial)}
        noticed = {lease.lease_id for lease in trial.assigned if lease.state is LeaseState.NOTICED}
        # A machine with a notice does what it can in the time that is left.
        self._leave(trial, [each for each in trial.members if each.lease_id not in {*target, *noticed}])
        have = {member.lease_id for member in trial.members}
        for lease_id, lease in target.items():
            if lease_id not in have:
                self._begin(trial, lease)
        self._hand_out(trial, target)

    def _begin(self, trial: ArrayState, lease: Lease) -> None:
        """Give the array to a machine that has none of it."""
        trial.attempt += 1
        member = ArrayMachine(lease.lease_id, trial.attempt, self._now())
        trial.members = (*trial.members, member)
        assignment = replace(
            self._assignment(trial.progress),
            trial_id=trial.trial_id,
            attempt=trial.attempt,
            side_by_side=self._plan.side_by_side(lease),
        )
        self._hear(member)
        self._order(lease.lease_id, Train(assignment))
        if math.isnan(trial.began_s):
            trial.began_s, trial.began_epoch_s = self._now(), self._runtime.epoch_s()
        # Results are uploaded to a bucket, and none is downloaded.
        trial.progress.begin_on([lease], self._now(), downloads=trial.progress.job.bucket is None)

    def _hand_out(self, trial: ArrayState, target: Mapping[int, Lease]) -> None:
        """Keep each machine supplied: the tasks that it runs at a time, and enough to last until others arrive."""
        for member in trial.members:
            if member.leaving or member.lease_id not in target or not len(trial.tasks.waiting):
                continue
            at_a_time = self._plan.side_by_side(target[member.lease_id])
            ahead = min(math.ceil(at_a_time * self._plan.exchange_s / max(trial.tasks.mean_s, 1e-3)), _MOST_AHEAD)
            # Towards the end, no machine hoards tasks that others could begin.
            fair = math.ceil(len(trial.tasks.waiting) / (2 * len(trial.members)))
            missing = at_a_time + min(ahead, fair) - len(member.tasks)
            if missing <= max(ahead, 1) // 2 and len(member.tasks) >= at_a_time:
                continue  # one order per task would be too many messages
            numbers, waiting = self._taken(trial, member, target, missing)
            if numbers:
                trial.tasks = replace(trial.tasks, waiting=waiting)
                self._put(trial, replace(member, tasks=(*member.tasks, *numbers)))
                values = tuple(self._plan.values[number] for number in numbers)
                self._order(member.lease_id, Hand(member.attempt, numbers, values))

    def _taken(
        self, trial: ArrayState, member: ArrayMachine, target: Mapping[int, Lease], count: int
    ) -> tuple[tuple[int, ...], TaskRanges]:
        """Tasks for a machine, and what is left: what failed on it is done by another machine, if there is any."""
        if not self._failed_on and not self._late:
            return trial.tasks.waiting.take(count)
        able = {each.lease_id for each in trial.members if not each.leaving and each.lease_id in target}
        not_here = {
            number for number, leases in self._failed_on.items() if member.lease_id in leases and able - leases
        }
        found, waiting = trial.tasks.waiting.take(count + len(not_here) + len(self._late))
        able_here = sorted(set(found) - not_here, key=lambda number: (number in self._late, number))
        numbers = tuple(able_here[:count])
        return numbers, waiting.put(set(found).difference(numbers))

    def _leave(self, trial: ArrayState, members: Sequence[ArrayMachine]) -> None:
        for member in members:
            if not member.leaving:
                self._hear(member)
                self._put(trial, replace(member, leaving=True))
                self._order(member.lease_id, Leave(member.attempt, trial.trial_id))

    def _left(self, trial: ArrayState, member: ArrayMachine, ended: str) -> None:
        """Handle that an agent no longer has the array: its unfinished tasks wait again."""
        begun = min(len(member.tasks), self._plan.side_by_side(self._leases[member.lease_id]))
        progress = trial.progress
        if ended == LOST and begun:
            # Each of these tasks has to begin again.
            progress.steps_lost += begun
            progress.steps_run += begun
        trial.stretches = (*trial.stretches, self._stretch(member, begun if ended == LOST else 0))
        trial.tasks = replace(trial.tasks, waiting=trial.tasks.waiting.put(member.tasks))
        trial.members = tuple(each for each in trial.members if each.attempt != member.attempt)
        self._heard_s.pop(member.attempt, None)
        if trial.stopping and not trial.members:
            self._finish(trial, trial.problem or "stopped")
        else:
            # A policy may wait for the machine to be free.
            self._notify(Event(Wake.SAVED, self._now(), job_id=progress.job_id))

    def _gave_up(self, trial: ArrayState, member: ArrayMachine) -> None:
        """Count an agent that left unasked and had done nothing, since it may do so for ever."""
        lease = self._leases[member.lease_id]
        if member.leaving or member.done or trial.tasks.done or lease.state is not LeaseState.RUNNING:
            return
        trial.failures += 1
        if trial.failures >= _MOST_AT_FIRST:
            self._give_up(trial, f"{trial.failures:g} machines could not begin it; see its log")

    def _with_stored(self, trial: ArrayState, member: ArrayMachine) -> ArrayMachine:
        """The machine without the tasks whose results it stored but could no longer report."""
        results = self._results_of(trial.trial_id)
        # If storage does not answer, it is not asked again: machines that are handed these tasks find the results.
        with suppress(OSError):
            for number in member.tasks[: 2 * _MOST_AHEAD]:
                if results.has(number):
                    self._done(trial, member, number, 0.0)
                    member = next(each for each in trial.members if each.attempt == member.attempt)
        return member

    def _done(self, trial: ArrayState, member: ArrayMachine, number: int, duration_s: float) -> None:
        kept = tuple(task for task in member.tasks if task != number)
        self._put(trial, replace(member, tasks=kept, done=member.done + 1))
        self._failed_on.pop(number, None)
        measured = duration_s > 0
        trial.tasks = replace(
            trial.tasks,
            done=trial.tasks.done + 1,
            measured=trial.tasks.measured + measured,
            spent_s=trial.tasks.spent_s + duration_s,
        )
        progress = trial.progress
        progress.steps_done = progress.steps_saved = float(trial.tasks.done)
        progress.steps_run += 1
        progress.checkpoints += 1
        progress.steps_on[member.lease_id] = progress.steps_on.get(member.lease_id, 0.0) + 1
        trial.has_saved = True
        trial.failures = 0.0
        self._reached(trial)

    def _failed(self, trial: ArrayState, member: ArrayMachine, failed: TaskFailed) -> None:
        number = failed.task
        self._put(trial, replace(member, tasks=tuple(task for task in member.tasks if task != number)))
        count = trial.tasks.failures.get(str(number), 0) + 1
        failures = {**trial.tasks.failures, str(number): count}
        lines = tuple(failed.tail[-_TAIL_LINES:])
        last = " | ".join(line for line in lines[-3:] if line.strip())
        how = last if failed.code is None else f"exit code {failed.code}{': ' * bool(last)}{last}"
        _LOGGER.warning("task %d of %s failed: %s", number, trial.trial_id, how)
        # The task itself may fill the disk: its machine has done others, or another machine could not do it, too.
        elsewhere = self._failed_on.get(number, set()) - {member.lease_id}
        if failed.of_machine and not member.done and not (elsewhere and trial.tasks.done):
            self._late.add(number)
            trial.tasks = replace(trial.tasks, waiting=trial.tasks.waiting.put([number]))
            self._failed_on.setdefault(number, set()).add(member.lease_id)
            self._note_unfit(trial, member, how)
        elif failed.cannot_start:
            trial.tail = lines
            self._give_up(trial, f"cannot be started: {how}")
        elif count < MOST_FAILURES:
            trial.tasks = replace(trial.tasks, failures=failures, waiting=trial.tasks.waiting.put([number]))
            self._failed_on.setdefault(number, set()).add(member.lease_id)
        else:
            trial.tasks = replace(trial.tasks, failures=failures, failed=(*trial.tasks.failed, number))
            self._failed_on.pop(number, None)
            value = self._plan.values[number]
            if not trial.problem:
                trial.tail = lines
                trial.problem = f"task {number} ({value}) failed {count} times, last with {how}"
            self._log(trial.trial_id, f"ebbtide: task {number} ({value}) failed {count} times, last with {how}")
            if not trial.tasks.done and len(trial.tasks.failed) >= _MOST_AT_FIRST:
                self._give_up(trial, f"{trial.problem}; so did all {len(trial.tasks.failed)} that were tried")

    def _note_unfit(self, trial: ArrayState, member: ArrayMachine, how: str) -> None:
        """Count a machine that could do no task: after some with no task done between, the array fails."""
        if member.leaving or member.lease_id in self._unfit:
            return
        self._unfit.add(member.lease_id)
        trial.failures += 1
        if trial.failures >= _MOST_AT_FIRST:
            self._give_up(trial, f"{trial.failures:g} machines in a row could do no task, last with {how}")

    def _give_up(self, trial: ArrayState, problem: str) -> None:
        trial.problem = problem
        trial.stopping = trial.progress.stopped = True
        if trial.members:
            self._leave(trial, trial.members)
        else:
            self._finish(trial, problem)

    def _is_done(self, trial: ArrayState) -> bool:
        """Return whether no task is left, and finish the array if so; results missing in storage are made again.

        Raises:
            OSError: Storage does not answer.
        """
        if len(trial.tasks.waiting) or any(member.tasks for member in trial.members):
            return False
        results, failed = self._results_of(trial.trial_id), set(trial.tasks.failed)
        stored = results.numbers()
        # A listing may not show the newest results for minutes, and each can be asked for by name.
        unlisted = sorted(set(range(len(self._plan.values))) - stored - failed)
        with self._runtime.pool(_ASKED_AT_A_TIME) as pool:
            found = list(pool.map(results.has, unlisted))
        missing = [number for number, is_there in zip(unlisted, found, strict=True) if not is_there]
        if missing:
            _LOGGER.warning("storage lacks %d results that were stored; they are made again", len(missing))
            done = len(self._plan.values) - len(missing) - len(failed - stored)
            trial.tasks = replace(trial.tasks, waiting=TaskRanges.of(missing), done=done)
            trial.progress.steps_done = trial.progress.steps_saved = float(done)
            return False
        if failed:
            count = len(failed)
            trial.problem = f"{count} of {len(self._plan.values)} tasks failed; {trial.problem}"
            trial.progress.stopped = True
        self._finish(trial, trial.problem or "done")
        return True

    def _finish(self, trial: ArrayState, detail: str) -> None:
        if not trial.ended:
            trial.ended = True
            self._leave(trial, trial.members)
            trial.stretches = (*trial.stretches, *(self._stretch(member, 0) for member in trial.members))
            trial.members = ()
            trial.progress.finished_s = self._now()
            self._notify(Event(Wake.FINISHED, self._now(), job_id=trial.progress.job_id, detail=detail))

    def _stretch(self, member: ArrayMachine, lost: int) -> Stretch:
        """A machine's time with the array, which has ended."""
        done = float(member.done)
        duration_s = max(self._now() - member.began_s, 0.0)
        return Stretch(
            member.lease_id, duration_s, 0, 0.0, done + lost, done, member.done > 0, attempt=member.attempt
        )

    def _measure(self, trial: ArrayState, lease: Lease, told_s: float, duration_s: float) -> None:
        """Measure the speed by how long a task took, since many tasks that run side by side end at one time.

        Each task has its share of the machine. One that another machine had done before took no time.
        """
        if duration_s > 0.0:
            took_s = self._time_of(told_s) - self._time_of(told_s - duration_s)
            share_s = max(took_s, 0.0) / max(self._plan.side_by_side(lease), 1)
            news = self.speeds.add(trial.progress.job_id, lease.market.instance_type, 1, share_s)
            if news:
                self._log(trial.trial_id, f"ebbtide: {news}")

    def _hear(self, member: ArrayMachine) -> None:
        self._heard_s[member.attempt] = (self._runtime.monotonic_s(), 0)

    def _ask_again(self, trial: ArrayState) -> None:
        """Ask machines that have been silent for long for their reports again, and repeat orders to leave."""
        now_s = self._runtime.monotonic_s()
        for member in trial.members:
            since_s, asked = self._heard_s.setdefault(member.attempt, (now_s, 0))
            if now_s - since_s >= silent_s(asked):
                self._heard_s[member.attempt] = (now_s, asked + 1)
                if member.leaving:
                    self._order(member.lease_id, Leave(member.attempt, trial.trial_id))
                self._order(member.lease_id, Repeat())

    def _reached(self, trial: ArrayState) -> None:
        reached = [step for step in trial.milestones if trial.progress.steps_done >= step]
        trial.milestones = tuple(step for step in trial.milestones if step not in reached)
        for step in reached:
            self._notify(Event(Wake.MILESTONE, self._now(), job_id=trial.progress.job_id, detail=f"step {step}"))

    @staticmethod
    def _put(trial: ArrayState, member: ArrayMachine) -> None:
        trial.members = tuple(member if each.attempt == member.attempt else each for each in trial.members)
