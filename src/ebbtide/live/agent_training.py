"""Jobs that agents train: which machine trains which job, how far it is, and what was lost."""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ebbtide.engine.snapshot import Items
from ebbtide.errors import InputError
from ebbtide.jobs.job import Coupling
from ebbtide.jobs.progress import JobProgress
from ebbtide.live.agent.config import Assignment
from ebbtide.live.agent.protocol import (
    Ended,
    Ending,
    Leave,
    Named,
    OfTrial,
    Order,
    Repeat,
    Restored,
    Save,
    Saved,
    Stepped,
    Train,
)
from ebbtide.live.agent_state import (
    WARNED_AFTER_S,
    Stretch,
    Trial,
    TrialRecord,
    restore_trial,
    resumed,
    trial_stamp,
    values_without_metrics,
    warnings_of,
)
from ebbtide.live.measured_speed import MeasuredSpeeds
from ebbtide.live.runtime import RUNTIME, Runtime
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.events import Event, Wake

_LOGGER = logging.getLogger(__name__)

# A training that fails so often without progress has failed.
MOST_FAILURES = 5
# After so many failures from one checkpoint the one before it is used.
_FAILURES_FROM_ONE = 2
_TAIL_LINES = 12
# Real seconds without a word of a training after which its agent is asked, each time twice as many, up to a limit.
_SILENT_S, _MOST_SILENT_S = 60.0, 1800.0
# The exit code for a wrong command line, by argparse's convention, and real seconds within which it is returned.
_WRONG_USAGE, _AT_ONCE_S = 2, 30.0


