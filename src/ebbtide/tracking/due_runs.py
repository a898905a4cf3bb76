"""Runs of the jobs that are due: which there are, and bringing each to its end, once.

A run's name follows from its job and the time for which it is run. So whoever starts it again after it was killed
finds the same folder, and continues the run or reads how it ended; nothing is trained or paid for twice.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ebbtide.base.files import write_text
from ebbtide.base.utc import iso
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.run_state import ENDED, State, StopRequest, controller_pid, request_stop
from ebbtide.controller.team.account import is_of_team
from ebbtide.errors import CloudError, InputError
from ebbtide.forecasts.bundle import KEPT_MODELS, MANIFEST, ModelBundle
from ebbtide.jobs.job_list import runnable
from ebbtide.jobs.schedule import DueJob, due_at_s, read_due_jobs
from ebbtide.market.prices import PriceHistory
from ebbtide.runs.by_provider import end_machines
from ebbtide.runs.handle import PatientReads, Run
from ebbtide.runs.run import RunOptions, begin
from ebbtide.runs.settling import settle
from ebbtide.runs.start_local import LocalMarket
from ebbtide.tracking.live_tracking import abandon_tracking, begin_tracking, end_tracking, followed

_LOGGER = logging.getLogger(__name__)

# Real seconds between looks at a run.
_LOOK_S = 1.0

_DONE = "due.json"


@dataclass(frozen=True)
class DueRun:
    """Run of a job that is due.

    Attributes:
        job: The job that is run.
        due_s: Time for which it is run, seconds since 1970.
        runs: Folder in which runs are kept.
    """

    job: DueJob
    due_s: float
    runs: Path

    @property
    def run_id(self) -> str:
        """Name of the run, which every start of it has."""
        return self.job.run_id(self.due_s)

    @property
    def kept(self) -> RunFolder:
        """Folder of the run, which may not exist yet."""
        return RunFolder((self.runs / self.run_id).resolve())


@dataclass(frozen=True)
class DueResult:
    """Result of a due job's run.

    Attributes:
        job: Name of the job that was due.
        due: Time for which it was run, ISO 8601.
        run: Name of the run; empty: none was begun.
        state: State of the run in words, such as `finished`.
        problem: Reason why it did not finish, in one line; empty: it did.
        revocations: Number of machines that were revoked.
        cost_usd: USD paid, net of refunds.
        refund_usd: USD refunded of what was charged.
        on_demand_usd: Cost of the kept work at on-demand prices, USD.
        models: Version of each model that the policy asked, by name.
        late_s: Seconds by which it ran past its deadline, by the market's clock; 0: it did not.
    """

    job: str
    due: str
    run: str = ""
    state: str = str(State.NEW)
    problem: str = ""
    revocations: int = 0
    cost_usd: float = 0.0
    refund_usd: float = 0.0
    on_demand_usd: float = 0.0
    models: Mapping[str, str] | None = None
    late_s: float = 0.0

    @property
    def is_done(self) -> bool:
        """True if every job was trained to its end."""
        return self.state == State.FINISHED and not self.problem

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON and for tables."""
        return asdict(self)


def due_runs(jobs: str | Path, runs: Path, now_s: float) -> tuple[list[DueRun], Mapping[str, str]]:
    """The runs that are due, and what is wrong with files that cannot be read, by path.

    A run that was begun and not brought to its end is due, and no other of its job.

    Args:
        jobs: Folder with a file for each job.
        runs: Folder in which runs are kept.
        now_s: Time of the question in seconds since 1970.
    """
    known, problems = read_due_jobs(jobs)
    done = _done(runs)
    found = []
    for job in known:
        last_s = done.get(job.name)
        begun_s = max((at_s for at_s in _begun(job, runs) if last_s is None or at_s > last_s), default=None)
        due_s = due_at_s(job.content, last_s, now_s) if begun_s is None else begun_s
        if due_s is not None:
            found.append(DueRun(job, due_s, runs))
    return found, problems


