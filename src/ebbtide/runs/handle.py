"""The handle of a live run, and the operations on a run: `resume`, `stop`, `status`."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from ebbtide.clouds.settings import RUNS, RunFolder, find_run
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.kinds.state import trial_id_of
from ebbtide.controller.run_state import (
    OVER,
    State,
    StopRequest,
    controller_of,
    controller_words,
    phase_of,
    request_stop,
    state_now,
)
from ebbtide.engine.explanation import Explanation
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError, JournalError, TrainingError
from ebbtide.forecasts.bundle import KEPT_MODELS, ModelBundle
from ebbtide.forecasts.capacity.models import SpellModels
from ebbtide.jobs.job_list import runnable
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.for_job import policy_with, within_budget
from ebbtide.policies.registry import POLICIES
from ebbtide.runs.by_provider import run_live
from ebbtide.runs.fetching import FetchedTrial, best_of, fetch_trial, ranks_of_trial
from ebbtide.runs.results import results_frame, results_html
from ebbtide.runs.status import RunStanding, standing_of
from ebbtide.runs.why import lease_named, told_of

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

# Models of capacity, in the run's folder.
_SPELLS = "spells.json"
# Marker file there: the policy was given as an object that its name does not lead to.
_OBJECT = "policy-is-an-object"
# Real seconds between checks of a run that another process controls.
_LOOK_S = 0.2
# Real seconds for which a program that watches a run waits for the run's journal to be readable.
_AWAY_S = 600.0
# The most failed trials that one error message describes.
_FAILURES_SHOWN = 3


class PatientReads(Generic[T]):
    """Repeated reads of a run's journal, which may be away for minutes: the run's controller waits for it, too.

    Args:
        last: What counts as read until a read succeeds.
    """

    def __init__(self, last: T) -> None:
        self.last, self._away_since_s = last, math.inf

    def read(self, read: Callable[[], T]) -> T:
        """Return what `read` returns, or while the journal cannot be read, what was read last.

        Raises:
            JournalError: The journal could not be read for ten minutes.
        """
        now_s = time.monotonic()
        try:
            self.last, self._away_since_s = read(), math.inf
        except JournalError:
            self._away_since_s = min(self._away_since_s, now_s)
            if now_s - self._away_since_s > _AWAY_S:
                raise
        return self.last


class Run:
    """A live run that this process or another controls, or that is over.

    Attributes:
        id: Name of the run, as `ebbtide status` lists it.
        folder: Path of the folder in which it is kept.
    """

    def __init__(self, folder: RunFolder, policy: Policy | None = None) -> None:
        self.id, self.folder = folder.path.name, folder.path
        self._kept, self._policy = folder, policy
        self._thread: threading.Thread | None = None
        self._begun = threading.Event()
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self.status().state}>"

    def _repr_html_(self) -> str:
        try:
            return results_html(self.status())
        except InputError as error:
            # The handle is shown even if, say, the journal is damaged.
            return f"<div>{escape(self.id)}: {escape(str(error))}</div>"

    @property
    def kept(self) -> RunFolder:
        """The run's folder, with its settings, journal and logs."""
        return self._kept

    @property
    def policy(self) -> Policy:
        """The policy that decides.

        Raises:
            InputError: The policy was given as an object to another process, and no name leads to it.
        """
        if self._policy is None:
            self._policy = _kept_policy(self._kept)
        return self._policy

    def start(self) -> Run:
        """Start the run's controller in a thread of this process, which goes on when the calling code has ended.

        Raises:
            InputError: The run has a controller already.
        """
        pid = controller_of(self._kept)
        if pid is not None or (self._thread is not None and self._thread.is_alive()):
            raise InputError(
                f"run {self.id} has a controller already ({'here' if pid is None else controller_words(pid)}); "
                f"`ebbtide status {self.id}` shows it"
            )
        policy = self.policy
        self._begun.clear()
        self._outcome = self._error = None
        self._thread = threading.Thread(target=self._control, args=(policy,), name=f"ebbtide {self.id}")
        self._thread.start()
        return self

    def status(self) -> RunStanding:
        """The run's state, trials, machines and money, as its controller last wrote them."""
        return standing_of(self._kept, self._kept.catalogue)

    def results(self) -> pd.DataFrame:
        """A data frame with a row for each trial, the best first: its parameters, the best and last value of the
        metric, its steps, state, checkpoint and problem."""
        return results_frame(self.status(), self._kept.settings)

    def logs(self, trial: int = 0) -> str:
        """Output of a trial's program so far, on all machines; empty: nothing yet.

        Args:
            trial: Number of the trial; a single job is trial 0.

        Raises:
            InputError: There is no such trial.
        """
        path = self._kept.log_of(self._trial_id(trial))
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def why(self, lease: int | str | None = None, *, trial: int | None = None) -> list[Explanation]:
        """Explain the policy's decisions: the offers and alternatives of each, its reason, cost and result so far.

        Args:
            lease: Machine, such as 3 or `m0003`, to which decisions are limited; None: all.
            trial: Number of the trial to which decisions are limited, including why it was ended; None: all.

        Raises:
            InputError: Nothing has been decided yet, or there is no such machine or trial.
        """
        told = told_of(self._kept)
        if trial is not None:
            about = told.of_trial(trial)
            return about if lease is None else [one for one in self.why(lease) if one in about]
        return told.all() if lease is None else told.of_lease(lease_named(self._kept, str(lease)))

    def fetch(self, trial: int = 0, into: str | Path | None = None, *, newest: bool = False) -> FetchedTrial:
        """Fetch a trial's best complete checkpoint, its outputs and its log, each verified by its checksum.

        Args:
            trial: Number of the trial; a single job is trial 0.
            into: Folder in which a folder for the trial is created; by default one named after the run.
            newest: Whether to fetch the newest checkpoint, as is done if there is no metric.

        Raises:
            InputError: The trial has stored nothing, or the folder holds something else.
        """
        best = "" if newest else best_of(self._kept, trial)
        ranks = ranks_of_trial(self._kept, trial)
        return fetch_trial(self._kept, self._trial_id(trial), Path(into or self.id), best=best, ranks=ranks)

    def stop(self) -> None:
        """Ask the run's controller to save everything and release its machines; `wait` returns when it has.

        The run can be resumed.

        Raises:
            InputError: No controller has the run.
        """
        # A controller that begins discards earlier requests.
        while self._thread is not None and self._thread.is_alive() and not self._begun.wait(_LOOK_S):
            pass
        if controller_of(self._kept) is None:
            state, _ = state_now(self._kept, phase_of(journal_of(self._kept, read_only=True)))
            hint = "there is nothing to stop" if state in OVER else f"`ebbtide down {self.id}` ends its machines"
            raise InputError(f"run {self.id} has no controller ({state}); {hint}")
        request_stop(self.folder, StopRequest.STOP)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the run's controller has ended; Ctrl-C meanwhile stops the run.

        Args:
            timeout_s: Most real seconds to wait; None: as long as it takes.

        Returns:
            Whether the controller has ended.
        """
        until_s = time.monotonic() + timeout_s if timeout_s is not None else None
        try:
            while self._is_controlled():
                left_s = _LOOK_S if until_s is None else min(until_s - time.monotonic(), _LOOK_S)
                if left_s <= 0:
                    return False
                if self._thread is not None:
                    self._thread.join(left_s)
                else:
                    time.sleep(left_s)
        except KeyboardInterrupt:
            with suppress(InputError):
                self.stop()
            raise
        return True

    @property
    def error(self) -> BaseException | None:
        """Exception that ended the controller that this handle started; None: it runs, or ended normally."""
        return self._error

    def result(self, timeout_s: float | None = None) -> Outcome:
        """Wait for the end of the run, and return its outcome: cost, revocations, every charge and event.

        Args:
            timeout_s: Most real seconds to wait; None: as long as it takes.

        Raises:
            TimeoutError: The run has not ended by then.
            InputError: Another process controlled the run, so that only `status` is known; or an input was wrong.
            TrainingError: All trials ended, and some failed; its `outcome` is what would have been returned.
            EbbtideError: The error that ended the controller.
        """
        if self._thread is None:
            raise InputError(f"run {self.id} was not started by this handle; its status() says how it ended")
        if not self.wait(timeout_s):
            raise TimeoutError(f"run {self.id} has not ended within {timeout_s:g} s")
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        found = self.status()
        if found.state is State.FAILED:
            raise TrainingError(_failures(found), self._outcome)
        return self._outcome

    def _is_controlled(self) -> bool:
        if self._thread is not None:
            return self._thread.is_alive()
        return controller_of(self._kept) is not None

    def _control(self, policy: Policy) -> None:
        try:
            self._outcome = run_live(self._kept, policy, lambda *_: self._begun.set())
        except BaseException as error:
            self._error = error
        finally:
            self._begun.set()

    def _trial_id(self, trial: int) -> str:
        trials = len(runnable(self._kept.settings.sweep).job_names)
        if not 0 <= trial < trials:
            raise InputError(f"run {self.id} has trials 0 to {trials - 1}, not {trial}")
        return trial_id_of(self.id, trial)


def _failures(found: RunStanding) -> str:
    """Describe the failed trials of a run, each with its reason; if there are many, only the first few."""
    shown = [trial.failure for trial in found.failed[:_FAILURES_SHOWN]]
    left = len(found.failed) - len(shown)
    more = [f"and {left} more, which `ebbtide status {found.run}` lists"] if left else []
    what = f"{len(found.failed)} of {len(found.trials)} trials failed"
    return f"run {found.run}: {what}: {'; '.join((*shown, *more))}"


def resume(run: str | None = None, *, runs: str | Path = RUNS, policy: Policy | None = None) -> Run:
    """Resume a run that was stopped, or whose controller was killed.

    Args:
        run: Name of the run; None or `latest`: the newest.
        runs: Folder in which runs are kept.
        policy: Decides from now on; by default the policy with which the run was started.

    Raises:
        InputError: There is no such run, it has a controller already, or its policy was an object, which has to be
            given again.
    """
    folder = find_run(Path(runs), run)
    sweep = runnable(folder.settings.sweep)
    return Run(folder, None if policy is None else within_budget(sweep, policy)).start()


def stop(run: str | None = None, *, runs: str | Path = RUNS) -> Run:
    """Ask a run to save everything and release its machines; its `wait` returns when it has.

    Args:
        run: Name of the run; None or `latest`: the newest.
        runs: Folder in which runs are kept.

    Raises:
        InputError: There is no such run, or no controller has it.
    """
    found = Run(find_run(Path(runs), run))
    found.stop()
    return found


def status(run: str | None = None, *, runs: str | Path = RUNS) -> RunStanding:
    """A run's state, trials, machines and money.

    Args:
        run: Name of the run; None or `latest`: the newest.
        runs: Folder in which runs are kept.

    Raises:
        InputError: There is no such run.
    """
    return Run(find_run(Path(runs), run)).status()


def keep_policy(
    folder: RunFolder, policy: str | Policy, spells: SpellModels | None, models: ModelBundle | None = None
) -> None:
    """Store in a run's folder what it needs to resume with the same policy.

    Args:
        folder: Folder of the run.
        policy: The policy that decides, a name or an object.
        spells: Models of how long capacity lasts; None: the default models.
        models: The bundle of trained models that the policy uses; None: none.
    """
    if spells is not None:
        spells.write(folder.path / _SPELLS)
    if models is not None:
        models.copy_to(folder.path / KEPT_MODELS)
    if not isinstance(policy, str) and not _is_named(policy):
        (folder.path / _OBJECT).touch()


def _is_named(policy: Policy) -> bool:
    """Return whether the registry has an equal policy under this policy's name."""
    return policy.name in POLICIES and POLICIES[policy.name]() == policy


def _kept_policy(folder: RunFolder) -> Policy:
    """The policy of a run that is resumed."""
    settings = folder.settings
    if (folder.path / _OBJECT).exists():
        raise InputError(
            f"policy {settings.policy} of run {settings.run} was given as an object: give it again, "
            "`eb.resume(run, policy=...)`"
        )
    spells, bundle = folder.path / _SPELLS, folder.path / KEPT_MODELS
    return policy_with(
        runnable(settings.sweep),
        settings.policy,
        settings.parameters,
        SpellModels.read(spells) if spells.exists() else None,
        ModelBundle.read(bundle) if bundle.exists() else None,
        folder.catalogue,
    )
