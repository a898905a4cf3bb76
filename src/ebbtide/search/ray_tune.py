"""Train the trials of Ray Tune on spot machines.

    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ebbtide.search.ray_tune import spot_trainable

    work = {"command": "python train.py --lr {lr}", "metric": "validation_loss", "max_trial_steps": 400}
    tuner = tune.Tuner(
        spot_trainable(work),
        param_space={"lr": tune.loguniform(0.001, 1.0)},
        tune_config=tune.TuneConfig(
            num_samples=20,
            scheduler=ASHAScheduler("step", metric="validation_loss", mode="min", max_t=400),
        ),
    )
    results = tuner.fit()

Ray's searcher suggests values and its scheduler decides which trials continue; each trial is a run of Ebbtide that
Ray only watches, so give a trial few of Ray's resources. A revocation does not end a trial: its run continues on
another machine, and Ray sees no failure. If Ray begins a trial again, after a failure of Ray or a restart, the
trial finds its run by name and resumes it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray import tune

from ebbtide.clouds.settings import RUNS, RunFolder
from ebbtide.clouds.unique_names import absolute_store
from ebbtide.controller.controller import metrics_of
from ebbtide.controller.journal.address import journal_address
from ebbtide.controller.run_state import State
from ebbtide.controller.team.account import is_of_team
from ebbtide.controller.team.team import accounting_of
from ebbtide.errors import InputError, TrainingError
from ebbtide.forecasts.champions import CHAMPION
from ebbtide.jobs.common_fields import Direction
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.sweep import Sweep
from ebbtide.runs.handle import PatientReads, Run, resume
from ebbtide.runs.run import RunOptions, run

# Real seconds between polls of a run.
_LOOK_S = 0.3
_OVER = frozenset({State.FINISHED, State.FAILED, State.GAVE_UP})


def spot_trainable(
    work: Mapping[str, Any], policy: str = "default", provider: str = "local", options: RunOptions | None = None
) -> type[tune.Trainable]:
    """Make a trainable for `ray.tune.Tuner`.

    Args:
        work: The fields of a sweep's file except `grid`: `command`, with a placeholder for each value, `metric`,
            and any optional ones (`name`, `max_trial_steps`, `budget_usd` of each trial, `accelerators`...).
        policy: Name of the policy of each run.
        provider: Provider of machines: `local`, `ec2`, `gcp` or `several`.
        options: Further arguments of `eb.run`; paths are relative to the working directory of this call.

    Returns:
        A class whose results have the metric under its name, `step`, `cost_usd` and `revocations`.

    Raises:
        InputError: The work has a grid, or no metric; or the team or the journal's address is wrong.
    """
    if "grid" in work:
        raise InputError("Ray Tune chooses the values: leave `grid` out, and name them in `param_space`")
    if not work.get("metric"):
        raise InputError("the work needs a metric, which is what Ray Tune is told", field="metric")
    given: dict[str, Any] = dict(options or {})
    # Ray's workers run in other folders and environments, so make paths absolute, and settle who pays here.
    for name, usual in (("folder", Path.cwd()), ("runs", RUNS)):
        given[name] = Path(given.get(name, usual)).resolve()
    for name in ("machines", "models", "spells", "availability"):
        if isinstance(given.get(name), str | Path) and given[name] != CHAMPION:
            given[name] = Path(given[name]).resolve()
    if given.get("store"):
        given["store"] = absolute_store(str(given["store"]))
    accounting = accounting_of(given.get("owner"), given.get("tags"), given.get("team"))
    given |= {"owner": accounting.owner or None, "team": accounting.team}
    given["journal"] = journal_address(given.get("journal"))

    class OnSpot(_SpotTrainable):
        _work, _policy, _provider = dict(work), policy, provider
        _options = given  # type: ignore[assignment]

    OnSpot.__name__ = OnSpot.__qualname__ = str(work.get("name", "spot"))
    return OnSpot


class _SpotTrainable(tune.Trainable):
    """A trial of Ray Tune that trains as a run of Ebbtide and reports the run's metric step by step."""

    _work: Mapping[str, Any]
    _policy: str
    _provider: str
    _options: RunOptions

    def setup(self, config: dict[str, Any]) -> None:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{self._work.get('name', 'trial')}-{self.trial_id}")
        folder = RunFolder(Path(self._options["runs"]) / name)
        self._reported = -1
        if not config:
            raise InputError("param_space names no value, and the command needs some")
        grid = {name: [value] for name, value in config.items()}
        # Ray ends trials early, so theta 1 keeps the sweep's own rule from ending any.
        own = {"name": name, "grid": grid, "theta": 1.0, "mcnt": 1}
        sweep = validated(Sweep, {**self._work, **own})
        if folder.is_begun:
            before = folder.settings.sweep["grid"]
            if before != sweep.model_dump(mode="json")["grid"]:
                raise InputError(
                    f"run {name} trains other values than Ray's trial {self.trial_id}: {before}; a scheduler that "
                    "changes a trial's values, such as population based training, is not supported, and each "
                    "experiment needs a folder of runs of its own"
                )
            found = Run(folder)
            standing = found.status()
            is_over = standing.state in _OVER and not is_of_team(standing.why)
            self._run = found if is_over else resume(name, runs=self._options["runs"])
            return
        options = {**self._options, "name": name}
        self._run = run(sweep, self._policy, self._provider, **options)  # type: ignore[call-overload]

    def step(self) -> dict[str, Any]:
        """Wait for the next value of the metric, or the end."""
        try:
            return self._next()
        except BaseException:
            # Nothing would report the run's metrics from now on, so stop it.
            with suppress(Exception):
                self.cleanup()
            raise

    def _next(self) -> dict[str, Any]:
        reads = PatientReads[dict[int, float]]({})
        while True:
            # In this order, so that a run that has ended has all its metrics.
            has_ended = self._run.wait(0.0)
            # How it ended is told from all of its metrics, not from those that were read last.
            metrics = self._metrics() if has_ended else reads.read(self._metrics)
            new = sorted(step for step in metrics if step > self._reported)
            if new:
                self._reported = new[0]
                return self._result(metrics[new[0]], is_over=has_ended and len(new) == 1 and self._is_complete)
            if has_ended:
                return self._ended(metrics)
            time.sleep(_LOOK_S)

    @property
    def _is_complete(self) -> bool:
        """True if the training ended at its last step, so that its last metric is its result."""
        status = self._run.status()
        return status.state is State.FINISHED and not status.trials[0].diverged_at

    def cleanup(self) -> None:
        """Save and release machines when Ray ends the trial."""
        try:
            self._run.stop()
        except (InputError, AttributeError):
            return  # it has ended, or never began
        self._run.wait()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Do nothing: the run saves its own checkpoints, and is found by its name."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Do nothing, for the same reason."""

    def _metrics(self) -> dict[int, float]:
        found = metrics_of(self._run.kept)
        return found[0] if found else {}

    def _ended(self, metrics: Mapping[int, float]) -> dict[str, Any]:
        error, status = self._run.error, self._run.status()
        if error is not None and not isinstance(error, TrainingError):
            raise error
        if status.state is State.FAILED or not metrics:
            raise TrainingError(f"run {self._run.id}: {status.trials[0].problem or 'it has told no metric'}", None)
        if status.state is State.GAVE_UP and is_of_team(status.why):
            raise InputError(f"run {self._run.id} gave up: {status.why}; restored later, it is continued")
        if status.state is State.GAVE_UP:
            # Its policy gave it up, for example because its budget was spent: its best value counts, or its last
            # if the work does not say which is better.
            choose = {Direction.MAXIMIZE: max, Direction.MINIMIZE: min}.get(self._work.get("direction", ""))
            known = {step: value for step, value in metrics.items() if math.isfinite(value)}
            value = (
                choose(known.values(), default=math.nan) if choose else known.get(max(known, default=0), math.nan)
            )
            return self._result(value, is_over=True)
        if status.state is not State.FINISHED:
            # The user stopped the run.
            raise InputError(f"run {self._run.id} ended before its training: {status.state}")
        if status.trials[0].diverged_at:
            self._reported = status.trials[0].diverged_at
            return self._result(math.nan, is_over=True)
        return self._result(metrics[max(metrics)], is_over=True)

    def _result(self, value: float, *, is_over: bool) -> dict[str, Any]:
        status = self._run.status()
        return {
            str(self._work["metric"]): value,
            "step": self._reported,
            "cost_usd": status.money.paid_usd,
            "revocations": status.revoked,
            tune.result.DONE: is_over and status.state in (State.FINISHED, State.GAVE_UP),
        }
