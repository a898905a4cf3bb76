"""Status of a live run: trials (the best first), machines and money, as its controller wrote them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ebbtide.base.json_values import finite
from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.settings import SIMULATED, LiveSettings, RunFolder
from ebbtide.controller.from_storage import from_storage_of
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.kinds.divergence import Divergence
from ebbtide.controller.kinds.state import TrialRecord, leases_on, trial_id_of
from ebbtide.controller.machine_list import machine_id
from ebbtide.controller.run_state import RunPhase, State, phase_of, state_now
from ebbtide.controller.snapshots import RunSnapshot, RunSpending, first_machine_of
from ebbtide.engine.snapshot import lease_of
from ebbtide.jobs.common_fields import Direction
from ebbtide.jobs.job_list import OneJob, Runnable, runnable
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.runs.cost_summary import Money, money_of, orphans_of
from ebbtide.runs.storage_requests import estimated_requests_usd

_ACTIVE = frozenset({State.RUNNING, State.STOPPING, State.GONE})


@dataclass(frozen=True)
class TrialStanding:
    """Status of one trial.

    Attributes:
        number: Number of the trial in its sweep, counted from 0.
        trial_id: Id of the trial in storage.
        setting: Its parameters as text, such as `lr=0.1`; in a list of jobs, after the name of its job.
        state: Its state in words, such as `training`.
        steps_done: Steps that its program has reported; None: it reports none.
        steps_saved: Step of the newest checkpoint; None: there is none.
        best: Best value of the metric; None: it reported none.
        best_step: Step of the best value; None: there is none.
        last: Last value of the metric that is a finite number; None: it reported none.
        kept: Value of the metric with which its best checkpoint was stored; None: there is none.
        kept_step: Step of that checkpoint.
        machine: Market of its present machine; empty: it is on none.
        checkpoint: Address of its checkpoints, or of the results of an array; empty: it has none.
        problem: Why it failed, in one line; empty: it has not.
        tail: The last lines that a failed program printed.
        warnings: Warnings for its user, one sentence each.
        diverged_at: Step at which its metric was last reported, if that is no finite number; 0: it is one.
    """

    number: int
    trial_id: str
    setting: str
    state: str
    steps_done: float | None
    steps_saved: float | None
    best: float | None
    best_step: int | None
    last: float | None
    kept: float | None
    kept_step: int
    machine: str
    checkpoint: str
    problem: str
    tail: tuple[str, ...]
    warnings: tuple[str, ...]
    diverged_at: int = 0

    @property
    def failure(self) -> str:
        """Description of the trial's failure, with its number and parameters, in one line."""
        setting = f" ({self.setting})" if self.setting else ""
        return f"trial {self.number}{setting} failed: {self.problem}"


@dataclass(frozen=True)
class RunStanding:
    """Status of a run.

    Attributes:
        run: Id of the run.
        state: Actual state of the run.
        why: Reason for that state in words; may be empty.
        pid: Process id of its controller; None: no controller runs now.
        policy: Name of the policy that decides.
        parameters: Its parameters that differ from the defaults, by name.
        metric: Name of the metric that trials are compared by; None: there is none.
        direction: Whether the metric is minimized or maximized.
        trials: Its trials, the best first, those without a metric last.
        done: Number of trials that have ended.
        money: What it has cost so far.
        rented: Number of machines that are rented now.
        rented_ever: Number of machines that were ever charged.
        revoked: Number of machines that were revoked.
        unended: Why the cloud refused to end a machine, by machine id.
        elapsed_s: Real seconds for which its controllers ran.
        rest_s: Estimate of the remaining real seconds, at the pace so far; None: not known.
        began_epoch_s: Start of the run in seconds since 1970; None: it has not begun.
        deadline_h: Deadline in hours after the start, by the market's clock; None: it has none.
        late_s: Seconds that it ran past its deadline, by the market's clock; 0: it did not.
        quarantined: Number of messages from storage that could not be read, and were set aside.
        tasks: Number of tasks; None: the run is not an array.
        jobs: Number of jobs; None: the run is not a list of jobs.
        budget_usd: The most that may be spent, USD; None: it has no budget.
        provider: Who rents its machines out, such as `local` or `ec2`.
        unknown: The part of its payments that is not known, in words; empty: all are known.
        requests_usd_estimate: Estimated cost of requests to its storage, USD, which no other sum includes.
    """

    run: str
    state: State
    why: str
    pid: int | None
    policy: str
    parameters: Mapping[str, Any]
    metric: str | None
    direction: Direction
    trials: tuple[TrialStanding, ...]
    done: int
    money: Money
    rented: int
    rented_ever: int
    revoked: int
    unended: Mapping[str, str]
    elapsed_s: float
    rest_s: float | None
    began_epoch_s: float | None
    deadline_h: float | None = None
    late_s: float = 0.0
    quarantined: int = 0
    tasks: int | None = None
    jobs: int | None = None
    budget_usd: float | None = None
    provider: str = ""
    unknown: str = ""
    requests_usd_estimate: float = 0.0

    @property
    def is_simulated(self) -> bool:
        """True if the run's market is replayed, so that no money was spent."""
        return self.provider in SIMULATED

    @property
    def best(self) -> TrialStanding | None:
        """The trial with the best metric, without failed ones; also a single training without a metric. None for a
        list of jobs."""
        sound = [trial for trial in self.trials if not trial.problem]
        if self.jobs is not None:
            return None
        if self.metric is None or len(self.trials) == 1:
            return sound[0] if len(sound) == 1 else None
        return next((trial for trial in sound if trial.best is not None), None)

    @property
    def failed(self) -> tuple[TrialStanding, ...]:
        """Trials that failed, in order of their numbers."""
        return tuple(sorted((trial for trial in self.trials if trial.problem), key=lambda trial: trial.number))

    def as_plain(self) -> dict[str, Any]:
        """Plain values for JSON; what is not known is null."""
        best = self.best
        values = asdict(self) | {
            "state": str(self.state),
            "direction": str(self.direction),
            "best": None if best is None else best.number,
            "is_simulated": self.is_simulated,
        }
        values["money"]["saved_share"] = self.money.saved_share
        found: dict[str, Any] = finite(values)
        return found


