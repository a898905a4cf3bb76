"""Jobs that agents train: which machine trains which job, how far it is, and what was lost."""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ebbtide.errors import InputError
from ebbtide.jobs.job import Coupling
from ebbtide.jobs.progress import JobProgress
from ebbtide.live.agent.config import Assignment
from ebbtide.live.agent.messages import Message
from ebbtide.live.agent_state import (
    WARNED_AFTER_S,
    Stretch,
    Trial,
    TrialRecord,
    restore_trial,
    resumed,
    trial_values,
    warnings_of,
)
from ebbtide.live.measured_speed import MeasuredSpeeds
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.events import Event, Wake

_LOGGER = logging.getLogger(__name__)

# A training that fails so often without progress has failed.
MOST_FAILURES = 5
# After so many failures from one checkpoint the one before it is used.
_FAILURES_FROM_ONE = 2
_TAIL_LINES = 12
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
        log: Called with a trial's id and a line for its log.
        metric: Name of the metric that trials are compared by; None: there is none.
    """

    def __init__(
        self,
        run: str,
        assignment: Callable[[JobProgress], Assignment],
        order: Callable[[int, Message], None],
        notify: Callable[[Event], None],
        now: Callable[[], float],
        *,
        log: Callable[[str, str], None] = lambda _trial, _line: None,
        metric: str | None = None,
    ) -> None:
        self._run, self._assignment = run, assignment
        self._log, self._metric = log, metric
        self._order, self._notify, self._now = order, notify, now
        self.trials: list[Trial] = []
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

    def assign(self, job_id: int, leases: Sequence[Lease]) -> None:
        """Allow a job to run on these leases, and no others, from now on."""
        self.trials[job_id].assigned = list(leases)
        self._converge(self.trials[job_id])

    def converge(self) -> None:
        """Give the orders that are missing."""
        for trial in self.trials:
            self._converge(trial)
            if trial.on is not None and time.time() - trial.began_epoch_s >= WARNED_AFTER_S:
                self._warn(trial)

    def in_use(self, lease: Lease) -> bool:
        """Whether a trial is trained or saved on the lease's machine."""
        return any(trial.on == lease.lease_id for trial in self.trials)

    def save(self, job_id: int) -> None:
        """Order the agent of a job to save it."""
        trial = self.trials[job_id]
        if trial.on is not None:
            self._order(trial.on, {"type": "save"})

    def stop(self, job_id: int) -> None:
        """Stop training a job; it counts as finished once it is saved."""
        trial = self.trials[job_id]
        trial.stopping = trial.progress.stopped = True
        if trial.on is None:
            self._finish(trial, "stopped")
        else:
            self._leave(trial)

    def measured(self, job_id: int) -> tuple[Floats, Floats]:
        """Steps and metric values that a job reported: two arrays of the same length, in order of steps."""
        found = sorted(self.trials[job_id].metrics.items())
        return np.array([float(step) for step, _ in found]), np.array([metric for _, metric in found])

    def gone(self, lease: Lease) -> None:
        """The lease's machine has ended: training on it stops, and steps that were not saved are lost."""
        for trial in self.trials:
            trial.assigned = [other for other in trial.assigned if other is not lease]
            if trial.on == lease.lease_id:
                if lease.state is LeaseState.REVOKED:
                    self._warn(trial)
                self._stretch_ends(trial)
                self._lost(trial)
                self._released(trial)

    def receive(self, lease: Lease, message: Message) -> None:
        """Handle a report of an agent about a trial."""
        trial = next((one for one in self.trials if one.trial_id == message.get("trial")), None)
        # After the end of an assignment only its stored checkpoints count, which are found when it is restored.
        if trial is not None and trial.attempt == message.get("attempt") and not trial.ended:
            self._receive_of(trial, lease, message)

    def snapshot(self) -> list[TrialRecord]:
        """The trials as plain values, for the journal, in the order of jobs."""
        return [trial_values(trial) for trial in self.trials]

    def restore(self, kept: Sequence[TrialRecord], leases: Mapping[int, Lease]) -> None:
        """Continue from what `snapshot` gave.

        Args:
            kept: Values of each trial, in the order of jobs.
            leases: The run's leases by lease id.
        """
        for trial, values in zip(self.trials, kept, strict=True):
            restore_trial(trial, values, leases)

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
        trial.on, trial.leaving = lease.lease_id, False
        trial.attempt += 1
        trial.began_s, trial.began_epoch_s = self._now(), time.time()
        trial.began_step, trial.began_number, trial.has_saved = trial.progress.steps_saved, 0, False
        assignment = self._assignment(trial.progress).encode()
        assignment |= {"trial_id": trial.trial_id, "attempt": trial.attempt, "aside": trial.aside}
        self._order(lease.lease_id, {"type": "train", "assignment": assignment})
        trial.progress.begin_on([lease], self._now())

    def _leave(self, trial: Trial) -> None:
        if trial.on is not None and not trial.leaving:
            trial.leaving = True
            self._order(trial.on, {"type": "leave", "attempt": trial.attempt, "trial": trial.trial_id})

    def _released(self, trial: Trial) -> None:
        """Its agent has left it, or has ended."""
        trial.on, trial.leaving = None, False
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
        trial.lost_above = max(progress.steps_done - progress.steps_saved, 0.0)
        progress.steps_lost += trial.lost_above
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
        trial.stretches.append(stretch)
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
                trial.warnings.append(warning)
                self._log(trial.trial_id, f"ebbtide: warning: {warning}")
                # Logged for the first trial only, since trials of a sweep run the same program.
                if not any(warning in other.warnings for other in self.trials if other is not trial):
                    _LOGGER.warning("trial %s: %s", trial.trial_id, warning)

    def _withdraw_warnings(self, trial: Trial) -> None:
        """Drop warnings that are no longer true, once a metric is reported or a checkpoint saved."""
        if trial.warnings:
            still = warnings_of(trial, self._metric)
            trial.warnings = [warning for warning in trial.warnings if warning in still]

    def _receive_of(self, trial: Trial, lease: Lease, message: Message) -> None:
        progress, step = trial.progress, float(message.get("step", 0))
        match message["type"]:
            case "restored":
                self._resumed(trial, step, int(message.get("number", 0)))
                self.speeds.begin(progress.job_id, trial.attempt, lease.market.instance_type, int(step))
            case "step":
                before = progress.steps_done
                progress.steps_done = max(before, step)
                progress.steps_run += progress.steps_done - before
                if "metric" in message and math.isfinite(float(message["metric"])):
                    trial.metrics.setdefault(int(message["at"]), float(message["metric"]))
                    self._withdraw_warnings(trial)
                self._reached(trial)
            case "fields":
                trial.fields = sorted({*trial.fields, *(str(name) for name in message["names"])})
            case "saved":
                progress.steps_saved = max(progress.steps_saved, step)
                progress.checkpoints += 1
                progress.saved_at = lease.market.place
                trial.has_saved = True
                self._withdraw_warnings(trial)
                if step > trial.best:
                    trial.best, trial.failures = step, 0
                self._notify(Event(Wake.SAVED, self._now(), job_id=progress.job_id))
            case "finished":
                progress.steps_done = progress.steps_saved = max(step, progress.steps_saved)
                self._stretch_ends(trial, is_final=True)
                self._warn(trial, is_over=True)
                self._done_with(trial)
                self._finish(trial, "done")
                trial.on = None
            case "left" | "superseded":
                if lease.state is LeaseState.NOTICED:
                    self._warn(trial)
                self._stretch_ends(trial)
                self._done_with(trial)
                self._lost(trial)
                self._released(trial)
            case "failed":
                self._stretch_ends(trial)
                self._done_with(trial)
                self._lost(trial)
                self._failed(trial, message)

    def _reached(self, trial: Trial) -> None:
        job_id = trial.progress.job_id
        for step in [step for step in trial.milestones if trial.progress.steps_done >= step]:
            trial.milestones.remove(step)
            self._notify(Event(Wake.MILESTONE, self._now(), job_id=job_id, detail=f"step {step}"))

    def _done_with(self, trial: Trial) -> None:
        """A restarted agent reads its orders again: tell it that this assignment is over."""
        if trial.on is not None:
            self._order(trial.on, {"type": "leave", "attempt": trial.attempt})

    def _failed(self, trial: Trial, message: Message) -> None:
        """The program failed: it is tried again a few times, from an older checkpoint if necessary."""
        number = str(message.get("number", 0))
        # A program may be killed by a machine short of memory, or by anyone else: that counts half.
        killed = message.get("code") == -signal.SIGKILL
        trial.failures += 0.5 if killed else 1.0
        # A failure after some progress, or by being killed, does not speak against the checkpoint.
        if not message.get("came", 0) and not killed:
            trial.from_one[number] = trial.from_one.get(number, 0) + 1
        lines = [str(line) for line in message.get("tail", ())][-_TAIL_LINES:]
        # A command line that the program refuses is refused on any machine, with the same output as the last time.
        is_refused = (
            message.get("code") == _WRONG_USAGE
            and not message.get("came", 0)
            and number == "0"
            and time.time() - trial.began_epoch_s < _AT_ONCE_S
            and bool(lines)
            and lines == trial.tail
        )
        trial.tail = lines
        tail = " | ".join(line for line in trial.tail[-3:] if line.strip())
        how = f"with exit code {message.get('code')}{': ' * bool(tail)}{tail}"
        _LOGGER.warning("trial %s failed %s", trial.trial_id, how)
        if number != "0" and trial.from_one.get(number, 0) >= _FAILURES_FROM_ONE:
            trial.aside.append(int(number))
        if message.get("cannot_start"):
            self._cannot_start(trial, tail or f"exit code {message.get('code')}")
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
                other.problem, other.tail = f"cannot be started: {problem}", [problem]
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
