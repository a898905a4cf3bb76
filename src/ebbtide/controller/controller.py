"""The controller of a live run: the engine over agents, written down so that a killed run can be resumed."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.clouds.cloud import Cloud
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.agent_provider import AgentProvider, Callbacks, PollIntervals
from ebbtide.controller.from_storage import FROM_STORAGE, from_storage_of
from ebbtide.controller.journal.changes import NOTHING, ChangeLog
from ebbtide.controller.journal.journal import Journal, Moment, journal_of
from ebbtide.controller.journal.price_log import PriceLog
from ebbtide.controller.kinds.assignments import (
    arrays_of,
    clusters_of,
    command_of,
    inputs_of,
    programs_of,
    secrets_of,
)
from ebbtide.controller.leadership import (
    Leadership,
    LostJournalError,
    OthersRunError,
    SupersededError,
    check_has_claim,
)
from ebbtide.controller.policy_watchdog import Attendant
from ebbtide.controller.progress_news import ProgressNews
from ebbtide.controller.run_logs import append_line
from ebbtide.controller.run_state import (
    RunPhase,
    State,
    StopRequest,
    controlling,
    forget_stop,
    phase_of,
    requested_stop,
)
from ebbtide.controller.snapshots import OutcomeRecord, RunSpending
from ebbtide.controller.spending_gate import SpendingGate
from ebbtide.controller.team.account import TeamAccount
from ebbtide.controller.team.account_lines import AccountLine, WallClock, lines_of
from ebbtide.engine.engine import Engine
from ebbtide.engine.outcome import Outcome
from ebbtide.engine.snapshot import restore
from ebbtide.errors import CloudError, InputError, JournalError, JournalWentBackError
from ebbtide.jobs.job_list import runnable
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.billing import billing_preset
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.api.protocol import Policy
from ebbtide.storage.objects import ObjectStore, object_store

_LOGGER = logging.getLogger(__name__)

# Real seconds to wait for saves. A machine that cannot save in two minutes could not save after a notice either.
_GRACE_S = {StopRequest.STOP: 150.0, StopRequest.DOWN: 20.0}
# The same after a limit has ended the run, when no user waits.
_ENDED_GRACE_S = 600.0
# After the run, seconds and polls (the longer counts) to go on ending machines that the cloud refused to end.
_LAST_ENDS_S, _LAST_ENDS_POLLS = 40.0, 10
# The same when a user waits, and the cloud refuses or does not answer.
_ASKED_ENDS_S = 3.0
_KEEPING_SHARE = 20.0
# Seconds to retry a request to storage; after that the next poll repeats it, and sees a user's request, too.
_STORAGE_S = 8.0
_POLL_AGAIN_S, _WARN_AGAIN_S = 0.5, 60.0
# Longest waits for storage that lacks what the run wrote there: with machines that are paid, and without.
_MISSED_S, _MISSED_WITHOUT_MACHINES_S = 300.0, 3600.0
# Journal states that other code writes.
_KEPT_STATES = ("tracking", "environment", FROM_STORAGE)
# Seconds without any machine after which the user is warned, since the run looks as if it hung.
_IDLE_S = 60.0
# Events that stay in memory after the journal has them.
_MOMENTS_KEPT = 5_000
# Limits count as reached this many polls early: one poll may be just over, and the next may be late.
_LOOKS_LEAD = 2.0

OnProgress = Callable[[Engine, AgentProvider], None]


@dataclass(frozen=True)
class Programs:
    """Settings with which the programs of all trials are started.

    Attributes:
        mttr_s: Mean real seconds until a machine is revoked; how often training saves follows from it.
        python: Python on the machines, used for `python` in a command.
        code: Key in the store of the user's code; empty: machines read it from the same folder as the controller.
    """

    mttr_s: float
    python: str = sys.executable
    code: str = ""


@dataclass(frozen=True)
class Outside:
    """Clock, storage, journal and team accounts of a controller: all that it depends on besides the cloud.

    Attributes:
        runtime: Gives the time, and waits.
        objects: The storage of the run.
        journal: The journal of the run.
        accounts: Store of the accounts of its team; None: the one that the team names.
    """

    runtime: Runtime
    objects: ObjectStore
    journal: Journal
    accounts: ObjectStore | None = None

    @classmethod
    def of(cls, folder: RunFolder) -> Outside:
        """The system clock, with the storage and journal that the run's settings name."""
        return cls(RUNTIME, object_store(folder.settings.store, within_s=_STORAGE_S), journal_of(folder))