def standing_of(folder: RunFolder, catalogue: Catalogue) -> RunStanding:
    """Status of a run, as its journal has it.

    Raises:
        InputError: There is no such run, or its journal cannot be read.
    """
    journal = journal_of(folder, read_only=True)
    with journal.connected():
        phase = phase_of(journal)
        state, pid = state_now(folder, phase)
        kept, figures = journal.run(decisions=False, metrics=False), journal.figures()
        unended, from_storage = journal.state("unended"), from_storage_of(journal)
    orphans = orphans_of(folder) if state is State.GONE else None
    if kept is not None and orphans is not None:
        figures, ended = orphans
        for values in kept["engine"]["leases"]:
            if values["lease_id"] in ended:
                values["state"] = str(LeaseState.RELEASED)
    return standing(
        folder.settings,
        kept,
        figures,
        phase,
        state,
        pid,
        unended or {},
        catalogue,
        "" if from_storage is None else str(from_storage),
    )


def standing(
    settings: LiveSettings,
    kept: RunSnapshot | None,
    figures: RunSpending | None,
    phase: RunPhase | None,
    state: State,
    pid: int | None,
    unended: Mapping[str, str],
    catalogue: Catalogue,
    unknown: str = "",
) -> RunStanding:
    """Status of a run from what its controller wrote down.

    Args:
        settings: What the run was started with.
        kept: The controller's snapshot; None: there is none yet.
        figures: The controller's last figures on open leases; None: there are none yet. If the controller is gone,
            they include what its machines have cost since.
        phase: Phase in the run's journal; None: no controller has started.
        state: Actual state of the run.
        pid: Process id of its controller; None: no controller runs.
        unended: Why the cloud refused to end a machine, by machine id.
        catalogue: Instance types and list prices.
        unknown: The part of its payments that is not known, in words; empty: all are known.
    """
    work, now_s = runnable(settings.sweep), time.time()
    why = phase.why if phase is not None and state not in (State.RUNNING, State.STOPPING) else ""
    if kept is None:
        nothing = Money(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        return RunStanding(
            settings.run,
            state,
            why,
            pid,
            settings.policy,
            settings.parameters,
            work.metric,
            work.direction,
            (),
            0,
            nothing,
            0,
            0,
            0,
            unended,
            0.0,
            None,
            None,
            budget_usd=work.budget_usd,
            provider=settings.provider,
            unknown=unknown,
        )
    later_s = _later_s(figures, state, now_s)
    leases = [lease_of(values) for values in kept["engine"]["leases"]]
    trials = [
        _trial(settings, work.part_of(number)[0], number, name, job, live, leases, state)
        for number, (name, job, live) in enumerate(
            zip(
                work.setting_names,
                kept["engine"]["jobs"],
                kept["provider"]["trials"],
                strict=True,
            )
        )
    ]
    elapsed_s = phase.elapsed_s(now_s) if phase is not None else 0.0
    if state is State.GONE and phase is not None:
        elapsed_s = phase.elapsed_s(figures["at_epoch_s"] if figures else now_s)
    first = first_machine_of(kept)
    known = {machine_id(settings.run, first + lease_id): why for lease_id, why in kept["provider"]["unended"]}
    refused = known if state in _ACTIVE else unended
    money = money_of(kept, catalogue, figures, later_s=later_s)
    if state not in _ACTIVE and not refused:
        money = replace(money, usd_per_hour=0.0)
    return RunStanding(
        settings.run,
        state,
        why,
        pid,
        settings.policy,
        settings.parameters,
        work.metric,
        work.direction,
        tuple(trials if work.is_list else sorted(trials, key=lambda trial: _place(trial, work.direction))),
        sum(not math.isnan(job["finished_s"]) for job in kept["engine"]["jobs"]),
        money,
        sum(lease.is_open for lease in leases) if state in _ACTIVE else len(refused),
        sum(lease.is_charged for lease in leases),
        sum(lease.state == "revoked" for lease in leases),
        refused,
        elapsed_s,
        _rest_s(work, kept, elapsed_s) if state is State.RUNNING else None,
        phase.first_began_epoch_s if phase is not None else None,
        work.deadline_h,
        _late_s(work.deadline_h, kept, figures),
        kept["provider"]["quarantined"],
        work.steps if work.kind == "array" else None,
        len(work.parts) if work.is_list else None,
        work.budget_usd,
        settings.provider,
        unknown,
        estimated_requests_usd(settings, leases, figures["time_s"] if figures else math.nan),
    )


def _late_s(deadline_h: float | None, kept: RunSnapshot, figures: RunSpending | None) -> float:
    """Seconds past the deadline until the last trial ended, or until now while some are open."""
    started_s = kept["engine"]["started_s"]
    if deadline_h is None or started_s is None:
        return 0.0
    ended_s = max((float(job["finished_s"]) for job in kept["engine"]["jobs"]), default=math.nan)
    if any(math.isnan(job["finished_s"]) for job in kept["engine"]["jobs"]):
        ended_s = figures["time_s"] if figures else math.nan
    late_s = ended_s - started_s - deadline_h * HOUR_S
    return late_s if late_s > 0.0 else 0.0


def _later_s(figures: RunSpending | None, state: State, now_s: float) -> float:
    """Market seconds since the figures in which machines cost money; 0 if no controller runs."""
    if figures is None or state not in (State.RUNNING, State.STOPPING):
        return 0.0
    return max(now_s - float(figures["at_epoch_s"]), 0.0) * float(figures.get("speed", 1.0))


def _trial(
    settings: LiveSettings,
    sweep: OneJob,
    number: int,
    name: str,
    job: Mapping[str, Any],
    live: TrialRecord,
    leases: Sequence[Lease],
    state: State,
) -> TrialStanding:
    trial_id = trial_id_of(settings.run, number)
    metrics = dict(live["metrics"])
    best_step = None
    if metrics:
        choose = max if sweep.direction is Direction.MAXIMIZE else min
        best_step = choose(metrics, key=metrics.__getitem__)
    on = [leases[lease_id] for lease_id in leases_on(live)] if state in _ACTIVE else []
    has_saved = job["checkpoints"] > 0 or live["began_number"] > 0
    diverged_at = Divergence(**live["divergence"]).at
    return TrialStanding(
        number,
        trial_id,
        name,
        _words(job, live, on, state),
        job["steps_done"] if job["steps_done"] or metrics else None,
        job["steps_saved"] if has_saved else None,
        None if best_step is None else metrics[best_step],
        best_step,
        metrics[max(metrics)] if metrics else None,
        None if math.isnan(live["best_stored"]) else live["best_stored"],
        live["best_stored_step"],
        _markets_of(on),
        f"{settings.store}/{'results' if sweep.kind == 'array' else 'trials'}/{trial_id}" if has_saved else "",
        live["problem"],
        tuple(live["tail"]),
        (*live["warnings"], *([_diverged(diverged_at)] if diverged_at else ())),
        diverged_at,
    )


def _diverged(step: int) -> str:
    return (
        f"its metric is no finite number at step {step}, the last that it reported: its best value is an older one"
    )


def _markets_of(leases: Sequence[Lease]) -> str:
    """Market of a trial's machine, or the number of machines in each of its markets; empty: it is on none."""
    counts = Counter(str(lease.market) for lease in leases)
    if len(leases) <= 1:
        return "".join(counts)
    return ", ".join(f"{count} x {market}" for market, count in sorted(counts.items()))


def _words(job: Mapping[str, Any], live: TrialRecord, on: Sequence[Lease], state: State) -> str:
    if not math.isnan(job["finished_s"]):
        if live["problem"]:
            return "failed"
        if job["stopped"] and live["attempt"] == 0:
            return "not begun"
        return "ended early" if job["stopped"] else "done"
    if state not in _ACTIVE:
        return "unfinished"
    if on:
        is_noticed = any(lease.state == "noticed" for lease in on)
        if live["tasks"] is not None:
            return "stopping" if job["stopped"] else "running"
        return "saving" if live["leaving"] or is_noticed else "training"
    return "starting" if live["assigned"] else "waiting"


def _place(trial: TrialStanding, direction: Direction) -> tuple[bool, bool, bool, float, int]:
    """Key of trials from the best to the worst: one that has diverged may have had the best metric before."""
    has_failed, has_diverged, value = bool(trial.problem), trial.diverged_at > 0, trial.best
    if value is None:
        return has_failed, has_diverged, True, 0.0, trial.number
    return has_failed, has_diverged, False, -value if direction is Direction.MAXIMIZE else value, trial.number


def _rest_s(work: Runnable, kept: RunSnapshot, elapsed_s: float) -> float | None:
    """Estimate of the remaining real seconds, at the pace of all trials so far; None for a list of jobs."""
    jobs, steps = kept["engine"]["jobs"], work.steps
    if steps is None:
        return None
    done = math.fsum(job["steps_done"] for job in jobs)
    left = math.fsum(max(steps - job["steps_done"], 0.0) for job in jobs if math.isnan(job["finished_s"]))
    return left / done * elapsed_s if done > 0 and elapsed_s > 0 else None
