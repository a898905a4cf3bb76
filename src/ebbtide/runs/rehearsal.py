"""Rehearse an interruption: a short copy of a job on the local cloud, whose machine is revoked with a notice.

The job trains in real time. Some seconds after its first step, the cloud is asked to revoke its machine, as EC2's
Fault Injection Service would be. The job is told to save and leave at once, and resumes on a new machine. Once it
has made a step there and saved again, everything is ended.
"""

from __future__ import annotations

import math
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ebbtide.agent.messages import MessageLog, Unreadable
from ebbtide.agent.protocol import REPORTS, Channel, Noticed, Report, Restored, Saved, key_of
from ebbtide.clouds.local.client import LocalCloud
from ebbtide.clouds.settings import NewRun, RunFolder
from ebbtide.controller.run_state import StopRequest, request_stop
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import CloudError, InputError
from ebbtide.forecasts.hazard.model import default_hazard
from ebbtide.jobs.job import Job
from ebbtide.jobs.job_list import Runnable
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.billing import billing_preset
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.actions import Action, Assign, Request, Save, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.view import View
from ebbtide.runs.rehearsal_figures import Records, Rehearsal, Stopped, rehearsed
from ebbtide.runs.start_local import LocalMarket, begin_local, cloud_place, end_local, prices_of, run_local
from ebbtide.storage.objects import object_store

if TYPE_CHECKING:
    from ebbtide.controller.agent_provider import AgentProvider
    from ebbtide.controller.kinds.state import TrialState
    from ebbtide.engine.engine import Engine

# A market without change, so that only the rehearsal revokes a machine. Times are in real seconds.
_MARKET = Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")
_START_S, _LAST_S, _USD = 1_433_160_000.0, 48 * 3600.0, 0.03
_BOOTS_S = (0.2, 0.2)
# A billing preset without a notice of its own, so that the notice is as long as requested.
_BILLING = "per-second"
# Seconds after which a market that has just refused a machine is asked again.
_AGAIN_S = 30.0
# Wait for the next save after the resumption: this multiple of the time between two saves, plus these seconds.
_SAVES_WAITED, _SAVE_WAITED_S = 3.0, 15.0
_SAVE_EVERY_S = 2.0
# Kinds of work that are not rehearsed: why, and the field that makes them so.
_NOT_REHEARSED = {
    "list": ("is a list of jobs; rehearse them one by one, each from a file of its own", "jobs"),
    "array": ("an array is not rehearsed: a task that is interrupted begins again; give a job", "tasks"),
    "cluster": ("the head of a cluster is on demand, and never revoked; give a job", "framework"),
}
# A place in a Python traceback.
_PLACE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
# The agent's lines in a log that explain a rehearsal.
_EXPLAINS = ("SIGTERM was passed on", "not stored")
_ENDING = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class RehearsalSettings:
    """Settings of a rehearsed interruption.

    Attributes:
        after_s: Seconds of training, from the end of the first step, after which the notice comes.
        notice_s: Length of the notice in seconds.
        patience_s: Longest time in seconds on each machine from the start of the program to its first step, and on
            the second from that step to its next save.
        runs: Folder in which the run is kept while it lasts, and afterwards if something went wrong.
        store: Where checkpoints go; empty: into the run's folder.
    """

    after_s: float
    notice_s: float
    patience_s: float
    runs: Path
    store: str = ""