def _begun(job: DueJob, runs: Path) -> list[float]:
    """The times for which there are runs of a job, seconds since 1970."""
    times = [job.due_s_of(path.parent.name) for path in runs.glob(f"{job.name}-*/run.json")]
    return [time_s for time_s in times if time_s is not None]


def _done(runs: Path) -> dict[str, float]:
    """The last time for which each job was brought to its end; runs may be deleted without being run again."""
    try:
        found: dict[str, float] = json.loads((runs.parent / _DONE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        file = runs.parent / _DONE
        raise InputError(
            f"is no record of jobs that were run ({error}); delete it to begin anew", file=file
        ) from None
    return found


def mark_done(results: Sequence[tuple[DueRun, DueResult]]) -> None:
    """Write down which jobs have been run for which time; those to be continued are left out."""
    for due, result in results:
        if _is_over(result.state, result.problem):
            done = _done(due.runs)
            done[due.job.name] = max(done.get(due.job.name, due.due_s), due.due_s)
            write_text(due.runs.parent / _DONE, json.dumps(done, indent=2) + "\n")


def _is_over(state: str, why: str) -> bool:
    """Return whether a run has ended for good: one that reached a limit of its team is continued another night."""
    return state in ENDED and not (state == State.GAVE_UP and is_of_team(why))


def bring_to_end(
    due: DueRun, uri: str, artifacts: Path, on_progress: Callable[[float], None] = lambda _share: None
) -> None:
    """Begin a run, or continue it, and wait for its end; one that has ended is only tracked to its end.

    Args:
        due: The run.
        uri: Tracking URI of MLflow, absolute; machines elsewhere need that of a server.
        artifacts: Folder for artifacts, if `uri` is a file.
        on_progress: Called every second with the share of the steps that are done, 0 to 1.

    Raises:
        InputError: The job's file or an option is wrong.
        EbbtideError: What ended the controller.
    """
    kept = due.kept
    if kept.is_begun and Run(kept).status().state is State.REFUSED:
        # Nothing was rented, and the job's file may have been corrected. Its local cloud may write there still.
        ended = end_machines(kept)
        if not ended.is_done:
            why = "; ".join(filter(None, [*ended.refused.values(), ended.problem]))
            raise CloudError(f"machines of {due.run_id} may still run: {why}")
        aside = kept.path.with_name(f".{kept.path.name}.refused")
        shutil.rmtree(aside, ignore_errors=True)
        kept.path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    run = Run(kept) if kept.is_begun else _begin(due)
    if controller_pid(kept.path) is not None:
        # Somebody resumed it by hand.
        run.wait()
    status = run.status()
    if not _is_over(status.state, status.why):
        tags = {"ebbtide.job": due.job.name, "ebbtide.due": iso(due.due_s)}
        try:
            begin_tracking(kept, uri, artifacts, tags)
        except CloudError as away:
            # Nobody is there to start the server: the run matters more.
            _LOGGER.warning("run %s is not tracked: %s", due.run_id, away)
        try:
            shares = PatientReads(0.0)
            with followed(kept):
                run.start()
                while not run.wait(_LOOK_S):
                    on_progress(shares.read(partial(progress_of, run)))
            error = run.error
        except BaseException as interrupted:
            abandon_tracking(kept, type(interrupted).__name__)
            raise
        if error is not None:
            abandon_tracking(kept, " ".join(str(error).split()) or type(error).__name__)
            raise error
    else:
        # Its controller may have been killed after the last line of the journal: its cloud has nothing to do.
        ended = end_machines(kept)
        if not ended.problem:
            settle(kept, ended.refused)
    end_tracking(kept)
    on_progress(progress_of(run))


def _begin(due: DueRun) -> Run:
    job, content = due.job, due.job.content
    options: RunOptions = {"runs": due.runs, "name": due.run_id, "seed": content.seed}
    if content.billing is not None:
        options["billing"] = content.billing
    if content.speed is not None:
        options["speed"] = content.speed
    if content.store is not None:
        here = (job.file.parent / content.store).resolve()
        options["store"] = content.store if "://" in content.store else str(here)
    if (spells := job.path("spells")) is not None:
        options["spells"] = spells
    if (machines := job.path("machines")) is not None:
        options["machines"] = machines
    bundle = job.path("models")
    models = None if bundle is None else ModelBundle.read(bundle)
    options["models"] = models
    prices = job.path("prices")
    history = None if prices is None else PriceHistory.read(prices)
    options["prices"] = history
    options["start"] = content.start
    if content.start is None and history is not None and models is not None:
        # A run on prices that its models were trained on would be judged on what they have seen.
        options["start"] = max(LocalMarket(history).begins_s, models.trained_until_s)
    try:
        asked = job.policy
        options["parameters"] = asked.parameters
        return begin(job.sweep(), job.code, asked.name, content.provider, options)
    except InputError as error:
        # What names no file is about the job's own.
        file = error.file or job.file
        raise InputError(
            error.problem, file=file, row=error.row, field=error.field, problems=error.problems
        ) from None


def progress_of(run: Run) -> float:
    """Share of a run's steps that are done; of its trials, where their number of steps is not known."""
    found = run.status()
    steps = runnable(run.kept.settings.sweep).steps
    if not found.trials:
        return 0.0
    if steps is None:
        return found.done / len(found.trials)
    # A trial that its policy stopped early counts whole.
    over = ("done", "ended early", "failed")
    done = sum(steps if trial.state in over else min(trial.steps_done or 0.0, steps) for trial in found.trials)
    return done / (steps * len(found.trials))


def result_of(due: DueRun, error: BaseException | None = None) -> DueResult:
    """Read the result of a due run from its folder; the same whoever asks, and whenever.

    Args:
        due: The run, which may never have been begun.
        error: Error that ended it here, told if its folder does not say how it ended; None: there was none.
    """
    problem = "" if error is None else " ".join(str(error).split()) or type(error).__name__
    kept = due.kept
    if not kept.is_begun:
        return DueResult(due.job.name, iso(due.due_s), problem=problem or "it was not begun")
    try:
        found = Run(kept).status()
    except InputError as unreadable:
        return DueResult(due.job.name, iso(due.due_s), due.run_id, problem=problem or str(unreadable))
    if found.state is State.FINISHED:
        problem = ""
    elif found.state in ENDED or not problem:
        failures = "; ".join(trial.failure for trial in found.failed)
        problem = failures or f"{found.state}{': ' * bool(found.why)}{found.why}"
    bundle = kept.path / KEPT_MODELS
    return DueResult(
        due.job.name,
        iso(due.due_s),
        due.run_id,
        str(found.state),
        problem,
        found.revoked,
        found.money.paid_usd,
        found.money.refund_usd,
        found.money.on_demand_usd,
        ModelBundle.read(bundle).versions if (bundle / MANIFEST).exists() else None,
        found.late_s,
    )


def unreadable(problems: Mapping[str, str]) -> list[DueResult]:
    """Results for files of due jobs that cannot be read: what is wrong with each, by its path."""
    return [DueResult(Path(file).stem, "", problem=problem) for file, problem in problems.items()]


def stop_runs(dues: Sequence[DueRun]) -> None:
    """Ask those runs that this process controls to save everything and give their machines back."""
    for due in dues:
        if due.kept.is_begun and controller_pid(due.kept.path) == os.getpid():
            request_stop(due.kept.path, StopRequest.STOP)


def failed(results: Sequence[DueResult]) -> str:
    """List the due jobs that did not finish, and why, in one line; empty: all did."""
    left = [f"{result.job}: {result.problem}" for result in results if not result.is_done]
    return f"{len(left)} of {len(results)} due jobs did not finish: {'; '.join(left)}" if left else ""
