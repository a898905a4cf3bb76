"""The provider of real machines, which a cloud rents out and whose agents train.

The provider compares the wanted state with the actual one, and gives orders until they match. Every request is
idempotent, so a controller may be killed at any instant and another may resume the run.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.agent.heartbeats import Heartbeats
from ebbtide.agent.protocol import (
    Down,
    End,
    Ended,
    Log,
    Noticed,
    Rebalance,
    Report,
    Stepped,
    Stranded,
    TaskFailed,
    Up,
    covered,
    key_of,
    secret_of,
)
from ebbtide.agent.results import TaskResults
from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.clouds.cloud import Cloud, Instance
from ebbtide.clouds.parts import PartlySilentError
from ebbtide.controller.agent_reports import AgentReports, SilenceLimits
from ebbtide.controller.kinds.array import AgentTasks, ArrayPlan, TaskList
from ebbtide.controller.kinds.cluster import AgentCluster, ClusterPlan
from ebbtide.controller.kinds.dispatch import AgentJobs
from ebbtide.controller.kinds.measured_speed import MeasuredSpeeds
from ebbtide.controller.kinds.state import JobState, TrialState, trial_values
from ebbtide.controller.kinds.stored_checkpoints import ObjectCheckpoints
from ebbtide.controller.kinds.training import AgentTraining
from ebbtide.controller.leadership import Leadership
from ebbtide.controller.machine_ends import MachineEnds
from ebbtide.controller.machine_list import OVER, MachineList, end_of, note_times
from ebbtide.controller.machine_requests import MachineRequests
from ebbtide.controller.mailboxes import Mailboxes
from ebbtide.controller.snapshots import PROVIDER_VERSION, ProviderSnapshot
from ebbtide.engine.snapshot import Items, event_of, event_values
from ebbtide.errors import (
    CloudError,
    CloudGoneError,
    InputError,
    LostCheckpointError,
)
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats, PriceSeries
from ebbtide.policies.api.events import Event, Wake
from ebbtide.storage.objects import ObjectStore

_LOGGER = logging.getLogger(__name__)

# After this many machines in a row that ended before their agent reported, the set-up is at fault.
_MOST_FAILED_BOOTS = 3
_NEVER_HEARD = "its agent was never heard from"
# Seconds for which messages of ended machines stay, and number of machines whose messages are deleted at once.
_MESSAGES_KEPT_S, _DELETED_AT_ONCE = 3600.0, 8
_DELETE_EVERY_S = 5.0
_LISTED_NO_MORE = "the cloud lists it no more; charged up to when it was last seen"


@dataclass(frozen=True)
class PollIntervals:
    """Intervals at which a run polls its cloud, and limits on how long it waits for a machine.

    Attributes:
        poll_s: Real seconds between polls of cloud and storage.
        missing_s: Real seconds after which a machine that the cloud no longer lists counts as ended.
        kept_s: Real seconds between writes of the run's state while nothing happens.
        many: Number of events of one poll from which they are delivered together, for a single decision.
        silent_s: Real seconds after which a machine whose agent was never heard from is ended.
    """

    poll_s: float = 0.1
    missing_s: float = 120.0
    kept_s: float = 2.0
    many: int = 16
    silent_s: float = 1800.0


@dataclass(frozen=True)
class Callbacks:
    """Functions and values that a controller gives its provider.

    Attributes:
        assignment: Gives the assignment of a job's agent, without its attempt number.
        log: Called with a trial's id and a line that its program printed.
        polled: Called at each poll; returns whether the engine is to stop waiting, for its user or for a limit.
        metric: Gives the name of the metric that trials of a job are compared by, by job id; None: there is none.
        arrays: The tasks of each job that is an array, by job id.
        clusters: The framework of each job that is a program on a cluster, by job id.
        programs: The number of each job's program, by job id; jobs that are not named share program 0.
        secrets: Values of the secrets that assignments name, by name.
        fingerprint: The run's fingerprint; empty: an older Ebbtide began it.
        holds: Tells whether the team's quotas allow so many machines in all.
    """

    assignment: Callable[[JobProgress], Assignment]
    log: Callable[[str, str], None] = lambda _trial, _line: None
    polled: Callable[[], bool] = lambda: False
    metric: Callable[[int], str | None] = lambda _job_id: None
    arrays: Mapping[int, TaskList] = field(default_factory=dict)
    clusters: Mapping[int, str] = field(default_factory=dict)
    programs: Mapping[int, int] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    fingerprint: str = ""
    holds: Callable[[int], bool] = lambda _machines: True


class AgentProvider:
    """Runs jobs by agents, each job on one machine at a time, or on several that train as one.

    Args:
        cloud: The cloud that rents machines out.
        objects: Storage for checkpoints, orders and reports.
        agent: Configuration of all agents; the machine is filled in. Its run names machines and trials.
        callbacks: Functions and values of the controller.
        key: The run's key, from which its machines' keys are derived.
        pace: How often cloud and storage are polled.
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
        pace: PollIntervals = PollIntervals(),
        runtime: Runtime = RUNTIME,
    ) -> None:
        self._runtime = runtime
        self._cloud = cloud
        self._polled, self._log = callbacks.polled, callbacks.log
        self._pace = pace
        self._machines = machines = MachineList(cloud, agent.run, runtime)
        self._objects = objects
        self._mailboxes = Mailboxes(objects, key, machines.token, runtime=runtime, values=callbacks.secrets)
        self._requests = MachineRequests(
            cloud, machines, objects, agent, key, self.beat, callbacks.holds, self._is_at_work, runtime
        )
        self._leases = self._requests.leases
        self._ends = MachineEnds(cloud, machines, pace.poll_s, self._order_end, self.beat, runtime)
        self._training = self._agent_jobs(agent, callbacks, key)
        self._out: deque[Event] = deque()
        self._kept: ProviderSnapshot | None = None
        self._heartbeats = Heartbeats(objects, agent.run, key, agent.controller_limit_s)
        self._longest_notice_s = agent.longest_notice_s
        limits = SilenceLimits(pace.silent_s, alone_s=agent.controller_limit_s, poll_s=pace.poll_s)
        self._reports = AgentReports(self._mailboxes, self._handle, machines.troubled, limits, runtime)
        self._beat_s, self._beating = -math.inf, threading.Lock()
        # Failed boots in a row, and the leases whose agents have reported to this controller.
        self._failed_boots, self._begun = 0, set[int]()
        # Machines that could not begin a job, and why, until they are given back.
        self._unfit: dict[int, str] = {}
        self._began_s = -math.inf
        self._missing_since_s: dict[int, tuple[float, int]] = {}
        # When each machine was first seen to be over; infinite: its messages are deleted.
        self._over_since_s: dict[int, float] = {}
        self._delete_s = -math.inf
        # The price of each market at the last poll; None: prices are not watched, or were not polled yet.
        self._watches_prices = False
        self._price_seen: dict[Market, float] | None = None

    def _agent_jobs(self, agent: AgentConfig, callbacks: Callbacks, key: bytes) -> AgentJobs:
        """Create the keepers of the run's jobs: trainings, arrays and clusters."""
        objects, address, secret = self._objects, self._machines.address, partial(self._secret, key)
        given = (callbacks.assignment, self._mailboxes.order, self._notify, lambda: self.now_s)
        speeds = MeasuredSpeeds(programs=callbacks.programs)

        def trained(speeds: MeasuredSpeeds | None) -> AgentTraining:
            return AgentTraining(
                agent.run,
                *given,
                stored=ObjectCheckpoints(objects, self._runtime),
                address=address,
                secret=secret,
                fingerprint=callbacks.fingerprint,
                log=callbacks.log,
                metric=callbacks.metric,
                speeds=speeds,
                runtime=self._runtime,
            )

        def clustered(framework: str) -> AgentCluster:
            plan = ClusterPlan(framework, address, secret, self._head_comes, self._give_back)
            # Speeds of a head would be those of all machines together.
            return AgentCluster(plan, trained(None), *given, runtime=self._runtime)

        def handed_out(tasks: TaskList) -> AgentTasks:
            exchange_s = 2.0 * self._pace.poll_s + agent.poll_s + agent.report_s
            return AgentTasks(
                agent.run,
                ArrayPlan(tasks.values, lambda lease: tasks.side_by_side(lease.market), exchange_s),
                *given,
                results=lambda trial_id: TaskResults(objects, trial_id),
                time_of=self._cloud.time_of,
                log=callbacks.log,
                speeds=speeds,
                runtime=self._runtime,
            )

        others: dict[int, AgentTasks | AgentCluster] = {
            **{job_id: handed_out(tasks) for job_id, tasks in callbacks.arrays.items()},
            **{job_id: clustered(framework) for job_id, framework in callbacks.clusters.items()},
        }
        return AgentJobs(trained(speeds), dict(sorted(others.items())), speeds)

    def check_is_newest(self) -> None:
        """Refuse to act if this is an older copy of the run: see `MachineRequests.check_is_newest`."""
        self._requests.check_is_newest()

    def begin_at(self, number: int) -> None:
        """Number machines from here on: lower numbers belong to a journal that was lost."""
        self._requests.begin_at(number)

    def claim_run(self, claim: Leadership) -> None:
        """Act only while this claim to the run is the newest. Until a claim is given, none is checked."""
        self._mailboxes.epoch = self._heartbeats.epoch = claim.epoch
        self._requests.claim(claim)

    @property
    def known_epoch(self) -> int:
        """Number of the newest claim that this copy of the run knows of; 0: it knows of none."""
        return self._requests.numbers.newest_epoch

    def has_open_machines(self) -> bool:
        """Return whether a machine of this copy of the run may still be paid."""
        return any(lease.is_open for lease in self._leases.values())

    @property
    def epoch(self) -> int:
        """Number of this controller among those of the run, counted from 1."""
        return self._mailboxes.epoch

    # Called by the engine.

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
    def trials(self) -> Sequence[JobState]:
        """The state of each job."""
        return self._training.trials

    @property
    def trainings(self) -> Sequence[TrialState]:
        """The state of each job that is neither an array nor a cluster."""
        return self._training.trainings

    def start(self, jobs: Sequence[JobProgress], *, watch_prices: bool) -> None:
        self._training.begin(jobs)
        self._began_s = self.now_s
        self._watches_prices = watch_prices
        if self._kept is not None:
            self._restore(self._kept)
            # It holds every metric value that was reported.
            self._kept = None

    def launch(self, lease: Lease) -> None:
        self._requests.add(lease)

    def terminate(self, lease: Lease) -> None:
        """End the machine now, since its cost is known only then. A refused request is repeated at later polls.

        A superseded controller ends nothing: its machines belong to the new controller.
        """
        if self._requests.is_superseded:
            return
        if self._requests.is_unsent(lease.lease_id):
            self._requests.withdraw(lease.lease_id)
            lease.state, lease.ended_s = LeaseState.FAILED, self.now_s
        else:
            self._ends.end(lease)
        self._training.gone(lease)

    def end_remaining(self, within_s: float, refused_within_s: float = math.inf) -> list[Lease]:
        """After the run, end machines that the cloud refused to end before, and check how all ended.

        Args:
            within_s: Real seconds after which this is given up.
            refused_within_s: The same for as long as the cloud refuses, or does not answer.

        Returns:
            The leases whose machines ended in another way than they were charged for.
        """
        # Leases whose end the engine has not been told of yet.
        told = [event.lease_id for event in self._out if event.wake is Wake.ENDED]
        otherwise = {lease_id: self._leases[lease_id] for lease_id in told}
        found = self._ends.end_remaining(self._leases, within_s, refused_within_s, self._write_last)
        return list((otherwise | found).values())

    def _write_last(self) -> None:
        with suppress(OSError):
            self._mailboxes.write(self._ends.unended)

    def _order_end(self, lease_id: int) -> None:
        """Order the agent to end its machine, which it may be allowed to do when the controller is not."""
        self._mailboxes.order(lease_id, End())

    @property
    def unended(self) -> dict[str, str]:
        """Reasons why the cloud refused to end machines, by machine id."""
        return {self._machines.token(lease_id): why for lease_id, why in self._ends.unended.items()}

    @property
    def trouble(self) -> str:
        """Reason why the cloud or storage did not answer at the last look; empty: both answered."""
        return self._machines.trouble

    def assign(self, job_id: int, leases: Sequence[Lease]) -> None:
        self._training.assign(job_id, [lease for lease in leases if lease.lease_id not in self._unfit])

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
        """Nothing to do: progress is up to date as of the last reports."""

    def next_event(self, until_s: float) -> Event | None:
        while True:
            self.beat()
            if self._polled():
                return Event(Wake.STOP_REQUESTED, self.now_s)
            try:
                self._look()
                self._machines.trouble = ""
            except CloudGoneError:
                raise
            except (CloudError, OSError) as error:
                self._machines.troubled(error)
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
        """The parts of the state that grow with the run, without metrics, which are only added."""
        return self._training.items, self._mailboxes.items, self._training.speeds.items

    def rest(self) -> dict[str, Any]:
        """The state without what `items` gives, and without metrics."""
        unended = self._ends.unended
        seen_of = [number for number, lease in self._leases.items() if lease.is_open or number in unended]
        return {
            "version": PROVIDER_VERSION,
            "leases": sorted(self._leases),
            "launching": list(self._requests.waiting),
            "out": [event_values(event) for event in self._out],
            "unended": list(unended.items()),
            "unfit": [pair for pair in self._unfit.items() if self._leases[pair[0]].is_open],
            "seen": self._machines.seen_of(seen_of),
            "reports_every_s": self._reports.promises(seen_of),
            "numbers": self._requests.numbers.record(),
            "first_machine": self._machines.first,
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
        self._machines.first = kept["first_machine"]
        self._requests.restore({lease_id: leases[lease_id] for lease_id in kept["leases"]}, kept["numbers"])

    def _restore(self, kept: ProviderSnapshot) -> None:
        self._training.restore(kept["trials"], self._leases)
        self._training.speeds.restore(kept["speeds"])
        self._mailboxes.restore(kept["mailboxes"])
        self._mailboxes.quarantined, self._mailboxes.quarantine = kept["quarantined"], list(kept["quarantine"])
        self._requests.repeat(kept["launching"])
        self._out.extend(event_of(values) for values in kept["out"])
        self._ends.restore(kept["unended"], self._leases)
        self._unfit = {int(lease_id): why for lease_id, why in kept["unfit"]}
        self._reports.restore(kept["reports_every_s"])
        self._machines.seen_s = {
            int(lease_id): seen_s for seen_s, lease_ids in kept["seen"] for lease_id in lease_ids
        }

    # Machines.

    def _look(self) -> None:
        self._requests.check_claim()
        self._requests.request_all(len(self._ends.unended))
        while self._requests.refused:
            refused = self._requests.refused.popleft()
            self._not_granted(self._leases[refused.lease_id], refused.why, may_exist=refused.may_exist)
        instances, silent = self._listed()
        self._requests.check_listed(instances)
        for lease_id, lease in self._reports.begin_look(self._leases):
            self.beat()
            instance = instances.get(self._machines.token(lease_id))
            if lease.is_open:
                self._reports.read(lease)
            if instance is not None:
                self._machines.see(lease_id, instance)
                self._missing_since_s.pop(lease_id, None)
                self._compare(lease, instance)
                self._check_heard(lease)
                self._check_fit(lease)
            elif lease.is_open and lease_id in self._requests.waiting:
                self._check_answered(lease, silent)
            elif self._machines.is_heard(lease.market):
                self._missing(lease)
            elif silent is None or isinstance(silent, PartlySilentError):
                self._missing_in_silence(lease)
        if self._watches_prices and silent is None:
            self._compare_prices()
        lost: LostCheckpointError | None = None
        try:
            self._training.converge()
        except LostCheckpointError as error:
            # Only this trial is affected: the orders of all others are sent.
            lost = error
        self._mailboxes.write(
            lease_id for lease_id, lease in self._leases.items() if lease.is_open or lease_id in self._ends.unended
        )
        with suppress(OSError):
            # A later poll tries again, and nothing waits for it.
            self._delete_old()
        found = [each for each in (silent, lost, *self._reports.refused) if each is not None]
        if found:
            raise found[0]

    def written(self) -> None:
        """Note that the journal has the run's state: machines may be requested, and old reports deleted."""
        self._mailboxes.written()
        self._requests.written()

    def _delete_old(self) -> None:
        """Delete messages that nobody reads any more, a few at a time."""
        now_s = self._runtime.monotonic_s()
        if now_s < self._delete_s:
            return
        self._delete_s = now_s + max(_DELETE_EVERY_S, self._pace.poll_s)
        self._mailboxes.delete_old()
        for lease_id, lease in self._leases.items():
            if not lease.is_open and lease_id not in self._ends.unended:
                self._over_since_s.setdefault(lease_id, now_s)
        over = [each for each, since_s in self._over_since_s.items() if since_s <= now_s - _MESSAGES_KEPT_S]
        self._mailboxes.delete_all(over[:_DELETED_AT_ONCE])
        for lease_id in over[:_DELETED_AT_ONCE]:
            self._over_since_s[lease_id] = math.inf

    def _listed(self) -> tuple[Mapping[str, Instance], CloudError | None]:
        """The machines that the cloud lists, and its error: messages reach machines even without the cloud.

        With an error, machines that are not listed may be in a part of the cloud that does not answer.
        """
        found: Mapping[str, Instance] = {}
        silent: CloudError | None = None
        try:
            found = self._machines.listed()
        except CloudGoneError:
            raise
        except PartlySilentError as error:
            found, silent = {one.token: one for one in error.found}, error
        except CloudError as error:
            silent = error
        self._requests.set_silent_aside(self._pace.missing_s)
        return found, silent

    def _compare_prices(self) -> None:
        """Notify of every market whose price has changed since the last poll."""
        seen = self._price_seen
        now = {market: self._cloud.prices(market).at(self.now_s) for market in self._cloud.markets}
        self._price_seen = now
        if seen is not None:
            for market, price in now.items():
                if price != seen.get(market):
                    self._notify(Event(Wake.PRICE, self.now_s, market=market))

    def _compare(self, lease: Lease, instance: Instance) -> None:
        """Bring a lease up to date with the cloud's state of its machine."""
        if not lease.is_open:
            if self._ends.differs(lease, instance):
                self._notify_of(Wake.ENDED, lease, "it ended in another way than it seemed")
            return
        note_times(lease, instance)
        if lease.state is LeaseState.REQUESTED and instance.state in (LeaseState.STARTING, LeaseState.RUNNING):
            self._requests.granted(lease)
        if instance.state is LeaseState.FAILED and instance.needs_user:
            self._requests.refuse(lease.lease_id, InputError(instance.why))
        elif instance.state is LeaseState.FAILED:
            self._launch_failed(lease, instance.why, instance.ended_s)
        elif instance.state in OVER:
            # The last reports of its agent still count, even if the machine booted between two polls.
            if not math.isnan(lease.running_s):
                self._mailboxes.open(lease.lease_id)
            if not self._reports.read_last(lease):
                return
            ended_s = self.now_s if math.isnan(instance.ended_s) else instance.ended_s
            lease.state, lease.ended_s = instance.state, end_of(lease, ended_s)
            self._check_begins(lease)
            self._notify_of(Wake.ENDED, lease, instance.why or str(instance.state))
            self._training.gone(lease)
        elif instance.state is LeaseState.STARTING and lease.state is LeaseState.REQUESTED:
            lease.state = LeaseState.STARTING
        elif instance.state is LeaseState.RUNNING and lease.state in (LeaseState.REQUESTED, LeaseState.STARTING):
            lease.state = LeaseState.RUNNING
            self._mailboxes.open(lease.lease_id)
            self._notify_of(Wake.RUNNING, lease)

    def _check_answered(self, lease: Lease, silent: CloudError | None) -> None:
        """After a while, withdraw a request that has no answer where others have: the policy may ask elsewhere."""
        why = self._requests.unanswered(lease.lease_id, self._pace.missing_s)
        if why and (silent is None or isinstance(silent, PartlySilentError)):
            may_exist = self._requests.withdraw(lease.lease_id)
            self._not_granted(lease, f"no answer for {self._pace.missing_s:.0f} s: {why}", may_exist=may_exist)

    def _not_granted(self, lease: Lease, why: str, *, may_exist: bool) -> None:
        """Count a request as failed, and end its machine if it may exist: the cloud charges for it."""
        if (may_exist or lease.is_charged) and lease.is_open:
            self._ends.end(lease)
        if not lease.is_charged:
            self._launch_failed(lease, why)
            return
        self._notify_of(Wake.ENDED, lease, why)
        self._training.gone(lease)

    def _launch_failed(self, lease: Lease, why: str, ended_s: float | None = None) -> None:
        if lease.is_open:
            lease.state, lease.ended_s = LeaseState.FAILED, self.now_s if ended_s is None else ended_s
        self._notify_of(Wake.LAUNCH_FAILED, lease, why)
        self._training.gone(lease)

    def _missing(self, lease: Lease) -> None:
        """After a while, count a machine that the cloud does not list as ended, or failed if it never started."""
        if not lease.is_open:
            if self._ends.differs(lease, None):
                self._notify_of(Wake.ENDED, lease, _LISTED_NO_MORE)
            return
        if not self._is_long_missing(lease):
            return
        if lease.state is LeaseState.REQUESTED:
            # It may be listed later.
            self._not_granted(lease, "the cloud does not list it", may_exist=True)
            return
        if not self._reports.read_last(lease):
            return
        lease.state = LeaseState.RELEASED
        lease.ended_s = end_of(lease, self._machines.last_seen_s(lease))
        self._notify_of(Wake.ENDED, lease, _LISTED_NO_MORE)
        self._training.gone(lease)

    def _missing_in_silence(self, lease: Lease) -> None:
        """After a while, wait no longer for a machine whose part of the cloud does not answer; it may exist."""
        if lease.state is LeaseState.REQUESTED and self._is_long_missing(lease):
            self._not_granted(lease, "its part of the cloud does not answer", may_exist=True)

    def _is_long_missing(self, lease: Lease) -> bool:
        # One that is heard from is there, whatever an old list or another account's shows.
        now_s, heard = self._runtime.monotonic_s(), self._mailboxes.reports_heard(lease.lease_id)
        since_s, heard_before = self._missing_since_s.get(lease.lease_id, (now_s, -1))
        if heard != heard_before:
            since_s = now_s
        self._missing_since_s[lease.lease_id] = since_s, heard
        return now_s - since_s >= self._pace.missing_s

    def _check_heard(self, lease: Lease) -> None:
        """End a machine that is paid for and whose agent is not heard from: its set-up or the machine hangs.

        Raises:
            InputError: Too many machines in a row have ended this way before they were heard from.
        """
        silence = self._reports.silence(lease)
        if silence is None:
            return
        if silence.was_heard:
            why = f"its agent, which reports every {silence.every_s:.0f} s, was not heard from"
            what = "the machine hangs, or cannot reach the store any more; it is ended"
        else:
            why = _NEVER_HEARD
            what = "its set-up hangs, or it cannot reach the store; it is ended, and counts as a failed boot"
        name = self._machines.token(lease.lease_id)
        _LOGGER.warning("machine %s has run for %.0f s, and %s: %s", name, silence.duration_s, why, what)
        self._give_back(lease, why)
        if not silence.was_heard:
            self._check_begins(lease)

    def _leave_unfit(self, lease: Lease, report: Ended | TaskFailed) -> None:
        """Have all jobs save and leave a machine that could not begin one of them: it is given back then."""
        is_new = lease.state is LeaseState.RUNNING and lease.lease_id not in self._unfit
        if is_new and self._training.leave(lease, report):
            why = " | ".join(report.tail[-1:])
            _LOGGER.warning("machine %s is given back: %s", self._machines.token(lease.lease_id), why)
            self._unfit[lease.lease_id] = why

    def _check_fit(self, lease: Lease) -> None:
        """End a machine that could not begin a job, once no other is on it."""
        if lease.is_open and lease.lease_id in self._unfit and not self._training.in_use(lease):
            self._give_back(lease, self._unfit.pop(lease.lease_id))

    def _give_back(self, lease: Lease, why: str) -> None:
        """End a machine that is paid for and of no use."""
        self._ends.end(lease)
        self._notify_of(Wake.ENDED, lease, why)
        self._training.gone(lease)

    def _check_begins(self, lease: Lease) -> None:
        """Rent no more after several failed boots in a row, or machines would be rented that end unused.

        Raises:
            InputError: Too many machines in a row have ended this way, and none is at work.
        """
        if lease.state is not LeaseState.RELEASED or self._mailboxes.has_reported(lease.lease_id):
            return
        if lease.ended_s < math.floor(self._began_s):  # clouds report whole seconds
            return  # the user was told of it before resuming the run
        self._failed_boots += 1
        if self._failed_boots >= _MOST_FAILED_BOOTS:
            self._requests.stop(
                InputError(
                    f"{self._failed_boots} machines ended before their agent began, last "
                    f"{self._machines.token(lease.lease_id)}; see what their set-up said "
                    "(on EC2 `aws ec2 get-console-output`)"
                )
            )

    def _is_at_work(self) -> bool:
        return any(
            lease.is_open and self._mailboxes.has_reported(lease_id) and self._training.in_use(lease)
            for lease_id, lease in self._leases.items()
        )

    # Messages.

    def _handle(self, lease: Lease, report: Report) -> None:
        if lease.lease_id not in self._begun:
            self._begun.add(lease.lease_id)
            # Its set-up works.
            self._failed_boots = 0
            self._requests.go_on()
        match report:
            case Noticed(taken_at_s):
                self._noticed(lease, taken_at_s)
            case Rebalance():
                self._notify_of(Wake.REBALANCE, lease)
            case Stranded():
                _LOGGER.warning("machine %s had lost sight of us and ends", self._machines.token(lease.lease_id))
            case Log(trial_id, line, left_out):
                # A name from outside may become part of a path only if it is a trial's id.
                if self._training.is_trial(trial_id):
                    self._log(trial_id, line if not left_out else f"ebbtide: {left_out:,} lines were left out")
            case Up(every_s):
                self._reports.promised(lease, every_s)
            case Down():
                pass
            case _:
                if isinstance(report, Stepped):
                    self._measure(lease, report)
                self._training.receive(lease, report)
                if isinstance(report, Ended | TaskFailed) and report.of_machine:
                    self._leave_unfit(lease, report)

    def _measure(self, lease: Lease, stepped: Stepped) -> None:
        """Measure the speed by the times at which programs reported, since messages may arrive much later."""
        trial, member = self._training.member_of(lease, stepped) or (None, None)
        if trial is None or member is None or member.rank > 0:
            return
        time_s = self._cloud.time_of(stepped.told_s)
        news = self._training.speeds.reported(trial.progress.job_id, trial.attempt, stepped.step, time_s)
        if news:
            _LOGGER.info("trial %s: %s", trial.trial_id, news)
            self._log(trial.trial_id, f"ebbtide: {news}")

    def _secret(self, key: bytes, lease_id: int, trial: str, attempt: int, of_machine: str, own: int) -> str:
        machine_key = key_of(key, self._machines.token(lease_id))
        return covered(secret_of(key, trial, attempt), machine_key, of_machine, own).hex()

    def _head_comes(self) -> bool:
        return any(lease.on_demand and lease.is_open and not lease.is_booted for lease in self._leases.values())

    def _noticed(self, lease: Lease, taken_at_s: float) -> None:
        if lease.state in (LeaseState.RUNNING, LeaseState.STARTING):
            lease.state = LeaseState.NOTICED
            lease.revoke_at_s = self._plausible(taken_at_s)
            self._notify_of(Wake.NOTICE, lease)

    def _plausible(self, taken_at_s: float) -> float:
        """Time of a revocation by the cloud's clock, bounded to between now and the end of the longest notice."""
        epoch_s, now_s = self._runtime.epoch_s(), self.now_s
        longest_s = self._cloud.time_of(epoch_s + self._longest_notice_s) - self._cloud.time_of(epoch_s)
        told_s = self._cloud.time_of(taken_at_s)
        # A second of slack, so that rounding changes nothing.
        return (
            told_s
            if now_s - 1.0 <= told_s <= now_s + longest_s + 1.0
            else min(max(told_s, now_s), now_s + longest_s)
        )

    def _notify(self, event: Event) -> None:
        self._out.append(event)

    def _notify_of(self, wake: Wake, lease: Lease, detail: str = "") -> None:
        self._notify(Event(wake, self.now_s, lease_id=lease.lease_id, detail=detail))

    def beat(self) -> None:
        """Write the heartbeat of machines with open leases; agents that see none for long end their machines."""
        # One thread at a time; the other need not wait for it.
        if not self._beating.acquire(blocking=False):
            return
        try:
            now_s = self._runtime.monotonic_s()
            if now_s - self._beat_s >= self._heartbeats.every_s:
                self._beat_s = now_s
                # Machines that are to end get none. A copy is used, since another thread may add leases.
                leases = [each for each in list(self._leases.items()) if each[1].is_open]
                self._heartbeats.beat([self._machines.token(lease_id) for lease_id, _ in leases])
        except OSError as error:
            # Storage that is away may hang, so each look has time for only a few attempts.
            self._beat_s = self._runtime.monotonic_s()
            _LOGGER.warning("the heartbeat could not be written: %s", error)
        finally:
            self._beating.release()