class AgentTraining:
    """All jobs of a run: compares where each should be trained with where it is, and gives the missing orders.

    Args:
        run: Id of the run, from which trials are named.
        assignment: Gives the assignment of a job's agent, all but its attempt.
        order: Gives an order to the agent of a lease, by lease id.
        notify: Called with each event that the policy should see.
        now: Gives the cloud's time in seconds since 1970.
        has_checkpoint: Whether storage has a trial's checkpoint of a number; by default all are believed.
        log: Called with a trial's id and a line for its log.
        metric: Name of the metric that trials are compared by; None: there is none.
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
        has_checkpoint: Callable[[str, int], bool] = lambda _trial, _number: True,
        log: Callable[[str, str], None] = lambda _trial, _line: None,
        metric: str | None = None,
        runtime: Runtime = RUNTIME,
    ) -> None:
        self._runtime = runtime
        self._has_checkpoint = has_checkpoint
        self._run, self._assignment = run, assignment
        self._log, self._metric = log, metric
        self._order, self._notify, self._now = order, notify, now
        self.trials: list[Trial] = []
        self._by_id: dict[str, Trial] = {}
        # The trials that are trained on a lease's machine, and those that may be, by lease id and job id.
        self._on: dict[int, dict[int, Trial]] = {}
        self._assigned: dict[int, dict[int, Trial]] = {}
        self._warned: set[str] = set()
        self.speeds = MeasuredSpeeds()

    def begin(self, jobs: Sequence[JobProgress]) -> None:
        """Make a trial for each job.

        Raises:
            InputError: A job needs several machines.
        """
        for progress in jobs:
            if progress.job.machines > 1 or progress.job.coupling is not Coupling.GANG:
                raise InputError(f"job {progress.job.name} wants several machines; agents train on one each")
            self.trials.append(Trial(progress, f"{self._run}-{progress.job_id:03d}"))
        self._by_id = {trial.trial_id: trial for trial in self.trials}

    def assign(self, job_id: int, leases: Sequence[Lease]) -> None:
        """Allow a job to run on these leases, and no others, from now on."""
        self._assign(self.trials[job_id], leases)
        self._converge(self.trials[job_id])

    def converge(self) -> None:
        """Give the orders that are missing."""
        for trial in self.trials:
            self._converge(trial)
            self._ask_again(trial)
            if trial.on is not None and self._runtime.epoch_s() - trial.began_epoch_s >= WARNED_AFTER_S:
                self._warn(trial)

    def in_use(self, lease: Lease) -> bool:
        """Whether a trial is trained or saved on the lease's machine."""
        return bool(self._on.get(lease.lease_id))

    def save(self, job_id: int) -> None:
        """Order the agent of a job to save it."""
        trial = self.trials[job_id]
        if trial.on is not None:
            self._order(trial.on, Save())

    def stop(self, job_id: int) -> None:
        """Stop training a job; it counts as finished once it is saved."""
        trial = self.trials[job_id]
        trial.stopping = trial.progress.stopped = True
        if trial.on is None:
            self._finish(trial, "stopped")
        else:
            self._leave(trial)

    def wake_at_step(self, job_id: int, step: int) -> None:
        """Tell once when a job has done so many steps: at once where it has."""
        trial = self.trials[job_id]
        if not trial.ended:
            trial.milestones = tuple(sorted({*trial.milestones, step}))
            self._reached(trial)

    def measured(self, job_id: int) -> tuple[Floats, Floats]:
        """Steps and metric values that a job reported: two arrays of the same length, in order of steps."""
        found = sorted(self.trials[job_id].metrics.items())
        return np.array([float(step) for step, _ in found]), np.array([metric for _, metric in found])

    def gone(self, lease: Lease) -> None:
        """The lease's machine has ended: training on it stops, and steps that were not saved are lost."""
        for trial in [*self._assigned.get(lease.lease_id, {}).values()]:
            self._assign(trial, [other for other in trial.assigned if other is not lease])
        for _, trial in sorted(self._on.get(lease.lease_id, {}).items()):
            if lease.state is LeaseState.REVOKED:
                self._warn(trial)
            self._stretch_ends(trial)
            self._lost(trial)
            self._released(trial)

    def is_trial(self, trial_id: str) -> bool:
        """Whether a trial has this id."""
        return trial_id in self._by_id

    def trial_of(self, report: OfTrial) -> Trial | None:
        """The trial that a report is about; None: it is about an assignment that is over, or of no trial of ours.

        After the end of an assignment only its stored checkpoints count, which are found when it is restored.
        """
        trial = self._by_id.get(report.trial)
        in_force = trial is not None and trial.attempt == report.attempt and trial.on is not None
        return trial if in_force and trial is not None and not trial.ended else None

    def receive(self, lease: Lease, report: OfTrial) -> None:
        """Handle a report of an agent about a trial.

        Raises:
            OSError: It says that a training has finished, and storage does not answer whether that is so.
        """
        trial = self.trial_of(report)
        if trial is not None and trial.on == lease.lease_id:
            trial.heard_s, trial.asked = self._runtime.monotonic_s(), 0
            self._receive_of(trial, lease, report)

    @property
    def items(self) -> Items:
        """The trials, each with the id of its job, without their metrics."""
        return Items("trials", lambda: enumerate(self.trials), trial_stamp, values_without_metrics)

    def restore(self, kept: Sequence[TrialRecord], leases: Mapping[int, Lease]) -> None:
        """Continue from what a snapshot has.

        Args:
            kept: Values of each trial, in the order of jobs.
            leases: The run's leases by lease id.
        """
        for trial, values in zip(self.trials, kept, strict=True):
            restore_trial(trial, values, leases)
            self._assign(trial, trial.assigned)
            self._put_on(trial, trial.on)
            self._warned.update(trial.warnings)

    def _assign(self, trial: Trial, leases: Sequence[Lease]) -> None:
        for lease in trial.assigned:
            self._assigned.get(lease.lease_id, {}).pop(trial.progress.job_id, None)
        trial.assigned = tuple(leases)
        for lease in leases:
            self._assigned.setdefault(lease.lease_id, {})[trial.progress.job_id] = trial

    def _put_on(self, trial: Trial, lease_id: int | None) -> None:
        """Its agent is that of this lease; None: it has none."""
        if trial.on is not None:
            self._on.get(trial.on, {}).pop(trial.progress.job_id, None)
        trial.on = lease_id
        if lease_id is not None:
            self._on.setdefault(lease_id, {})[trial.progress.job_id] = trial

    def _target(self, trial: Trial) -> Lease | None:
        """The lease to train on: one without a notice; else the present one, while there is time."""
        booted = [lease for lease in trial.assigned if lease.is_booted]
        steady = [lease for lease in booted if lease.state is LeaseState.RUNNING]
        if steady:
            return next((lease for lease in steady if lease.lease_id == trial.on), steady[0])
        return next((lease for lease in booted if lease.lease_id == trial.on), None)

    def _converge(self, trial: Trial) -> None:
        if trial.ended or trial.stopping:
            return
        target = self._target(trial)
        if trial.on is None:
            if target is not None:
                self._train(trial, target)
        elif target is None or target.lease_id != trial.on:
            self._leave(trial)

    def _train(self, trial: Trial, lease: Lease) -> None:
        self._put_on(trial, lease.lease_id)
        trial.leaving = False
        trial.attempt += 1
        trial.began_s, trial.began_epoch_s = self._now(), self._runtime.epoch_s()
        trial.began_step, trial.began_number, trial.has_saved = trial.progress.steps_saved, 0, False
        trial.heard_s, trial.asked = self._runtime.monotonic_s(), 0
        self._order(lease.lease_id, Train(self._ordered(trial)))
        trial.progress.begin_on([lease], self._now())

    def _ask_again(self, trial: Trial) -> None:
        """Where nothing has come of an order for long, it or the answer was lost: both are asked for again."""
        now_s = self._runtime.monotonic_s()
        if trial.on is None:
            return
        if math.isinf(trial.heard_s):
            trial.heard_s = now_s
        if now_s - trial.heard_s < min(_SILENT_S * 2.0**trial.asked, _MOST_SILENT_S):
            return
        trial.heard_s, trial.asked = now_s, trial.asked + 1
        # An agent that has obeyed an order does not obey it again.
        order = Leave(trial.attempt, trial.trial_id) if trial.leaving else Train(self._ordered(trial))
        self._order(trial.on, order)
        self._order(trial.on, Repeat())

    def _ordered(self, trial: Trial) -> Assignment:
        """The assignment of a trial, as it is in force."""
        return replace(
            self._assignment(trial.progress),
            trial_id=trial.trial_id,
            attempt=trial.attempt,
            aside=tuple(trial.aside),
            expected=trial.stored_number,
        )

    def _leave(self, trial: Trial) -> None:
        if trial.on is not None and not trial.leaving:
            trial.leaving = True
            trial.heard_s, trial.asked = self._runtime.monotonic_s(), 0
            self._order(trial.on, Leave(trial.attempt, trial.trial_id))

    def _released(self, trial: Trial) -> None:
        """Its agent has left it, or has ended."""
        self._put_on(trial, None)
        trial.leaving = False
        if trial.stopping:
            self._finish(trial, trial.problem or "stopped")
        else:
            # A policy may wait for the machine to be free.
            self._notify(Event(Wake.SAVED, self._now(), job_id=trial.progress.job_id))

    def _finish(self, trial: Trial, detail: str) -> None:
        if not trial.ended:
            trial.ended = True
            trial.progress.finished_s = self._now()
            self._notify(Event(Wake.FINISHED, self._now(), job_id=trial.progress.job_id, detail=detail))

    def _lost(self, trial: Trial) -> None:
        progress = trial.progress
        lost = max(progress.steps_done - progress.steps_saved, 0.0)
        # It may have been lost before, since it was last restored.
        trial.lost_above += lost
        progress.steps_lost += lost
        progress.steps_done = progress.steps_saved

    def _stretch_ends(self, trial: Trial, *, is_final: bool = False) -> None:
        """Its time on a machine has ended: write down what it did there."""
        if trial.on is None or math.isnan(trial.began_s):
            return
        progress = trial.progress
        stretch = Stretch(
            trial.on,
            max(self._now() - trial.began_s, 0.0),
            trial.began_number,
            trial.began_step,
            max(progress.steps_done, trial.began_step),
            progress.steps_saved,
            trial.has_saved,
            is_final,
        )
        trial.stretches = (*trial.stretches, stretch)
        trial.began_s = math.nan

    def _resumed(self, trial: Trial, step: float, number: int) -> None:
        """The newest checkpoint is known now: it may have more steps than reported, or fewer if one is damaged."""
        progress = trial.progress
        found = min(max(step - progress.steps_saved, 0.0), trial.lost_above)
        missing = max(progress.steps_saved - step, 0.0)
        progress.steps_lost = max(progress.steps_lost - found + missing, 0.0)
        trial.lost_above = 0.0
        progress.steps_saved = progress.steps_done = step
        trial.began_step, trial.began_number = step, number
        trial.stretches = resumed(trial.stretches, step, number)

    def _warn(self, trial: Trial, *, is_over: bool = False) -> None:
        """Give each new warning about a trial once."""
        for warning in warnings_of(trial, self._metric, is_over=is_over):
            if warning not in trial.warnings:
                trial.warnings = (*trial.warnings, warning)
                self._log(trial.trial_id, f"ebbtide: warning: {warning}")
                # Logged for the first trial only, since trials of a sweep run the same program.
                if warning not in self._warned:
                    self._warned.add(warning)
                    _LOGGER.warning("trial %s: %s", trial.trial_id, warning)

    def _withdraw_warnings(self, trial: Trial) -> None:
        """Drop warnings that are no longer true, once a metric is reported or a checkpoint saved."""
        if trial.warnings:
            still = warnings_of(trial, self._metric)
            trial.warnings = tuple(warning for warning in trial.warnings if warning in still)

    def _receive_of(self, trial: Trial, lease: Lease, report: OfTrial) -> None:
        progress = trial.progress
        origin = _origin(report)
        if origin is not None and trial.resumed != trial.attempt:
            # The first that is heard of this assignment says where it resumed.
            step, number = origin
            trial.resumed = trial.attempt
            self._resumed(trial, step, number)
            trial.stored_number = max(trial.stored_number, number)
            self.speeds.begin(progress.job_id, trial.attempt, lease.market.instance_type, step)
        match report:
            case Stepped(step=step, at=at, metric=metric):
                before = progress.steps_done
                progress.steps_done = max(before, float(step))
                if progress.steps_done > before:
                    progress.steps_run += progress.steps_done - before
                    own = progress.steps_on
                    own[lease.lease_id] = own.get(lease.lease_id, 0.0) + progress.steps_done - before
                if math.isfinite(metric):
                    trial.metrics.setdefault(at, metric)
                    self._withdraw_warnings(trial)
                self._reached(trial)
            case Named(names=names):
                trial.fields = tuple(sorted({*trial.fields, *names}))
            case Saved(step=step, number=number):
                trial.stored_number = max(trial.stored_number, number)
                progress.steps_saved = max(progress.steps_saved, step)
                progress.checkpoints += 1
                progress.saved_at = lease.market.place
                trial.has_saved = True
                self._withdraw_warnings(trial)
                if step > trial.best:
                    trial.best, trial.failures = step, 0
                self._notify(Event(Wake.SAVED, self._now(), job_id=progress.job_id))
            case Ended(how=Ending.FINISHED, step=step) if self._is_stored(trial, report):
                progress.steps_done = progress.steps_saved = max(step, progress.steps_saved)
                self._stretch_ends(trial, is_final=True)
                self._warn(trial, is_over=True)
                self._done_with(trial)
                self._finish(trial, "done")
                self._put_on(trial, None)
            case Ended(how=Ending.FAILED):
                self._stretch_ends(trial)
                self._done_with(trial)
                self._lost(trial)
                self._failed(trial, report)
            case Ended(how=how):
                if how is Ending.FINISHED:
                    _LOGGER.warning(
                        "trial %s is said to have finished, and storage does not have it; it is continued",
                        trial.trial_id,
                    )
                if lease.state is LeaseState.NOTICED:
                    self._warn(trial)
                self._stretch_ends(trial)
                self._done_with(trial)
                self._lost(trial)
                self._released(trial)

    def _is_stored(self, trial: Trial, ended: Ended) -> bool:
        """Whether storage has the last checkpoint that a training says it has stored; of none nothing is asked."""
        return ended.stored == 0 or self._has_checkpoint(trial.trial_id, ended.stored)

    def _reached(self, trial: Trial) -> None:
        job_id = trial.progress.job_id
        reached = [step for step in trial.milestones if trial.progress.steps_done >= step]
        trial.milestones = tuple(step for step in trial.milestones if step not in reached)
        for step in reached:
            self._notify(Event(Wake.MILESTONE, self._now(), job_id=job_id, detail=f"step {step}"))

    def _done_with(self, trial: Trial) -> None:
        """A restarted agent reads its orders again: tell it that this assignment is over."""
        if trial.on is not None:
            self._order(trial.on, Leave(trial.attempt))

    def _failed(self, trial: Trial, ended: Ended) -> None:
        """The program failed: it is tried again a few times, from an older checkpoint if necessary."""
        number = str(ended.number)
        # A program may be killed by a machine short of memory, or by anyone else: that counts half.
        killed = ended.code == -signal.SIGKILL
        trial.failures += 0.5 if killed else 1.0
        # A failure after some progress, or by being killed, does not speak against the checkpoint.
        if not ended.came and not killed:
            trial.from_one = {**trial.from_one, number: trial.from_one.get(number, 0) + 1}
        lines = tuple(ended.tail[-_TAIL_LINES:])
        # A command line that the program refuses is refused on any machine, with the same output as the last time.
        is_refused = (
            ended.code == _WRONG_USAGE
            and not ended.came
            and number == "0"
            and self._runtime.epoch_s() - trial.began_epoch_s < _AT_ONCE_S
            and bool(lines)
            and lines == tuple(trial.tail)
        )
        trial.tail = lines
        tail = " | ".join(line for line in trial.tail[-3:] if line.strip())
        how = f"with exit code {ended.code}{': ' * bool(tail)}{tail}" if ended.code is not None else tail
        _LOGGER.warning("trial %s failed %s", trial.trial_id, how)
        if number != "0" and trial.from_one.get(number, 0) >= _FAILURES_FROM_ONE:
            trial.aside = (*trial.aside, int(number))
        if ended.cannot_start:
            self._cannot_start(trial, tail or f"exit code {ended.code}")
        elif is_refused or trial.failures >= MOST_FAILURES:
            # The names that it reports are known, and explain a missing metric.
            if trial.fields:
                self._warn(trial, is_over=True)
            trial.problem = f"failed {trial.failures:g} times, last {how}"
            trial.stopping = trial.progress.stopped = True
        self._released(trial)

    def _cannot_start(self, trial: Trial, problem: str) -> None:
        """Its executable does not exist, so no machine is to be rented for other trials that call it."""
        called = self._called(trial)
        for other in self.trials:
            if not other.ended and not other.problem and (other is trial or self._called(other) == called):
                other.problem, other.tail = f"cannot be started: {problem}", (problem,)
                other.stopping = other.progress.stopped = True
                if other is trial:
                    continue
                if other.on is None:
                    self._finish(other, other.problem)
                else:
                    self._leave(other)

    def _called(self, trial: Trial) -> str:
        """The executable that a trial's command calls."""
        return next(iter(self._assignment(trial.progress).arguments), "")


def _origin(report: OfTrial) -> tuple[int, int] | None:
    """Resume step of an assignment, and the number of the checkpoint it resumed from; None: it is not told."""
    match report:
        case Restored(step=step, number=number):
            return step, number
        case Stepped(began=int(began), restored=number) | Saved(began=int(began), restored=number):
            return began, number
        case Ended(began=int(began), number=number):
            return began, number
        case _:
            return None