class Controller:
    """Runs a sweep on a cloud, or resumes it.

    Args:
        folder: Folder of the run.
        policy: The policy that decides.
        cloud: The cloud that rents machines out.
        agent: Configuration of all agents.
        programs: How the programs of its trials are started.
        pace: How often cloud and storage are polled.
        outside: Its clock, storage and journal; by default those of the run's folder.
    """

    def __init__(
        self,
        folder: RunFolder,
        policy: Policy,
        cloud: Cloud,
        agent: AgentConfig,
        programs: Programs,
        pace: PollIntervals = PollIntervals(),
        outside: Outside | None = None,
    ) -> None:
        outside = outside or Outside.of(folder)
        self._runtime = outside.runtime
        self._folder, self._settings = folder, folder.settings
        self._work = runnable(self._settings.sweep)
        self._programs, self._pace = programs, pace
        self._catalogue = catalogue = folder.catalogue
        self._journal = outside.journal
        # Environment variables of a trial's program, by the trial's number as text.
        self._environment: Mapping[str, Mapping[str, str]] = self._journal.state("environment") or {}
        self._objects = outside.objects
        self._progress_news = ProgressNews()
        self._provider = AgentProvider(
            cloud,
            self._objects,
            agent,
            Callbacks(
                self._assignment,
                self._log,
                self._polled,
                lambda job_id: self._work.part_of(job_id)[0].metric,
                arrays_of(self._work, catalogue),
                clusters_of(self._work),
                programs_of(self._work),
                secrets_of(self._work),
                self._settings.fingerprint,
                lambda machines: self._account is None or self._account.holds(machines),
            ),
            key=folder.key,
            pace=pace,
            runtime=self._runtime,
        )
        self._from_storage = from_storage_of(self._journal)
        if self._from_storage is not None:
            self._provider.begin_at(self._from_storage.first_machine)
        self._on_progress: OnProgress | None = None
        self._moments_kept = 0
        # Other states in the journal, to be written again if its database loses them.
        self._states = {name: kept for name in _KEPT_STATES if (kept := self._journal.state(name)) is not None}
        self._figures_s, self._figures_took_s = -math.inf, 0.0
        self._known_figures: RunSpending | None = None
        self._account = TeamAccount.of(folder, self._runtime, outside.accounts)
        speed = self._settings.options.get("speed", 1.0)
        lead_s = 1.0 + speed * _LOOKS_LEAD * max(pace.poll_s, _POLL_AGAIN_S)
        self._gate = SpendingGate(policy, self._work.budget_usd, self._account, lead_s, self._runtime)
        policy = self._gate.limited(lambda: len(self._provider.unended))
        self._phase: RunPhase | None = None
        self._stopping: StopRequest | None = None
        # Unless the journal shows that it has not.
        self._has_rented = True
        self._end_by_s = math.inf
        self._kept_s, self._keeping_s = -math.inf, 0.0
        self._rented_s, self._warned_idle = self._runtime.monotonic_s(), False
        self._attendant = Attendant(
            self._waits_no_more, self._provider.beat, self._runtime, lambda: self._is_spent("the policy thought")
        )
        self._engine = Engine(
            policy,
            self._work.live_jobs(catalogue),
            self._provider,
            billing_preset(self._work.billing),
            catalogue=catalogue,
            goals=Goals.of(self._work),
            seed=self._settings.seed,
            record=True,
            keep=self._keep,
            interruptible=self._attendant.interruptible,
        )
        self._changes = ChangeLog(self._engine, self._provider)
        self._prices = PriceLog(self._engine)

    def run(self, on_progress: OnProgress | None = None) -> Outcome:
        """Run to the end, or until a stop is requested.

        Args:
            on_progress: Called with engine and provider whenever something has happened, and at each poll.

        Raises:
            InputError: Another controller has the run, or a problem that only its user can solve ends it.
        """
        self._on_progress = on_progress
        with controlling(self._folder.path, self._runtime), self._journal.controlled():
            forget_stop(self._folder.path)
            self._phase = self._begun()
            try:
                kept = self._journal.run()
                if kept is not None:
                    self._journal.decoded(restore, self._engine, kept["engine"])
                    self._provider.resume_from(kept["provider"], self._engine.all_leases)
                    self._engine.resume()
                self._go_on_with_account(is_resumed=kept is not None)
                self._provider.claim_run(self._claim())
                # Before, nobody knows what has been rented: the journal may be damaged, lost, or new after a loss.
                self._has_rented = bool(self._engine.all_leases) or self._from_storage is not None
                if not self._engine.leases:
                    self._gate.check()
                self._write({"phase": self._phase.encode(), "outcome": None}, has_begun=False)
                if self._runtime is RUNTIME:
                    self._attendant.begin()
                outcome = self._engine.run()
                outcome = self._end_remaining(outcome)
            except BaseException as error:
                why = " ".join(str(error).split()) or type(error).__name__
                ended = self._phase.end(self._broken_as(error), why)
                if not isinstance(error, SupersededError):
                    # After a takeover, the account is the other controller's to write.
                    with suppress(Exception):
                        self._note_account(self._figures(), str(ended.state), is_last=True)
                    with suppress(JournalError, SupersededError):
                        self._journal.keep({"phase": ended.encode(), "unended": self._provider.unended})
                raise
            finally:
                self._attendant.end()
            figures = self._figures()
            self._note_account(figures, str(self._ended_as(outcome)), is_last=True)
            self._write(
                {
                    "figures": figures,
                    "outcome": _summary(outcome, self._provider),
                    "unended": self._provider.unended,
                    "phase": self._phase.end(self._ended_as(outcome), outcome.gave_up).encode(),
                }
            )
            return outcome

    def _end_remaining(self, outcome: Outcome) -> Outcome:
        """End machines that the cloud refused to end before, and charge all for as long as they ran."""
        within_s = max(_LAST_ENDS_S, _LAST_ENDS_POLLS * self._pace.poll_s)
        corrected = self._provider.end_remaining(within_s, _ASKED_ENDS_S if self._waits_no_more() else within_s)
        for lease in corrected:
            self._engine.settle_again(lease)
        with suppress(CloudError, InputError):
            self._engine.settle_all_again()
        ledger = outcome.ledger
        return replace(outcome, cost_usd=ledger.total_usd, refund_usd=ledger.refund_usd)

    @property
    def provider(self) -> AgentProvider:
        """The provider, with the machines and trials of the run."""
        return self._provider

    @property
    def engine(self) -> Engine:
        """The engine, with the leases, jobs and bills of the run."""
        return self._engine

    def _begun(self) -> RunPhase:
        figures = self._journal.figures()
        before = phase_of(self._journal)
        last_seen_s = figures["at_epoch_s"] if figures else before.began_epoch_s if before else 0.0
        return RunPhase.begin(before, os.getpid(), last_seen_s)

    def _broken_as(self, error: BaseException) -> State:
        if isinstance(error, LostJournalError):
            return State.LOST
        if isinstance(error, SupersededError):
            return State.ELSEWHERE
        may_have_rented = self._has_rented and not isinstance(error, OthersRunError)
        if self._engine.all_leases or may_have_rented or not isinstance(error, InputError):
            return State.BROKEN
        return State.REFUSED

    def _ended_as(self, outcome: Outcome) -> State:
        if outcome.finished:
            return State.FAILED if any(trial.problem for trial in self._provider.trials) else State.FINISHED
        if self._stopping is not None:
            return State.DOWN if self._stopping is StopRequest.DOWN else State.STOPPED
        return State.GAVE_UP

    def _keep(self, engine: Engine) -> None:
        """Obey requests and write down the state; the engine calls this before it waits."""
        self._obey(engine)
        self._write(self._due_figures())
        if self._on_progress is not None:
            self._on_progress(engine, self._provider)

    def _obey(self, engine: Engine) -> None:
        """Do what the run's user requested, if anything, and end the run when a limit is reached."""
        request = requested_stop(self._folder.path)
        if request is not None and request is not self._stopping:
            self._stopping = request
            self._end_by_s = self._runtime.monotonic_s() + _GRACE_S[request]
            if not engine.gave_up:
                engine.give_up("stopped by its user")
        elif self._gate.why and not engine.gave_up:
            engine.give_up(self._gate.why)
        if engine.gave_up and math.isinf(self._end_by_s):
            # Do not pay for ever for machines that do not answer.
            self._end_by_s = self._runtime.monotonic_s() + _ENDED_GRACE_S
        if self._runtime.monotonic_s() >= self._ends_by_s:
            engine.end_all()

    @property
    def _ends_by_s(self) -> float:
        """Deadline for saves; earlier if storage or cloud does not answer."""
        shorter_s = _GRACE_S[StopRequest.STOP] - _GRACE_S[StopRequest.DOWN]
        no_answer = self._stopping is StopRequest.STOP and self._provider.trouble
        return self._end_by_s - shorter_s if no_answer else self._end_by_s

    def _polled(self) -> bool:
        """Called at each poll; returns whether the engine is to stop waiting, for its user or for a limit."""
        now_s = self._runtime.monotonic_s()
        # Writing the state of thousands of trials takes a while, so it is limited to a small share of the time.
        if now_s - self._kept_s >= max(self._pace.kept_s, _KEEPING_SHARE * self._keeping_s):
            self._write(self._due_figures())
        if self._on_progress is not None:
            self._on_progress(self._engine, self._provider)
        self._watch_idleness(now_s)
        if now_s >= self._ends_by_s or (self._gate.closes_at_poll(self._engine.view) and not self._engine.gave_up):
            return True
        request = requested_stop(self._folder.path)
        return request is not None and (request is not self._stopping or not self._engine.leases)

    def _watch_idleness(self, now_s: float) -> None:
        """Warn about a policy that has had no machine for long: it may wait for a price, or for ever."""
        if self._engine.leases or self._stopping is not None:
            self._rented_s, self._warned_idle = now_s, False
        elif now_s - self._rented_s > _IDLE_S and not self._warned_idle:
            self._warned_idle = True
            _LOGGER.warning(
                "policy %s has had no machine for %.0f s, and asks for none: it waits for a price or an event, or "
                "never rents; `ebbtide stop` ends it",
                self._engine.policy.name,
                _IDLE_S,
            )

    def _write(self, states: dict[str, Any], *, has_begun: bool = True) -> None:
        """Write states, new events and the run's changes to the journal, all or nothing.

        While the journal cannot be written (a full disk, a lock, a server that is away), the controller only sends
        heartbeats, and machines train on. Only if the user stops the run or a limit is reached does the run go on
        without writing, to release its machines.
        """
        began_s, warned_s = self._runtime.monotonic_s(), -math.inf
        moments, changes = self._moments(), self._changes.changes() if has_begun else NOTHING
        prices = self._prices.changes() if has_begun else ()
        while True:
            try:
                self._journal.keep(states, moments, changes, prices)
                self._states |= states
                self._moments_kept += len(moments)
                self._drop_moments()
                if has_begun:
                    self._changes.written()
                    self._provider.written()
                    self._prices.written()
                break
            except JournalWentBackError as error:
                _LOGGER.warning("%s; all of the run is written again", error)
                self._moments_kept = max(self._moments_kept - error.lost_events, 0)
                self._changes.forget()
                self._prices = PriceLog(self._engine)
                moments, changes = self._moments(), self._changes.changes() if has_begun else NOTHING
                prices = self._prices.changes() if has_begun else ()
                states = {**self._states, **states}
            except JournalError as error:
                if not error.is_passing:
                    raise
                now_s = self._runtime.monotonic_s()
                if now_s - warned_s >= _WARN_AGAIN_S:
                    warned_s = now_s
                    _LOGGER.warning("the run's journal cannot be written: %s; the run waits until it can", error)
                if self._waits_no_more() or (has_begun and self._has_spent_all()):
                    break
                self._provider.beat()
                self._runtime.sleep(_POLL_AGAIN_S)
        self._kept_s = self._runtime.monotonic_s()
        self._keeping_s = self._kept_s - began_s

    def _has_spent_all(self) -> bool:
        """End the run if a limit is reached: nothing else checks limits while the journal cannot be written."""
        if self._is_spent("the journal could not be written") and not self._engine.gave_up:
            self._engine.give_up(self._gate.why)
        return bool(self._gate.why) and bool(self._engine.leases)

    def _is_spent(self, when: str) -> bool:
        """Tell whether a limit is reached while the controller waits, and keep the team's account up to date."""
        self._due_figures()
        return self._gate.closes(self._engine.view, when)

    def _waits_no_more(self) -> bool:
        """Return whether the user has requested a stop, which ends waits for disk or storage."""
        return requested_stop(self._folder.path) is not None

    def _claim(self) -> Leadership:
        """Claim the run in storage, retrying until storage answers.

        Raises:
            InputError: The user requested a stop before storage answered, or the run is somebody else's.
            SupersededError: This is an older copy of the run.
        """
        warned_s, claim, run, known = -math.inf, None, self._settings.run, self._provider.known_epoch
        # An unmounted folder is empty. What is gone for good is not waited for without end.
        waits_s = _MISSED_S if self._provider.has_open_machines() else _MISSED_WITHOUT_MACHINES_S
        until_s = self._runtime.monotonic_s() + waits_s
        while True:
            try:
                if claim is None and self._runtime.monotonic_s() < until_s:
                    check_has_claim(self._objects, run, known)
                self._provider.check_is_newest()
                if claim is not None:
                    return claim
                # Checked once more after this: until then, another controller may have rented.
                claim = Leadership.take(self._objects, run, self._folder.key, known)
            except OSError as error:
                now_s = self._runtime.monotonic_s()
                if now_s - warned_s >= _WARN_AGAIN_S:
                    warned_s = now_s
                    _LOGGER.warning("the run's storage does not answer: %s; asked again", error)
                if self._waits_no_more():
                    raise InputError(f"stopped by its user before the run's storage answered: {error}") from None
                self._runtime.sleep(_POLL_AGAIN_S)

    def _due_figures(self) -> dict[str, Any]:
        """The state `figures`, or nothing if it is too soon: figures of thousands of machines take a while."""
        began_s = self._runtime.monotonic_s()
        if began_s - self._figures_s < _KEEPING_SHARE * self._figures_took_s:
            return {}
        figures = self._figures()
        self._note_account(figures, str(State.RUNNING))
        self._figures_s = self._runtime.monotonic_s()
        self._figures_took_s = self._figures_s - began_s
        return {"figures": figures}

    def _figures(self) -> RunSpending:
        """Compute the spending so far, open leases included, for other processes that show it."""
        engine, now_s = self._engine, self._engine.now_s
        rented = [lease for lease in engine.leases if lease.is_charged]
        try:
            open_usd = list(engine.open_usd.items())
            spent_usd = engine.spent_with(usd for _, usd in open_usd)
            rate = math.fsum(
                (engine.on_demand_price(lease.market) or 0.0) if lease.on_demand else engine.price(lease.market)
                for lease in rented
            )
        except (CloudError, InputError):
            spent_usd, rate, open_usd = None, None, []
        return {
            "time_s": now_s,
            "at_epoch_s": self._runtime.epoch_s(),
            "spent_usd": spent_usd,
            "usd_per_hour": rate,
            "speed": self._settings.options.get("speed", 1.0),
            "open_usd": open_usd,
        }

    def _go_on_with_account(self, *, is_resumed: bool) -> None:
        """Tell the run's account what was spent before, and in which month."""
        figures = self._journal.figures()
        if self._account is not None:
            known = self._lines(figures) if is_resumed and figures is not None else self._lost_lines
            self._account.go_on(known, self._lost_lines)

    @property
    def _lost_lines(self) -> list[AccountLine]:
        """Lines of the run's account from before its journal was lost."""
        return [] if self._from_storage is None else self._from_storage.lines

    def _lines(self, figures: RunSpending) -> list[AccountLine]:
        """Every amount of the run, for its team."""
        engine = self._engine
        # A lease that has ended since is in the ledger.
        open_usd = {number: usd for number, usd in figures["open_usd"] if engine.all_leases[number].is_open}
        return [
            *self._lost_lines,
            *lines_of(engine.ledger, engine.all_leases, open_usd, WallClock.of(figures)),
        ]

    def _note_account(self, figures: RunSpending, state: str, *, is_last: bool = False) -> None:
        """Write the run's account for its team, if it has a team and the account is due."""
        if figures["spent_usd"] is None:
            # Prices are unknown at the moment: use the last known figures, with the present number of machines.
            figures = self._known_figures or figures
        if self._account is None or figures["spent_usd"] is None:
            return
        self._known_figures = figures
        engine = self._engine
        self._account.note(
            lambda: self._lines(figures),
            len(engine.leases) + len(self._provider.unended),
            figures["usd_per_hour"] or 0.0,
            state,
            is_last=is_last,
        )

    def _drop_moments(self) -> None:
        """Drop old events that are written, but keep more than a database is likely to lose in a failover."""
        if len(self._engine.timeline) > 2 * _MOMENTS_KEPT:
            self._engine.timeline.drop_before(self._moments_kept - _MOMENTS_KEPT)

    def _moments(self) -> list[Moment]:
        """Events that the journal does not have yet."""
        new = self._engine.timeline.since(self._moments_kept)
        return [(moment.time_s, moment.what, moment.lease_id, moment.job_id, moment.detail) for moment in new]

    def _assignment(self, progress: JobProgress) -> Assignment:
        sweep, trial = self._work.part_of(progress.job_id)
        return Assignment(
            "",
            command_of(sweep, trial.number, self._programs.python),
            sweep.steps or 0,
            sweep.metric or "",
            environment=self._environment.get(str(progress.job_id), {}),
            mttr_s=self._programs.mttr_s,
            cwd="" if self._programs.code else self._settings.sweep_folder,
            code=self._programs.code,
            checkpoints=sweep.checkpoints or "",
            reads_log=sweep.kind != "array",
            direction=str(sweep.direction) if sweep.metric and sweep.kind == "sweep" else "",
            progress=sweep.progress or "",
            inputs=inputs_of(self._work, progress.job_id, self._settings.run, self._provider.trials),
            secrets=tuple(sweep.secrets),
        )

    def _log(self, trial_id: str, line: str) -> None:
        """Append a line that a program printed to its log; a failure to do so must not stop the run."""
        self._progress_news.hear(trial_id, line)
        try:
            append_line(self._folder.log_of(trial_id), line)
        except OSError as error:
            _LOGGER.warning("what trial %s prints cannot be kept: %s", trial_id, error)


def metrics_of(folder: RunFolder) -> list[dict[int, float]]:
    """Metrics of a run's trials: values by step, one mapping per trial."""
    kept = journal_of(folder, read_only=True).run(decisions=False)
    return [dict(trial["metrics"]) for trial in kept["provider"]["trials"]] if kept else []


def _summary(outcome: Outcome, provider: AgentProvider) -> OutcomeRecord:
    return {
        "failed": [trial.progress.job_id for trial in provider.trials if trial.problem],
        "finished": outcome.finished,
        "gave_up": outcome.gave_up,
        "start_s": outcome.start_s,
        "end_s": outcome.end_s,
        "cost_usd": outcome.cost_usd,
        "refund_usd": outcome.refund_usd,
        "revocations": outcome.revocations,
        "checkpoints": outcome.checkpoints,
        "steps_lost": outcome.steps_lost,
    }
