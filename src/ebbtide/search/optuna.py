"""Train the trials of Optuna studies on spot machines.

    import optuna
    from ebbtide.search.optuna import SpotTrials

    work = {"command": "python train.py --lr {lr}", "metric": "validation_loss", "max_trial_steps": 400}
    trials = SpotTrials(work, lambda trial: {"lr": trial.suggest_float("lr", 0.001, 1.0, log=True)})
    study = optuna.create_study(storage="sqlite:///study.db", study_name="digits", load_if_exists=True)
    trials.optimize(study, n_trials=20, parallel=4)

Optuna's sampler suggests values and its pruner decides which trials continue; each trial is a run of Ebbtide. A
revocation does not end a trial: its run continues on another machine, and the study does not notice. If this
program ends before its trials, they stay in the study with their intermediate values; the next call on the same
host resumes them. Several hosts, and plain calls of Optuna, may share a study; none touches another's trials.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from optuna import Study, Trial
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from ebbtide.clouds.settings import RUNS, RunFolder, new_run_id
from ebbtide.controller.controller import metrics_of
from ebbtide.controller.run_state import OVER, State
from ebbtide.controller.team.account import is_of_team
from ebbtide.errors import InputError, TrainingError
from ebbtide.jobs.common_fields import Direction
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.sweep import Sweep
from ebbtide.policies.api.protocol import Policy
from ebbtide.runs.handle import PatientReads, Run, resume
from ebbtide.runs.run import RunOptions, run

_LOGGER = logging.getLogger(__name__)

# User attributes of a trial: host and process that asked for it, and about its run.
ASKED_BY, RUN, RUNS_IN = "ebbtide_host", "ebbtide_run", "ebbtide_runs"
COST_USD, REVOCATIONS = "ebbtide_cost_usd", "ebbtide_revocations"
# Flags of a trial: its policy gave it up, as when its budget was spent; or its run was never begun.
GAVE_UP, NEVER_BEGUN = "ebbtide_gave_up", "ebbtide_never_begun"

# A trial without a run this many seconds after `ask` belongs to a killed process. Optuna stores the time of `ask`
# without a time zone, and another host may be in another zone: zones differ by at most 26 h.
_BEGINS_WITHIN_S, _TIME_ZONES_S = 120.0, 26 * 3600.0

# Real seconds between polls of the runs.
_LOOK_S = 0.5

# A trial's cost is written into the study once it is so many times what was written before.
_TOLD_AGAIN = 1.02

# Name of this host, as trials have it.
_HOST = socket.gethostname()

_DIRECTIONS = {StudyDirection.MINIMIZE: Direction.MINIMIZE, StudyDirection.MAXIMIZE: Direction.MAXIMIZE}


@dataclass(frozen=True)
class SpotTrials:
    """Trains the trials of a study, several in parallel.

    Attributes:
        work: The fields of a sweep's file except `grid`: `command`, with a placeholder for each value, `metric`,
            and any optional ones (`name`, `max_trial_steps`, `budget_usd` of each trial, `accelerators`...).
        space: Suggests the values of a trial, by name.
        policy: Policy of each run, by name or as an object.
        provider: Provider of machines: `local`, `ec2`, `gcp` or `several`.
        options: Further arguments of `eb.run`.
    """

    work: Mapping[str, Any]
    space: Callable[[Trial], Mapping[str, Any]]
    policy: str | Policy = "default"
    provider: str = "local"
    options: RunOptions = field(default_factory=lambda: RunOptions())

    def optimize(self, study: Study, n_trials: int, *, parallel: int = 1, budget_usd: float | None = None) -> None:
        """Train trials until the study has `n_trials`, resuming those that an earlier call left.

        If this call ends early, it saves and stops the runs; the next call resumes them.

        Args:
            study: Study that keeps the trials. It needs a storage if a later process is to resume them.
            n_trials: Number of trials in the study at the end, whether complete, pruned or failed.
            parallel: Maximum number of trials trained at the same time.
            budget_usd: No trial begins once all trials together have cost this much, USD, running ones included;
                None: there is no limit.

        Raises:
            InputError: The study has several objectives or another direction than the work, the work is wrong, or
                a number is not positive.
        """
        self._check(study, n_trials, parallel)
        open_: dict[int, _Running] = {}
        # By trial without a run, the time at which this call first saw it.
        seen_s: dict[int, float] = {}
        try:
            for left in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if RUN in left.user_attrs and (running := self._gone_on_with(study, left)) is not None:
                    open_[left.number] = running
            while True:
                asked = self._asked_only(study, seen_s)
                while len(open_) < parallel and self._is_due(study, n_trials, budget_usd, open_.values()):
                    trial = _asked(study)
                    try:
                        open_[trial.number] = self._begun(study, trial)
                    except BaseException:
                        # If `tell` fails, too, as when the storage has failed, raise the first error.
                        with suppress(Exception):
                            study.tell(trial, state=TrialState.FAIL)
                        raise
                if not open_ and not asked:
                    return
                for number, running in list(open_.items()):
                    if running.is_over(study):
                        del open_[number]
                        n_trials = 0 if running.ends_study else n_trials
                time.sleep(_LOOK_S)
        finally:
            with ExitStack() as stopped:
                # All are asked before one is waited for, and every one, even if stopping another fails.
                for wait in (True, False):
                    for running in open_.values():
                        stopped.callback(running.stop, wait=wait)

    def _asked_only(self, study: Study, seen_s: dict[int, float]) -> bool:
        """Return whether other processes' trials still have no run; marks abandoned ones as failed.

        Only trials that a call of `optimize` asked for count: others are trained by somebody else.
        """
        found = False
        for left in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            is_ours = ASKED_BY in left.user_attrs and not left.params and not left.intermediate_values
            if RUN in left.user_attrs or not is_ours:
                continue
            seen_for_s = time.monotonic() - seen_s.setdefault(left.number, time.monotonic())
            began = left.datetime_start
            age_s = math.inf if began is None else abs((datetime.now() - began).total_seconds())
            if seen_for_s < _BEGINS_WITHIN_S and age_s < _BEGINS_WITHIN_S + _TIME_ZONES_S:
                found = True
                continue
            # Another process may finish the trial at the same time, and a sampler may want no more.
            with suppress(UpdateFinishedTrialError, RuntimeError):
                Trial(study, left._trial_id).set_user_attr(NEVER_BEGUN, True)
                study.tell(left.number, state=TrialState.FAIL, skip_if_finished=True)
        return found

    def _check(self, study: Study, n_trials: int, parallel: int) -> None:
        for name, number in {"n_trials": n_trials, "parallel": parallel}.items():
            if number < 1:
                raise InputError(f"{name} is {number}; it has to be positive", field=name)
        if len(study.directions) > 1:
            raise InputError("the study has several objectives, a run has one metric")
        if "grid" in self.work:
            raise InputError("the study chooses the values: leave `grid` out, and suggest them in `space`")
        if not self.work.get("metric"):
            raise InputError("the work needs a metric, which is what the study is told", field="metric")
        wanted = _DIRECTIONS[study.direction]
        if self.work.get("direction", wanted) != wanted:
            raise InputError(f"the study is to {wanted} the metric, the work to {self.work['direction']} it")

    def _is_due(self, study: Study, n_trials: int, budget_usd: float | None, running: Iterable[_Running]) -> bool:
        """Return whether the budget and the number of trials allow another trial to begin."""
        trials = study.get_trials(deepcopy=False)
        if budget_usd is not None:
            own = {one.trial.number: one.paid_usd for one in running}
            paid_usd = [own.get(one.number, one.user_attrs.get(COST_USD, 0.0)) for one in trials]
            if math.fsum(paid_usd) >= budget_usd:
                return False
        begun = [one for one in trials if not one.user_attrs.get(NEVER_BEGUN)]
        return sum(one.state is not TrialState.WAITING for one in begun) < n_trials

    def _begun(self, study: Study, trial: Trial) -> _Running:
        # Record the run in the study before it begins, so that the next call finds it if this process is killed.
        name = new_run_id(f"{self.work.get('name', 'trial')}-{trial.number}")
        trial.set_user_attr(RUNS_IN, str(Path(self.options.get("runs", RUNS)).resolve()))
        trial.set_user_attr(RUN, name)
        return self._started(study, trial, name)

    def _started(self, study: Study, trial: Trial, run_id: str) -> _Running:
        values = dict(self.space(trial))
        if not values:
            raise InputError("space suggests no value: return what it suggests, by name")
        grid = {name: [value] for name, value in values.items()}
        # The study prunes trials, so theta 1 keeps the sweep's own rule from ending any early.
        name = f"{self.work.get('name', 'trial')}-{trial.number}"
        own = {"name": name, "grid": grid, "direction": _DIRECTIONS[study.direction], "theta": 1.0, "mcnt": 1}
        sweep = validated(Sweep, {**self.work, **own})
        options = {**self.options, "name": run_id}
        return _Running(trial, run(sweep, self.policy, self.provider, **options))  # type: ignore[call-overload]

    def _gone_on_with(self, study: Study, left: FrozenTrial) -> _Running | None:
        """Continue with a trial of an earlier call; None: another program has its run."""
        trial = Trial(study, left._trial_id)
        runs = left.user_attrs.get(RUNS_IN, self.options.get("runs", RUNS))
        name = left.user_attrs[RUN]
        policy = None if isinstance(self.policy, str) else self.policy
        folder = RunFolder(Path(runs) / name)
        found, begins = Run(folder), not folder.is_begun
        state = State.NEW if begins else found.status().state
        host, _, process = left.user_attrs.get(ASKED_BY, _HOST).partition(" ")
        has_controller = state in (State.RUNNING, State.STOPPING)
        if has_controller or (state is State.NEW and _may_begin(host, process)):
            _LOGGER.warning(
                "trial %d is left to a program on host %s, which has its run %s; if that is gone, end the trial "
                "with study.tell(%d, state=optuna.trial.TrialState.FAIL)",
                left.number,
                host,
                name,
                left.number,
            )
            return None
        if begins:
            return self._started(study, trial, name)
        gave_up = state is State.GAVE_UP and not is_of_team(found.status().why)
        if state not in OVER and not gave_up:
            found = resume(name, runs=runs, policy=policy)
        # What it cost before counts towards the study's budget at once.
        told_usd = float(left.user_attrs.get(COST_USD, 0.0))
        return _Running(trial, found, reported=max(left.intermediate_values, default=-1), told_usd=told_usd)


def _asked(study: Study) -> Trial:
    """Ask for a trial that is marked as ours from its first moment on, or for one that waits in the study."""
    us = f"{_HOST} {os.getpid()}"
    if not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        # `enqueue_trial` would fix the values, which samplers that plan ahead take for theirs.
        study.add_trial(create_trial(state=TrialState.WAITING, user_attrs={ASKED_BY: us}))
    trial = study.ask()
    trial.set_user_attr(ASKED_BY, us)
    return trial


def _may_begin(host: str, process: str) -> bool:
    """Return whether another program that asked for a trial may be alive, and about to begin its run.

    Args:
        host: Host of the program.
        process: Id of its process.
    """
    if host != _HOST:
        return True
    return process.isdecimal() and int(process) != os.getpid() and psutil.pid_exists(int(process))


@dataclass
class _Running:
    """A trial that is being trained.

    Attributes:
        trial: The study's trial.
        run: Run of the trial.
        reported: The last step whose metric the study has; -1: none.
        ends_study: Whether the sampler wants no more trials after it.
        told_usd: Its cost as the study has it, USD.
    """

    trial: Trial
    run: Run
    reported: int = -1
    ends_study: bool = False
    told_usd: float = 0.0
    _reads: PatientReads[tuple[dict[int, float], float] | None] = field(default_factory=lambda: PatientReads(None))

    def is_over(self, study: Study) -> bool:
        """Report new metrics to the study, and return whether the trial is over."""
        # In this order, so that a run that has ended has all its metrics.
        has_ended, found = self.run.wait(0.0), self._reads.read(self._read)
        metrics = {} if found is None else found[0]
        # Programs on other hosts count it towards the budget of the study.
        if (paid_usd := self.paid_usd) > self.told_usd * _TOLD_AGAIN:
            self.trial.set_user_attr(COST_USD, paid_usd)
            self.told_usd = paid_usd
        for step in sorted(step for step in metrics if step > self.reported):
            self.trial.report(metrics[step], step)
            self.reported = step
        if has_ended:
            self._end(study)
            return True
        if self.reported >= 0 and self.trial.should_prune():
            self.stop()
            self._tell(study, TrialState.PRUNED)
            return True
        return False

    @property
    def paid_usd(self) -> float:
        """Cost so far, as it was last read, USD."""
        return self.told_usd if self._reads.last is None else self._reads.last[1]

    def _read(self) -> tuple[dict[int, float], float]:
        """Read the metrics, and the cost so far in USD."""
        return self._metrics(), self.run.status().money.paid_usd

    def stop(self, *, wait: bool = True) -> None:
        """Save, and release machines; wait until that is done."""
        try:
            self.run.stop()
        except InputError:
            return  # it has just ended
        if wait:
            self.run.wait()

    def _metrics(self) -> dict[int, float]:
        found = metrics_of(self.run.kept)
        return found[0] if found else {}

    def _end(self, study: Study) -> None:
        error = self.run.error
        if error is not None and not isinstance(error, TrainingError):
            raise error
        metrics, standing = self._metrics(), self.run.status()
        state, diverged_at = standing.state, standing.trials[0].diverged_at if standing.trials else 0
        if state is State.FINISHED and diverged_at:
            _LOGGER.warning(
                "trial %d fails: its metric is no finite number at step %d", self.trial.number, diverged_at
            )
            self._tell(study, TrialState.FAIL)
        elif state is State.FINISHED and metrics:
            self._tell(study, TrialState.COMPLETE, metrics[max(metrics)])
        elif state is State.GAVE_UP and is_of_team(standing.why):
            raise InputError(
                f"run {self.run.id} of trial {self.trial.number} gave up: {standing.why}; a later call "
                "of `optimize` continues it"
            )
        elif state is State.GAVE_UP:
            # Its policy gave it up, for example because its own budget was spent: its best value counts.
            best = min if study.direction is StudyDirection.MINIMIZE else max
            known = [value for value in metrics.values() if math.isfinite(value)]
            self.trial.set_user_attr(GAVE_UP, True)
            self._tell(study, *((TrialState.COMPLETE, best(known)) if known else (TrialState.FAIL,)))
        elif state in OVER:
            self._tell(study, TrialState.FAIL)
        else:
            # The user stopped the run.
            raise InputError(f"run {self.run.id} of trial {self.trial.number} ended before its training: {state}")

    def _tell(self, study: Study, state: TrialState, value: float | None = None) -> None:
        standing = self.run.status()
        self.trial.set_user_attr(COST_USD, standing.money.paid_usd)
        self.trial.set_user_attr(REVOCATIONS, standing.revoked)
        try:
            study.tell(self.trial, value, state)
        except RuntimeError:
            # A sampler that has searched its whole grid stops the study, as it may only within Optuna's own loop.
            if not study.get_trials(deepcopy=False)[self.trial.number].state.is_finished():
                raise
            self.ends_study = True