@dataclass(frozen=True)
class OneAfterTheOther:
    """Policy with one machine; at its notice the job leaves at once, resumes on a new machine, and saves there.

    Attributes:
        market: Market in which machines are rented; None: the spot market with the lowest cost per step.
        name: Name of the policy.
        wakes_on: No events beyond those that are always delivered.
    """

    market: Market | None = _MARKET
    name: str = "rehearsal"
    wakes_on: frozenset[Wake] = frozenset()

    def decide(self, view: View) -> Iterable[Action]:
        for job in view.jobs:
            steady = [lease for lease in view.leases_of(job.job_id) if math.isinf(lease.revoke_at_s)]
            if any(event.wake is Wake.NOTICE for event in view.events):
                view.memory["noticed"] = True
            if not job.is_finished and view.memory.get("noticed"):
                # Have the job save again on the new machine.
                yield WakeAt(view.now_s + _SAVE_EVERY_S)
                if steady:
                    yield Save(job.job_id)
            if job.is_finished or steady:
                continue
            if any(event.wake is Wake.NOTICE for event in view.events):
                yield Assign(job.job_id, ())
            if any(
                event.wake in (Wake.START, Wake.NOTICE, Wake.LAUNCH_FAILED, Wake.TIMER) for event in view.events
            ):
                market = self.market or _cheapest(view, job.job)
                if market is None or any(event.wake is Wake.LAUNCH_FAILED for event in view.events):
                    yield WakeAt(view.now_s + _AGAIN_S)
                else:
                    yield Request(market, job=job.job_id)


def _cheapest(view: View, job: Job) -> Market | None:
    """The spot market with the lowest cost per step now; None: none can run the job."""
    able = [market for market in view.markets if view.steps_per_s(job, market) > 0]
    return min(able, key=lambda one: (view.price(one) / view.steps_per_s(job, one), one), default=None)


def notice_of(work: Runnable) -> float:
    """Length of a notice in seconds, by the billing of a job.

    Raises:
        InputError: The job's billing gives no notice.
    """
    found = billing_preset(work.billing).notice_s
    if not found:
        raise InputError(
            f"billing {work.billing} gives no notice; say how long it is with --notice-s 120", field="billing"
        )
    return found


def rehearsable(work: Runnable) -> Sweep:
    """The first trial of a job or sweep, prepared for a rehearsal: on any machine, without budget and deadline.

    Raises:
        InputError: It is a list of jobs, an array, a cluster, or trains on several machines.
    """
    if work.kind != "sweep":
        problem, field = _NOT_REHEARSED[work.kind]
        raise InputError(problem, field=field)
    if work.machines != 1:
        raise InputError("is rehearsed on one machine so far: write `machines: 1`", field="machines")
    values = work.trials()[0].values
    kept = ("name", "command", "entry_point", "metric", "direction", "max_trial_steps", "checkpoints")
    content = {name: getattr(work, name) for name in kept}
    content |= {"list": [values] if work.has_choice else None, "billing": _BILLING}
    return validated(Sweep, content)


def rehearse(
    sweep: Sweep, folder: Path, settings: RehearsalSettings, say: Callable[[str], None] = lambda _line: None
) -> Rehearsal:
    """Interrupt a short copy of a job on the local cloud.

    Args:
        sweep: The job, as `rehearsable` gives it.
        folder: Folder of its code, in which it runs.
        settings: How it is rehearsed.
        say: Called with a line of text at each stage.

    Raises:
        InputError: Its program does not exist, or the local cloud does not start.
    """
    # Prices in a file end with their last change, so add one long after any rehearsal.
    times_s, usd = np.array([_START_S - 3600.0, _START_S + _LAST_S]), np.array([_USD, 1.1 * _USD])
    prices = PriceHistory({_MARKET: PriceSeries(times_s, usd)}, start_s=times_s[0], end_s=times_s[1] + 3600.0)
    # One market second is one real second, so all figures are in real time.
    market = LocalMarket(prices, _START_S, 1.0, notice_s=settings.notice_s, boots_s=_BOOTS_S)
    run = begin_local(
        sweep, folder, NewRun(settings.runs), market, policy=OneAfterTheOther.name, store=settings.store
    )

    def interrupt(_lease_id: int) -> bool:
        cloud = LocalCloud(cloud_place(run), prices_of(run))
        # A machine that is about to end cannot be interrupted, and then there is no other.
        with suppress(CloudError):
            return max(map(cloud.interrupt, cloud.processes()), default=False)
        return False

    watch = Watch(run, settings, interrupt, say)
    is_whole = False
    try:
        with ends_on_signals():
            outcome = run_local(run, OneAfterTheOther(), watch.looked).outcome
        found = watch.figures(outcome)
        is_whole = not found.problem
        return found
    except KeyboardInterrupt:
        is_whole = True
        raise
    finally:
        end_local(run)
        forget_if(is_whole, run, say)


