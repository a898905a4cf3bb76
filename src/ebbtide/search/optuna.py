"""Studies of Optuna whose trials are trained on machines that may be taken.

    import optuna
    from ebbtide.search.optuna import SpotTrials

    work = {"command": "python train.py --lr {lr}", "metric": "validation_loss", "max_trial_steps": 400}
    trials = SpotTrials(work, lambda trial: {"lr": trial.suggest_float("lr", 0.001, 1.0, log=True)})
    study = optuna.create_study(storage="sqlite:///study.db", study_name="digits", load_if_exists=True)
    trials.optimize(study, n_trials=20, parallel=4)

Optuna's sampler asks for values and its pruner decides who goes on; each trial is a run of Ebbtide's. A machine
that is taken ends nothing: the run goes on elsewhere, and the trial is neither failed nor told. Where this program
ends before its trials do, they stay in the study with the intermediate values they have; the next call goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from optuna import Study, Trial
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from ebbtide.clouds.settings import RUNS, RunFolder, new_run_id
from ebbtide.controller.controller import metrics_of
from ebbtide.controller.run_state import OVER, State
from ebbtide.errors import InputError, TrainingError
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.sweep import Direction, Sweep
from ebbtide.policies.api.protocol import Policy
from ebbtide.runs.handle import Run, resume
from ebbtide.runs.run import RunOptions, run

# What a trial of the study says of its run.
RUN, RUNS_IN = "ebbtide_run", "ebbtide_runs"
COST_USD, REVOCATIONS = "ebbtide_cost_usd", "ebbtide_revocations"
# That a trial's policy ended it, as where its budget was spent; and that a trial was asked for, and no run begun.
GAVE_UP, NEVER_BEGUN = "ebbtide_gave_up", "ebbtide_never_begun"

# A trial that has no run so many seconds after it was asked for is that of a process which was killed. When it was
# asked for is written by the clock of a host in another time zone, perhaps: all lie within so many seconds.
_BEGINS_WITHIN_S, _TIME_ZONES_S = 120.0, 26 * 3600.0

# Real seconds between looks at the runs.
_LOOK_S = 0.5

_DIRECTIONS = {StudyDirection.MINIMIZE: Direction.MINIMIZE, StudyDirection.MAXIMIZE: Direction.MAXIMIZE}


@dataclass(frozen=True)
class SpotTrials:
    """Trains the trials of a study, some at a time.

    Attributes:
        work: The fields of a sweep's file but `grid`: `command`, with a placeholder for each value, and `metric`;
            and what else it may have (`name`, `max_trial_steps`, `budget_usd` of each trial, `accelerators`...).
        space: Suggests the values of a trial, by name.
        policy: Decides what each run rents, by name or as an object.
        provider: Where it runs: `local`, `ec2`, `gcp` or `several`.
        options: What else `eb.run` is given.
    """

    work: Mapping[str, Any]
    space: Callable[[Trial], Mapping[str, Any]]
    policy: str | Policy = "default"
    provider: str = "local"
    options: RunOptions = field(default_factory=lambda: RunOptions())

    def optimize(self, study: Study, n_trials: int, *, parallel: int = 1, budget_usd: float | None = None) -> None:
        """Train trials until there are so many, those that an earlier call left among them.

        Whatever ends this early stops the runs: they have saved, and the next call resumes them.

        Args:
            study: Keeps the trials. To go on after this process has ended, it needs a storage.
            n_trials: Number of trials of the study that are trained, pruned or failed in the end.
            parallel: Number of trials that are trained at a time, at most.
            budget_usd: No trial begins once all have cost so much, USD, those that still train by what they have
                paid so far; None: there is no limit.

        Raises:
            InputError: The study has several objectives or another direction than the work, the work is wrong, or
                a number is not positive.
        """
        self._check(study, n_trials, parallel)
        open_: dict[int, _Running] = {}
        # When each trial without a run was first seen.
        seen_s: dict[int, float] = {}
        try:
            for left in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if RUN in left.user_attrs:
                    open_[left.number] = self._gone_on_with(study, left)
            while True:
                asked = self._asked_only(study, seen_s)
                while len(open_) < parallel and self._is_due(study, n_trials, budget_usd, open_.values()):
                    trial = study.ask()
                    try:
                        open_[trial.number] = self._begun(study, trial)
                    except BaseException:
                        # Of two errors, as where the storage has failed, the first says what is wrong.
                        with suppress(Exception):
                            study.tell(trial, state=TrialState.FAIL)
                        raise
                if not open_ and not asked:
                    return
                for number, running in list(open_.items()):
                    if running.is_over(study):
                        del open_[number]
                time.sleep(_LOOK_S)
        finally:
            with ExitStack() as stopped:
                # Each is stopped, whatever becomes of another.
                for running in open_.values():
                    stopped.callback(running.stop)

    def _asked_only(self, study: Study, seen_s: dict[int, float]) -> bool:
        """Return whether trials that others asked for have no run yet; abandoned ones are told as failed."""
        found = False
        for left in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if RUN in left.user_attrs:
                continue
            seen_for_s = time.monotonic() - seen_s.setdefault(left.number, time.monotonic())
            began = left.datetime_start
            age_s = math.inf if began is None else abs((datetime.now() - began).total_seconds())
            if seen_for_s < _BEGINS_WITHIN_S and age_s < _BEGINS_WITHIN_S + _TIME_ZONES_S:
                found = True
                continue
            # Somebody else may tell it at the same time.
            with suppress(UpdateFinishedTrialError):
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
            paid_usd = [one.user_attrs.get(COST_USD, 0.0) for one in trials] + [one.paid_usd for one in running]
            if math.fsum(paid_usd) >= budget_usd:
                return False
        begun = [one for one in trials if not one.user_attrs.get(NEVER_BEGUN)]
        return sum(one.state is not TrialState.WAITING for one in begun) < n_trials

    def _begun(self, study: Study, trial: Trial) -> _Running:
        # The study knows the run before there is one: whatever ends this process, the next call finds it.
        name = new_run_id(f"{self.work.get('name', 'trial')}-{trial.number}")
        trial.set_user_attr(RUNS_IN, str(Path(self.options.get("runs", RUNS)).resolve()))
        trial.set_user_attr(RUN, name)
        return self._started(study, trial, name)

    def _started(self, study: Study, trial: Trial, run_id: str) -> _Running:
        values = dict(self.space(trial))
        if not values:
            raise InputError("space suggests no value: return what it suggests, by name")
        grid = {name: [value] for name, value in values.items()}
        # Pruning is the study's; the sweep's own rules end no trial.
        name = f"{self.work.get('name', 'trial')}-{trial.number}"
        own = {"name": name, "grid": grid, "direction": _DIRECTIONS[study.direction], "theta": 1.0, "mcnt": 1}
        sweep = validated(Sweep, {**self.work, **own})
        options = {**self.options, "name": run_id}
        return _Running(trial, run(sweep, self.policy, self.provider, **options))  # type: ignore[call-overload]

    def _gone_on_with(self, study: Study, left: FrozenTrial) -> _Running:
        trial = Trial(study, left._trial_id)
        runs = left.user_attrs.get(RUNS_IN, self.options.get("runs", RUNS))
        name = left.user_attrs[RUN]
        policy = None if isinstance(self.policy, str) else self.policy
        folder = RunFolder(Path(runs) / name)
        if not folder.is_begun:
            return self._started(study, trial, name)
        found = Run(folder)
        if found.status().state not in (*OVER, State.GAVE_UP):
            found = resume(name, runs=runs, policy=policy)
        return _Running(trial, found, reported=max(left.intermediate_values, default=0))


@dataclass
class _Running:
    """A trial that is being trained.

    Attributes:
        trial: The study's trial.
        run: Its run.
        reported: The last step of which the study knows the metric.
    """

    trial: Trial
    run: Run
    reported: int = 0

    def is_over(self, study: Study) -> bool:
        """Tell the study what is new, and whether the trial is over."""
        # In this order: what came until its end is then among its metrics.
        has_ended, metrics = self.run.wait(0.0), self._metrics()
        for step in sorted(step for step in metrics if step > self.reported):
            self.trial.report(metrics[step], step)
            self.reported = step
        if has_ended:
            self._end(study)
            return True
        if self.reported and self.trial.should_prune():
            self.stop()
            self._tell(study, TrialState.PRUNED)
            return True
        return False

    @property
    def paid_usd(self) -> float:
        """Cost so far, USD."""
        return self.run.status().money.paid_usd

    def stop(self) -> None:
        """Save, and give machines back."""
        try:
            self.run.stop()
        except InputError:
            return  # it has just ended
        self.run.wait()

    def _metrics(self) -> dict[int, float]:
        found = metrics_of(self.run.kept)
        return found[0] if found else {}

    def _end(self, study: Study) -> None:
        error = self.run.error
        if error is not None and not isinstance(error, TrainingError):
            raise error
        metrics, state = self._metrics(), self.run.status().state
        if state is State.FINISHED and metrics:
            self._tell(study, TrialState.COMPLETE, metrics[max(metrics)])
        elif state is State.GAVE_UP:
            # Its policy ended it, for example when its budget was spent: what it reached counts.
            best = min if study.direction is StudyDirection.MINIMIZE else max
            known = [value for value in metrics.values() if math.isfinite(value)]
            self.trial.set_user_attr(GAVE_UP, True)
            self._tell(study, *((TrialState.COMPLETE, best(known)) if known else (TrialState.FAIL,)))
        elif state in OVER:
            self._tell(study, TrialState.FAIL)
        else:
            # Somebody stopped it.
            raise InputError(f"run {self.run.id} of trial {self.trial.number} ended before its training: {state}")

    def _tell(self, study: Study, state: TrialState, value: float | None = None) -> None:
        standing = self.run.status()
        self.trial.set_user_attr(COST_USD, standing.money.paid_usd)
        self.trial.set_user_attr(REVOCATIONS, standing.revoked)
        study.tell(self.trial, value, state)
