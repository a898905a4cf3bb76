"""The provider of real machines: a cloud rents them out, their agents train on them.

It compares the wanted state with the actual one, and gives orders until both are the same. Every request can be
repeated without harm, so a controller may be killed at any instant and another may resume the run.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ebbtide.engine.snapshot import Items, event_of, event_values
from ebbtide.errors import CloudError, CloudGoneError, InputError
from ebbtide.jobs.progress import JobProgress
from ebbtide.live.agent.config import AgentConfig, Assignment
from ebbtide.live.agent.heartbeats import Heartbeats
from ebbtide.live.agent.protocol import (
    Down,
    End,
    Log,
    Noticed,
    Rebalance,
    Report,
    Stepped,
    Stranded,
    Up,
    key_of,
)
from ebbtide.live.agent_state import Trial, trial_values
from ebbtide.live.agent_training import AgentTraining
from ebbtide.live.checkpoints.store import CheckpointStore
from ebbtide.live.claims import Claim, SupersededError
from ebbtide.live.clouds.cloud import Cloud, Instance, Wanted
from ebbtide.live.mailboxes import Mailboxes
from ebbtide.live.runtime import RUNTIME, Runtime
from ebbtide.live.snapshots import PROVIDER_VERSION, ProviderSnapshot
from ebbtide.live.storage import ObjectStore
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats, PriceSeries
from ebbtide.policies.api.events import Event, Wake

_LOGGER = logging.getLogger(__name__)

# After so many machines in a row that ended before their agent reported, the set-up is at fault.
_MOST_FAILED_BOOTS = 3
_LISTED_NO_MORE = "the cloud lists it no more; charged up to when it was last seen"

# Real seconds for which the end of a machine is requested before the run continues without an answer.
_ENDS_WITHIN_S, _ASKED_AGAIN_S = 5.0, 0.5
_WARN_AGAIN_S = 60.0
# A cloud that did not answer a request to end a machine is not asked to end another for so long.
_SILENT_S = 5.0
# Machines are requested for so long before everything else is looked at; while machines are ended, they are listed
# anew after so long.
_LAUNCHING_S, _LISTED_AGAIN_S = 3.0, 1.0

_OVER = frozenset({LeaseState.RELEASED, LeaseState.REVOKED, LeaseState.FAILED})


@dataclass(frozen=True)
class Pace:
    """How often a run looks at its cloud, and how long it waits for a machine that is not listed.

    Attributes:
        poll_s: Real seconds between looks at cloud and storage.
        missing_s: Real seconds after which a machine that the cloud no longer lists counts as ended.
        many: So many events of one look are told together, so that one decision answers them all.
    """

    poll_s: float = 0.1
    missing_s: float = 120.0
    many: int = 16


@dataclass(frozen=True)
class Callbacks:
    """What a provider asks its controller, and what it tells it.

    Attributes:
        assignment: Gives the assignment of a job's agent, all but its attempt.
        log: Called with a trial's id and a line that its program printed.
        polled: Called at each poll; returns whether the engine is to stop waiting, for a request of its user.
    """

    assignment: Callable[[JobProgress], Assignment]
    log: Callable[[str, str], None] = lambda _trial, _line: None
    polled: Callable[[], bool] = lambda: False


class AgentProvider:
    """Runs jobs by agents, each job on one machine at a time.

    Args:
        cloud: The cloud that rents machines out.
        objects: Storage for checkpoints, orders and reports.
        agent: Configuration of all agents; the machine is filled in. Machines and trials are named by its run.
        callbacks: What the controller gives and is told.
        key: The run's key, from which those of its machines are made.
        metric: Name of the metric that trials are compared by; None: there is none.
        pace: How often cloud and storage are looked at.
        runtime: Gives the time, and waits.
    """

    def __init__(
        self,
        cloud: Cloud,
        objects: ObjectStore,
        agent: AgentConfig,
        callbacks: Callbacks,
        *,
        key: bytes,
        metric: str | None = None,
        pace: Pace = Pace(),
        runtime: Runtime = RUNTIME,
    ) -> None:
        self._runtime = runtime
        self._cloud, self._agent, self._run = cloud, agent, agent.run
        self._polled, self._log = callbacks.polled, callbacks.log
        self._pace = pace
        self._leases: dict[int, Lease] = {}
        self._key = key
        self._claim: Claim | None = None
        self._is_superseded = False
        self._mailboxes = Mailboxes(objects, key, self._token, runtime=runtime)
        self._training = AgentTraining(
            agent.run,
            callbacks.assignment,
            self._mailboxes.order,
            self._notify,
            lambda: self.now_s,
            has_checkpoint=lambda trial, number: CheckpointStore(objects, trial, runtime).has(number),
            log=callbacks.log,
            metric=metric,
            runtime=runtime,
        )
        self._launching: deque[int] = deque()
        self._out: deque[Event] = deque()
        self._kept: ProviderSnapshot | None = None
        self._heartbeats = Heartbeats(objects, agent.run, agent.controller_limit_s)
        self._beat_s, self._beating = -math.inf, threading.Lock()
        self._failed_boots, self._began_s = 0, -math.inf
        # Why the cloud refused to end a machine, by lease id.
        self._unended: dict[int, str] = {}
        self._silent_until_s = -math.inf
        self._seen_s: dict[int, float] = {}
        self._missing_since_s: dict[int, float] = {}
        # The machines by id, as the cloud listed them last.
        self._listed: dict[str, Instance] = {}
        self._listed_s = -math.inf
        self._trouble, self._trouble_warned_s = "", -math.inf
        # The price of each market at the last look; None: prices are not watched, or not looked at yet.
        self._watches_prices = False
        self._price_seen: dict[Market, float] | None = None

    def check_is_newest(self) -> None:
        """Refuse to act where others have rented since, who would lose their machines to an older copy of the run.

        A cloud that does not answer is asked again at each look.

        Raises:
            InputError: The cloud has a machine that was rented after this copy of the run's folder was made.
        """
        with suppress(CloudError):
            self._check_known(instance.token for instance in self._cloud.instances())

    def claim_run(self, claim: Claim) -> None:
        """Act only while this claim to the run is the newest. Without one nobody else can have it."""
        self._claim, self._mailboxes.epoch = claim, claim.epoch

    # What the engine asks.

    @property
    def now_s(self) -> float:
        return self._cloud.now_s

    @property
    def is_over(self) -> bool:
        return self._cloud.is_over

    @property
    def markets(self) -> Sequence[Market]:
        return self._cloud.markets

    def prices(self, market: Market) -> PriceSeries:
        return self._cloud.prices(market)

    @property
    def trials(self) -> Sequence[Trial]:
        """The trials, one for each job."""
        return self._training.trials

    def start(self, jobs: Sequence[JobProgress], *, watch_prices: bool) -> None:
        self._training.begin(jobs)
        self._began_s = self.now_s
        self._watches_prices = watch_prices
        if self._kept is not None:
            self._restore(self._kept)

    def launch(self, lease: Lease) -> None:
        self._leases[lease.lease_id] = lease
        self._launching.append(lease.lease_id)

    def terminate(self, lease: Lease) -> None:
        """End the machine now, since its cost is known only then. A refused request is repeated at later looks.

        A controller that another has taken over from ends nothing: its machines are the other's now.
        """
        if self._is_superseded:
            return
        ended_s, instance = self._end(lease)
        if instance is not None:
            self._times(lease, instance)
        lease.state = LeaseState.RELEASED if lease.is_charged else LeaseState.FAILED
        if instance is not None and instance.state is LeaseState.REVOKED:
            # Revoked before it could be released, which may cost a different amount.
            lease.state = LeaseState.REVOKED
        lease.ended_s = ended_s if ended_s is not None else self.now_s
        self._training.gone(lease)

    def _end(self, lease: Lease) -> tuple[float | None, Instance | None]:
        """Request the end of a machine, and repeat that for a while if there is no answer.

        Returns:
            The time of its end, None: not known; and the machine as the cloud has it, None: not known.
        """
        now_s = self._runtime.monotonic_s()
        until_s = now_s + (0.0 if self._unended else _ENDS_WITHIN_S)
        while True:
            try:
                if self._unended and now_s < self._silent_until_s:
                    # Many may be waiting for their end, and an answer that never comes takes seconds each.
                    raise CloudError(self._trouble or "the cloud does not answer")
                ended_s = self._cloud.terminate(self._token(lease.lease_id))
                self._silent_until_s = -math.inf
                # Where the cloud knows of none, what it listed before says nothing.
                if ended_s is None or self._runtime.monotonic_s() - self._listed_s >= _LISTED_AGAIN_S:
                    self._list()
                instance = self._listed.get(self._token(lease.lease_id))
                if ended_s is None and instance is None and lease.is_charged:
                    # The cloud knows it no more: it was gone before.
                    ended_s = self._last_seen_s(lease)
                return ended_s, instance
            except CloudError as error:
                if isinstance(error, CloudGoneError):
                    return None, None
                self._troubled(error)
                if not error.is_refusal and now_s >= self._silent_until_s:
                    self._silent_until_s = self._runtime.monotonic_s() + _SILENT_S
                if error.is_refusal or self._runtime.monotonic_s() >= until_s:
                    self._unended[lease.lease_id] = str(error)
                    # The agent may be able to end its machine where the controller may not.
                    self._mailboxes.order(lease.lease_id, End())
                    return None, None
                self.beat()
                self._runtime.sleep(self._pace.poll_s)

    def end_remaining(self, within_s: float) -> list[Lease]:
        """After the run, request again the end of machines that the cloud refused to end, and see how all ended.

        Args:
            within_s: Real seconds after which this is given up.

        Returns:
            The leases whose machines ended in another way than they were charged for.
        """
        otherwise: dict[int, Lease] = {}
        until_s, is_seen = self._runtime.monotonic_s() + within_s, False
        while not is_seen or self._unended:
            try:
                instances = self._list()
                is_seen = True
            except CloudGoneError:
                self._unended.clear()
                break
            except CloudError as error:
                self._troubled(error)
                self._unended = dict.fromkeys(self._unended, str(error))
            else:
                for lease_id, lease in self._leases.items():
                    instance = instances.get(self._token(lease_id))
                    if self._has_ended(lease, instance):
                        otherwise[lease_id] = lease
                    # A listing may be older than the end of a machine.
                    is_seen &= instance is None or instance.state in _OVER
            with suppress(OSError):
                self._mailboxes.write(self._unended)
            if self._runtime.monotonic_s() >= until_s:
                break
            if not is_seen or self._unended:
                self._runtime.sleep(max(self._pace.poll_s, _ASKED_AGAIN_S))
        return list(otherwise.values())

    @property
    def unended(self) -> dict[str, str]:
        """Why the cloud refused to end a machine, by machine id."""
        return {self._token(lease_id): why for lease_id, why in self._unended.items()}

    @property
    def trouble(self) -> str:
        """Why the cloud or storage did not answer at the last look; empty: both answered."""
        return self._trouble

    def assign(self, job_id: int, leases: Sequence[Lease]) -> None:
        self._training.assign(job_id, leases)

    def in_use(self, lease: Lease) -> bool:
        return self._training.in_use(lease)

    def save(self, job_id: int) -> None:
        self._training.save(job_id)

    def stop(self, job_id: int) -> None:
        self._training.stop(job_id)

    def wake_at_step(self, job_id: int, step: int) -> None:
        self._training.wake_at_step(job_id, step)

    def measured(self, job_id: int) -> tuple[Floats, Floats]:
        return self._training.measured(job_id)

    def measured_steps_per_s(self, job_id: int, market: Market) -> float | None:
        return self._training.speeds.measured(job_id, market.instance_type)

    def steps_per_s(self, job_id: int, market: Market, declared: float) -> float:
        return self._training.speeds.steps_per_s(job_id, market.instance_type, declared)

    def refresh(self) -> None:
        """Progress is up to date as of the last reports."""

    def next_event(self, until_s: float) -> Event | None:
        while True:
            self.beat()
            if self._polled():
                return Event(Wake.STOP_REQUESTED, self.now_s)
            try:
                self._look()
                self._trouble = ""
            except CloudGoneError:
                raise
            except (CloudError, OSError) as error:
                self._troubled(error)
            if self._out:
                return self._out.popleft()
            if self.is_over or self.now_s >= until_s:
                return None
            self._runtime.sleep(self._pace.poll_s)

    def burst(self) -> Sequence[Event]:
        if len(self._out) + 1 < self._pace.many:
            return ()
        events = tuple(self._out)
        self._out.clear()
        return events

    def close(self) -> None:
        """Nothing to do: programs end with their machines."""

    # Snapshots.

    def snapshot(self) -> ProviderSnapshot:
        """The provider's state as plain values; the engine's snapshot has leases and jobs."""
        return {
            **self.rest(),  # type: ignore[typeddict-item]
            "trials": [trial_values(trial) for trial in self.trials],
            "mailboxes": self._mailboxes.items.values(),
            "speeds": self._training.speeds.snapshot(),
        }

    @property
    def items(self) -> tuple[Items, ...]:
        """The parts of the state that grow with the run; metrics, which are only added, are with the trials."""
        return self._training.items, self._mailboxes.items, self._training.speeds.items

    def rest(self) -> dict[str, Any]:
        """The state without what `items` gives, and without metrics."""
        seen: dict[float, list[int]] = {}
        for lease_id, seen_s in self._seen_s.items():
            if self._leases[lease_id].is_open or lease_id in self._unended:
                seen.setdefault(seen_s, []).append(lease_id)
        return {
            "version": PROVIDER_VERSION,
            "leases": sorted(self._leases),
            "launching": list(self._launching),
            "out": [event_values(event) for event in self._out],
            "unended": list(self._unended.items()),
            "seen": list(seen.items()),
            "quarantined": self._mailboxes.quarantined,
            "quarantine": list(self._mailboxes.quarantine),
        }

    def resume_from(self, kept: ProviderSnapshot, leases: Sequence[Lease]) -> None:
        """Continue from a snapshot when the run starts.

        Args:
            kept: Plain values that `snapshot` gave.
            leases: All leases of the restored engine, by lease id.
        """
        self._kept = kept
        self._leases = {lease_id: leases[lease_id] for lease_id in kept["leases"]}

    def _restore(self, kept: ProviderSnapshot) -> None:
        self._training.restore(kept["trials"], self._leases)
        self._training.speeds.restore(kept["speeds"])
        self._mailboxes.restore(kept["mailboxes"])
        self._mailboxes.quarantined, self._mailboxes.quarantine = kept["quarantined"], list(kept["quarantine"])
        self._launching.extend(kept["launching"])
        # A request that may not have reached the cloud is repeated.
        asked = set(self._launching)
        self._launching.extend(
            lease_id
            for lease_id, lease in self._leases.items()
            if lease.state is LeaseState.REQUESTED and lease_id not in asked
        )
        self._out.extend(event_of(values) for values in kept["out"])
        self._unended = {int(lease_id): why for lease_id, why in kept["unended"]}
        self._seen_s = {int(lease_id): seen_s for seen_s, lease_ids in kept["seen"] for lease_id in lease_ids}

    # Machines.

    def _look(self) -> None:
        self._check_claim()
        # Thousands of requests take a while, and everything else waits for it.
        until_s = self._runtime.monotonic_s() + _LAUNCHING_S
        for _ in range(len(self._launching)):
            if self._runtime.monotonic_s() >= until_s:
                break
            self.beat()
            lease_id = self._launching.popleft()
            try:
                self._launch(self._leases[lease_id])
            except CloudGoneError:
                self._launching.append(lease_id)
                raise
            except CloudError as error:
                self._troubled(error)
                self._launching.append(lease_id)
        instances = self._list()
        self._check_known(instances)
        self._mailboxes.fetch(lease_id for lease_id, lease in self._leases.items() if lease.is_open)
        for lease_id, lease in list(self._leases.items()):
            self.beat()
            instance = instances.get(self._token(lease_id))
            if lease.is_open:
                self._receive(lease)
            if instance is not None:
                # One that is listed as ended may be forgotten before that is dealt with.
                if math.isnan(instance.ended_s):
                    self._seen_s[lease_id] = self.now_s if math.isnan(instance.listed_s) else instance.listed_s
                else:
                    self._seen_s[lease_id] = instance.ended_s
                self._missing_since_s.pop(lease_id, None)
                self._compare(lease, instance)
            else:
                self._missing(lease)
        if self._watches_prices:
            self._compare_prices()
        self._training.converge()
        self._mailboxes.write(
            lease_id for lease_id, lease in self._leases.items() if lease.is_open or lease_id in self._unended
        )

    def _check_known(self, tokens: Iterable[str]) -> None:
        known = {self._token(lease_id) for lease_id in self._leases}
        stray = next((token for token in tokens if token not in known), None)
        if stray is not None:
            self._is_superseded = True
            raise InputError(
                f"machine {stray} of this run is not in its journal: this folder is an older copy; resume the run "
                "where it ran last, or end its machines with `ebbtide down`"
            )

    def _check_claim(self) -> None:
        try:
            if self._claim is not None:
                self._claim.check()
        except SupersededError:
            self._is_superseded = True
            raise

    def _compare_prices(self) -> None:
        """Tell of every market whose price has changed since the last look."""
        seen = self._price_seen
        now = {market: self._cloud.prices(market).at(self.now_s) for market in self._cloud.markets}
        self._price_seen = now
        if seen is not None:
            for market, price in now.items():
                if price != seen.get(market):
                    self._notify(Event(Wake.PRICE, self.now_s, market=market))

    def _launch(self, lease: Lease) -> None:
        if not lease.is_open:
            return
        token = self._token(lease.lease_id)
        agent = {**vars(self._agent), "machine": token, "key": key_of(self._key, token).hex()}
        self._cloud.launch(Wanted(token, lease.market, lease.max_price_usd_per_hour, lease.on_demand, agent))

    def _compare(self, lease: Lease, instance: Instance) -> None:
        """Bring a lease up to date with the cloud's state of its machine."""
        if not lease.is_open:
            if self._has_ended(lease, instance):
                self._notify_of(Wake.ENDED, lease, "it ended in another way than it seemed")
            return
        self._times(lease, instance)
        if instance.state is LeaseState.FAILED:
            lease.state, lease.ended_s = LeaseState.FAILED, instance.ended_s
            self._notify_of(Wake.LAUNCH_FAILED, lease, instance.why)
            self._training.gone(lease)
        elif instance.state in _OVER:
            # The last reports of its agent still count, also of one that booted unseen.
            if not math.isnan(lease.running_s):
                self._mailboxes.open(lease.lease_id)
            self._receive(lease)
            lease.state, lease.ended_s = instance.state, instance.ended_s
            self._check_begins(lease)
            self._notify_of(Wake.ENDED, lease, instance.why or str(instance.state))
            self._training.gone(lease)
        elif instance.state is LeaseState.STARTING and lease.state is LeaseState.REQUESTED:
            lease.state = LeaseState.STARTING
        elif instance.state is LeaseState.RUNNING and lease.state in (LeaseState.REQUESTED, LeaseState.STARTING):
            lease.state = LeaseState.RUNNING
            self._mailboxes.open(lease.lease_id)
            self._notify_of(Wake.RUNNING, lease)

    def _has_ended(self, lease: Lease, instance: Instance | None) -> bool:
        """Look at the machine of a lease that was ended: if it runs, the request did not reach the cloud.

        Returns:
            Whether it ended in another way than it was charged for, as the lease says now.
        """
        lease_id = lease.lease_id
        if instance is None:
            return self._is_gone(lease)
        if instance.state not in _OVER and instance.state is not LeaseState.FAILED:
            try:
                self._cloud.terminate(instance.token)
            except CloudError as error:
                self._troubled(error)
                self._unended[lease_id] = str(error)
            return False
        self._unended.pop(lease_id, None)
        before = lease.state, lease.started_s, lease.ended_s
        if math.isnan(instance.ended_s):
            return False
        self._times(lease, instance)
        lease.state, lease.ended_s = instance.state, instance.ended_s
        now = lease.state, lease.started_s, lease.ended_s
        # What was never charged has no start, and NaN equals nothing.
        return lease.is_charged and now != before

    def _is_gone(self, lease: Lease) -> bool:
        """The cloud lists the machine of a lease that was ended no more: see `_has_ended`."""
        was_assumed = self._unended.pop(lease.lease_id, None) is not None
        seen_s = self._seen_s.get(lease.lease_id, math.inf)
        if not was_assumed or not lease.is_charged or seen_s >= lease.ended_s:
            return False
        lease.ended_s = max(seen_s, lease.started_s)
        return True

    def _missing(self, lease: Lease) -> None:
        """A machine that ran and that the cloud no longer lists counts as ended after a while."""
        lease_id = lease.lease_id
        if not lease.is_open:
            if self._is_gone(lease):
                self._notify_of(Wake.ENDED, lease, _LISTED_NO_MORE)
            return
        if lease_id in self._launching:
            return  # it is still to be requested
        now_s = self._runtime.monotonic_s()
        if now_s - self._missing_since_s.setdefault(lease_id, now_s) < self._pace.missing_s:
            return
        if lease.state is LeaseState.REQUESTED:
            lease.state, lease.ended_s = LeaseState.FAILED, self.now_s
            self._notify_of(Wake.LAUNCH_FAILED, lease, "the cloud does not list it")
            return
        self._receive(lease)
        lease.state = LeaseState.RELEASED
        lease.ended_s = self._last_seen_s(lease)
        self._notify_of(Wake.ENDED, lease, _LISTED_NO_MORE)
        self._training.gone(lease)

    def _last_seen_s(self, lease: Lease) -> float:
        return max(self._seen_s.get(lease.lease_id, lease.started_s), lease.started_s)

    def _troubled(self, error: Exception) -> None:
        """Cloud or storage does not answer: log that when it is new, and once a minute."""
        now_s = self._runtime.monotonic_s()
        if str(error) != self._trouble or now_s - self._trouble_warned_s >= _WARN_AGAIN_S:
            self._trouble_warned_s = now_s
            _LOGGER.warning("%s; asked again", error)
        self._trouble = str(error)

    def _check_begins(self, lease: Lease) -> None:
        """Stop the run after several failed boots, or machines would be rented for ever and end unused.

        Raises:
            InputError: Too many machines in a row have ended so.
        """
        if self._mailboxes.has_reported(lease.lease_id):
            self._failed_boots = 0
        if lease.state is not LeaseState.RELEASED or self._mailboxes.has_reported(lease.lease_id):
            return
        if lease.ended_s < math.floor(self._began_s):  # clouds tell whole seconds
            return  # before its user, who was told of it, resumed the run
        self._failed_boots += 1
        if self._failed_boots >= _MOST_FAILED_BOOTS:
            raise InputError(
                f"{self._failed_boots} machines ended before their agent began, last "
                f"{self._token(lease.lease_id)}; see what their set-up said (on EC2 `aws ec2 get-console-output`)"
            )

    def _times(self, lease: Lease, instance: Instance) -> None:
        if not math.isnan(instance.started_s):
            lease.started_s = instance.started_s
        if not math.isnan(instance.running_s):
            lease.running_s = instance.running_s

    def _list(self) -> dict[str, Instance]:
        """Machines by id, as the cloud lists them now."""
        self._listed = {instance.token: instance for instance in self._cloud.instances()}
        self._listed_s = self._runtime.monotonic_s()
        return self._listed

    def _token(self, lease_id: int) -> str:
        return f"{self._run}-m{lease_id:04d}"

    # Messages.

    def _receive(self, lease: Lease) -> None:
        for report in self._mailboxes.new(lease.lease_id):
            self._handle(lease, report)

    def _handle(self, lease: Lease, report: Report) -> None:
        match report:
            case Noticed(taken_at_s):
                self._noticed(lease, taken_at_s)
            case Rebalance():
                self._notify_of(Wake.REBALANCE, lease)
            case Stranded():
                _LOGGER.warning("machine %s had lost sight of us and ends", self._token(lease.lease_id))
            case Log(trial_id, line):
                # A name from outside becomes part of a path only if it is a trial's.
                if self._training.is_trial(trial_id):
                    self._log(trial_id, line)
            case Up() | Down():
                pass
            case _:
                if isinstance(report, Stepped):
                    self._measure(lease, report)
                self._training.receive(lease, report)

    def _measure(self, lease: Lease, stepped: Stepped) -> None:
        """Measure the speed by the times at which programs reported, since messages may arrive much later."""
        trial = self._training.trial_of(stepped)
        if trial is None or trial.on != lease.lease_id:
            return
        time_s = self._cloud.time_of(stepped.told_s)
        news = self._training.speeds.reported(trial.progress.job_id, trial.attempt, stepped.step, time_s)
        if news:
            _LOGGER.info("trial %s: %s", trial.trial_id, news)
            self._log(trial.trial_id, f"ebbtide: {news}")

    def _noticed(self, lease: Lease, taken_at_s: float) -> None:
        if lease.state in (LeaseState.RUNNING, LeaseState.STARTING):
            lease.state = LeaseState.NOTICED
            lease.revoke_at_s = self._cloud.time_of(taken_at_s)
            self._notify_of(Wake.NOTICE, lease)

    def _notify(self, event: Event) -> None:
        self._out.append(event)

    def _notify_of(self, wake: Wake, lease: Lease, detail: str = "") -> None:
        self._notify(Event(wake, self.now_s, lease_id=lease.lease_id, detail=detail))

    def beat(self) -> None:
        """Write the heartbeat: agents that see none for long end their machines, as those do that are to end."""
        # One thread at a time; the other need not wait for it.
        if not self._beating.acquire(blocking=False):
            return
        try:
            now_s = self._runtime.monotonic_s()
            if now_s - self._beat_s >= self._heartbeats.every_s:
                self._beat_s = now_s
                self._heartbeats.beat([self._token(lease_id) for lease_id in self._unended])
        except OSError as error:
            _LOGGER.warning("the heartbeat could not be written: %s", error)
        finally:
            self._beating.release()