def forget_if(is_whole: bool, run: RunFolder, say: Callable[[str], None]) -> None:
    """Remove a rehearsal's run if it is complete, else say where to find the program's output."""
    if is_whole:
        shutil.rmtree(run.path, ignore_errors=True)
    else:
        say(f"what the program printed: ebbtide logs {run.path.name}")


@dataclass
class Watch:
    """Watches the run of a rehearsal, has its machine revoked, and requests its end.

    Attributes:
        run: Folder of the run.
        settings: How it is rehearsed.
        interrupt: Requests the revocation of a lease's machine; returns whether it will be revoked.
        say: Called with a line of text at each stage.
        stopped: Why the rehearsal is over; None: it is not.
        failure: Last lines of a program that failed.
        ordered_s: When the job was ordered onto its second machine, seconds since 1970; NaN: never.
        failed_on: Number of the machine on which the program failed, counted from 1; 0: it did not.
    """

    run: RunFolder
    settings: RehearsalSettings
    interrupt: Callable[[int], bool]
    say: Callable[[str], None]
    stopped: Stopped | None = None
    failure: str = ""
    ordered_s: float = math.nan
    failed_on: int = 0
    _stepped_s: float | None = None
    _noticed: bool = False
    _went_on_s: float | None = None
    _saves_again_s: float = math.inf
    _saved_before: bool = False
    _said: set[str] = field(default_factory=set)
    _regions: dict[int, str] = field(default_factory=dict)

    def region_of(self, lease_id: int) -> str:
        """The region in which a machine was rented."""
        return self._regions[lease_id]

    def figures(self, outcome: Outcome) -> Rehearsal:
        """Compute the figures of the rehearsal, whose run has ended."""
        if outcome.finished and self.stopped is None:
            self.stopped = self._finished()
        self._explain()
        return rehearsed(self.records([lease.lease_id for lease in outcome.leases]))

    def _finished(self) -> Stopped:
        """Reason why the rehearsal is over, once the program has ended by itself."""
        # It may also have done its last step at the notice, and have nothing left to do on the new machine.
        return Stopped.FINISHED if self._went_on_s is None else Stopped.RESUMED

    def _explain(self) -> None:
        """Repeat what the agents have logged about the program's processes and files."""
        for log in sorted(self.run.log_of("").parent.glob("*.log")):
            for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
                if "ebbtide:" in line and any(words in line for words in _EXPLAINS):
                    self._once(line.partition("ebbtide:")[2].strip())

    def looked(self, engine: Engine, provider: AgentProvider) -> None:
        """Do what is due; called at each poll of the controller."""
        (trial,) = provider.trainings
        self._regions = {lease.lease_id: lease.market.region for lease in engine.all_leases}
        if self.stopped is not None or not trial.attempt:
            return
        now_s = time.time()
        if trial.failures or trial.aside or trial.problem:
            self.failure = failure_of(trial.tail) or trial.problem
            self.failed_on = 1 if math.isnan(self.ordered_s) else 2
            self._stop(Stopped.FAILED)
        elif not self._noticed:
            self._before(trial, now_s)
        elif trial.attempt > 1:
            self._after(trial, now_s)

    def _before(self, trial: TrialState, now_s: float) -> None:
        self._once("the program is starting")
        if trial.ended:
            self.stopped = Stopped.FINISHED
        elif self._stepped_s is None:
            if trial.progress.steps_done > trial.began_step:
                self._stepped_s = now_s
                self._once(f"it trains; its machine gets its notice in {self.settings.after_s:g} s")
            elif now_s - trial.began_epoch_s > self.settings.patience_s:
                self._stop(Stopped.NO_STEP)
        elif now_s - self._stepped_s >= self.settings.after_s:
            (lease_id,) = (member.lease_id for member in trial.members[:1])
            self._noticed = self.interrupt(lease_id)
            if self._noticed:
                self._once(f"notice of {self.settings.notice_s:g} s; the program is asked to save and leave")

    def _after(self, trial: TrialState, now_s: float) -> None:
        if math.isnan(self.ordered_s):
            self.ordered_s = trial.began_epoch_s
            self._once("the program resumes on a new machine")
        is_on = trial.resumed == trial.attempt and trial.progress.steps_done > trial.began_step
        if is_on and self._went_on_s is None:
            self._went_on_s = now_s
            self._saved_before, next_save_s = self._before_the_notice()
            patience_s = self.settings.patience_s
            self._saves_again_s = patience_s if self._saved_before else min(next_save_s, patience_s)
            self._once("it trains on; it is waited for until it has saved again")
        waited_s = now_s - self._went_on_s if self._went_on_s is not None else 0.0
        if is_on and trial.has_saved:
            self._stop(Stopped.RESUMED)
        elif waited_s > self._saves_again_s:
            self._stop(Stopped.NOT_SAVED if self._saved_before else Stopped.RESUMED)
        elif trial.ended:
            self.stopped = self._finished()
        elif self._went_on_s is None and now_s - self.ordered_s > self.settings.patience_s:
            self._stop(Stopped.NOT_RESUMED)

    def _before_the_notice(self) -> tuple[bool, float]:
        """Tell whether the program saved while it trained, and in how many seconds it will have saved again."""
        first = min(self._regions)
        reports = list(_reports(self.run, first))
        notices = [report.taken_at_s - self.settings.notice_s for report in reports if isinstance(report, Noticed)]
        saved_s = [report.stored_s for report in reports if isinstance(report, Saved)]
        times_s = [report.told_s for report in reports if isinstance(report, Restored)]
        earlier_s = [at_s for at_s in saved_s if notices and at_s <= notices[0]]
        times_s += earlier_s
        longest_s = max((after - before for before, after in pairwise(times_s)), default=0.0)
        return bool(earlier_s), _SAVE_WAITED_S + _SAVES_WAITED * longest_s

    def _once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.say(line)

    def _stop(self, why: Stopped) -> None:
        self.stopped = why
        request_stop(self.run.path, StopRequest.DOWN)

    def records(self, lease_ids: Iterable[int]) -> Records:
        """Collect the records of the rehearsal, once it is over."""
        reports = [list(_reports(self.run, lease_id)) for lease_id in lease_ids]
        # A machine that never booted has no reports.
        first, second = ([*(each for each in reports if each), [], []])[:2]
        stopped = self.stopped or Stopped.NOT_RESUMED
        return Records(
            notice_s=self.settings.notice_s,
            first=first,
            second=second,
            ordered_s=self.ordered_s,
            mttr_s=default_hazard().usual_life_s(()),
            stopped=stopped,
            failure=self.failure,
            failed_on=self.failed_on,
        )


def failure_of(tail: Sequence[str]) -> str:
    """Describe a program's failure by the last line that it printed, and the line of the user's code.

    Args:
        tail: Last lines that the program printed, the newest last.
    """
    last = next((line.strip() for line in reversed(tail) if line.strip()), "")
    places = [match for line in tail if (match := _PLACE.search(line)) and "site-packages" not in match["file"]]
    own = [match for match in places if "/code/" in match["file"]]
    if not own:
        return last
    return f"{last} ({own[-1]['file'].rpartition('/code/')[2]}, line {own[-1]['line']})"


def _reports(run: RunFolder, lease_id: int) -> Iterator[Report]:
    """All that a machine has reported."""
    settings = run.settings
    machine = f"{settings.run}-m{lease_id:04d}"
    log = MessageLog(object_store(settings.store), Channel(machine, REPORTS, key_of(run.key, machine)))
    for found in log.new():
        if not isinstance(found, Unreadable) and found.message is not None:
            yield found.message  # type: ignore[misc]


@contextmanager
def ends_on_signals() -> Iterator[None]:
    """Let `kill` and a closed terminal end the `with` block as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
