"""A live run on a tape: real provider and messages, machines of a replayed market, a clock that skips ahead.

Time moves to the next event: of the market, of a machine, or a wake-up of the engine. After each event the
controller polls, as if it polled often enough. Events of the same moment happen in the order of a replay, training
before the market.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.harness.parity.memory_store import MemoryStore
from tests.harness.parity.tape_agents import TapeAgent, TapeWork, next_time_s
from tests.harness.parity.tape_array import TapeArray
from tests.harness.parity.tape_training import TapeCluster, TapeTraining

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.agent.messages import MessageLog
from ebbtide.agent.protocol import ORDERS, REPORTS, Channel, key_of
from ebbtide.base.runtime import Runtime
from ebbtide.clouds.cloud import Instance, MachineRequest
from ebbtide.controller.agent_provider import AgentProvider, Callbacks, PollIntervals
from ebbtide.controller.kinds.array import TaskList
from ebbtide.engine.engine import Engine
from ebbtide.engine.outcome import Outcome
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.job import Job
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.api.events import Event, Wake
from ebbtide.policies.api.protocol import Policy
from ebbtide.replay.replayed_market import ReplayedMarket
from ebbtide.replay.scenario import Scenario

_RUN, _KEY = "run", bytes(32)


class TapeCloud:
    """A cloud that rents from a tape, on a clock that only `sleep` moves.

    Args:
        scenario: The tape, and the jobs whose trainings its machines count.
        start_s: Start of the run, seconds since 1970.
        store: Storage that its agents and the controller share.
        watch_prices: Whether the clock stops at every change of a price.
    """

    def __init__(self, scenario: Scenario, start_s: float, store: MemoryStore, *, watch_prices: bool) -> None:
        self._market = ReplayedMarket(
            scenario.prices,
            start_s,
            scenario.billing,
            availability=scenario.availability,
            delay=scenario.delay,
        )
        if watch_prices:
            self._market.watch_prices()
        self._store = store
        curves = scenario.curves or (None,) * len(scenario.jobs)
        pairs = zip(scenario.jobs, curves, strict=True)
        self._works = [
            _work_of(JobProgress(number, job), curve, scenario, store) for number, (job, curve) in enumerate(pairs)
        ]
        self._leases: dict[str, Lease] = {}
        self._tokens: list[str] = []
        self._agents: dict[str, TapeAgent] = {}
        self.wake_at_s = math.inf

    @property
    def now_s(self) -> float:
        return self._market.now_s

    @property
    def is_over(self) -> bool:
        return self._market.is_over

    @property
    def markets(self) -> Sequence[Market]:
        return self._market.markets

    def prices(self, market: Market) -> PriceSeries:
        return self._market.prices(market)

    def time_of(self, epoch_s: float) -> float:
        return epoch_s

    def launch(self, wanted: MachineRequest) -> None:
        if wanted.token not in self._leases:
            lease = Lease(
                len(self._leases),
                wanted.market,
                wanted.max_price_usd_per_hour,
                on_demand=wanted.on_demand,
                requested_s=self.now_s,
            )
            self._leases[wanted.token] = lease
            self._tokens.append(wanted.token)
            self._market.launch(lease)

    def terminate(self, token: str) -> float | None:
        lease = self._leases.get(token)
        if lease is None:
            return None
        if lease.is_open:
            self._market.terminate(lease)
            self._end_agent(token)
        return lease.ended_s

    def instances(self) -> Sequence[Instance]:
        return [
            Instance(
                *(token, _listed(lease), lease.started_s, lease.running_s, lease.ended_s),
                address=f"10.0.0.{lease.lease_id}",
            )
            for token, lease in self._leases.items()
        ]

    def sleep(self) -> None:
        """Let machines carry out orders; if there are none, let the next event happen."""
        obeyed = [agent.obey(self.now_s) for agent in list(self._agents.values())]
        if any(obeyed):
            return
        while not self._happens():
            pass
        for work in self._works:
            work.tell_progress(self.now_s)

    @property
    def left_running(self) -> int:
        """Number of machines that are still rented."""
        return sum(lease.is_open for lease in self._leases.values())

    def _happens(self) -> bool:
        """Let one event happen; returns whether the controller has anything to see."""
        work_s = next_time_s(self._works)
        if min(work_s, self._market.next_time_s) > self.wake_at_s:
            self._market.now_s = max(self.now_s, self.wake_at_s)
            return True
        # A save that completes at the exact moment of a revocation counts as complete.
        if work_s <= self._market.next_time_s:
            self._market.now_s = max(self.now_s, work_s)
            reports = self._reports
            min(self._works, key=lambda each: each.next_time_s).advance(self.now_s)
            return self._reports > reports
        event = self._market.advance()
        if event is not None and event.lease_id >= 0:
            self._happened(event)
        return event is not None or self.is_over

    @property
    def _reports(self) -> int:
        return sum(agent.count for agent in self._agents.values())

    def _work(self, trial_id: str) -> TapeWork:
        """Find the work for the id of a trial, of one of its ranks, or of a worker."""
        return self._works[int(trial_id.removeprefix(f"{_RUN}-").partition("-")[0])]

    def _happened(self, event: Event) -> None:
        token = self._tokens[event.lease_id]
        lease = self._leases[token]
        if event.wake is Wake.RUNNING:
            key = key_of(_KEY, token)
            orders, reports = (MessageLog(self._store, Channel(token, kinds, key)) for kinds in (ORDERS, REPORTS))
            agent = self._agents[token] = TapeAgent(lease, orders, reports, self._work)
            agent.boot()
            if lease.state is LeaseState.NOTICED:
                agent.noticed(self.now_s)
        elif event.wake is Wake.NOTICE and token in self._agents:
            self._agents[token].noticed(self.now_s)
        elif event.wake is Wake.ENDED:
            self._end_agent(token)

    def _end_agent(self, token: str) -> None:
        agent = self._agents.pop(token, None)
        if agent is not None:
            agent.gone(self.now_s)


def _work_of(progress: JobProgress, curve: Curve | None, scenario: Scenario, store: MemoryStore) -> TapeWork:
    if progress.job.cpus_per_task is not None:
        return TapeArray(progress, scenario.catalogue, store)
    if progress.job.framework is not None:
        return TapeCluster(progress, scenario.catalogue)
    return TapeTraining(progress, scenario.catalogue, store, curve)


def _listed(lease: Lease) -> LeaseState:
    """Return the state as a cloud lists it, without notices, which only the machine gets, even while it boots."""
    if lease.state is LeaseState.NOTICED:
        return LeaseState.RUNNING if lease.is_booted else LeaseState.STARTING
    return lease.state


class TapeClock(Runtime):
    """The clock of a tape's cloud: a wait lets the next event happen.

    Args:
        cloud: The tape's cloud.
    """

    def __init__(self, cloud: TapeCloud) -> None:
        self._cloud = cloud

    def monotonic_s(self) -> float:
        return self._cloud.now_s

    def epoch_s(self) -> float:
        return self._cloud.now_s

    def sleep(self, duration_s: float) -> None:  # noqa: ARG002
        self._cloud.sleep()

    def pool(self, workers: int) -> Executor:  # noqa: ARG002
        return _AtOnce()


class _AtOnce(Executor):
    """Runs each call in the calling thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        found: Future[Any] = Future()
        found.set_result(fn(*args, **kwargs))
        return found


class TapeProvider(AgentProvider):
    """The provider of a live run, which tells its cloud until when it waits.

    Args:
        cloud: The tape's cloud.
        store: Storage that the cloud's agents use.
        scenario: What is run.
    """

    def __init__(self, cloud: TapeCloud, store: MemoryStore, scenario: Scenario) -> None:
        # Messages take no time here, so no task need be handed out before a machine is free.
        agent = AgentConfig(_RUN, "", str(Path()), "", poll_s=0.0, report_s=0.0)
        jobs = enumerate(scenario.jobs)
        callbacks = Callbacks(
            _assignment,
            arrays=_arrays(scenario),
            clusters={job_id: job.framework for job_id, job in jobs if job.framework is not None},
            programs=_programs(scenario.jobs),
        )
        runtime, pace = TapeClock(cloud), PollIntervals(poll_s=0.0)
        super().__init__(cloud, store, agent, callbacks, key=_KEY, pace=pace, runtime=runtime)
        self._tape = cloud

    def next_event(self, until_s: float) -> Event | None:
        self._tape.wake_at_s = until_s
        # There is no journal to wait for.
        self.written()
        return super().next_event(until_s)


@dataclass(frozen=True)
class Lived:
    """A live run on a tape.

    Attributes:
        outcome: The engine's outcome.
        left_running: Number of machines still rented after the run.
    """

    outcome: Outcome
    left_running: int


def live(scenario: Scenario, policy: Policy, start_s: float) -> Lived:
    """Run a scenario live: the same jobs, tape and seed as `Scenario.run`, through orders and reports.

    Args:
        scenario: What is run.
        policy: The policy that decides.
        start_s: Start of the run, seconds since 1970.
    """
    store = MemoryStore()
    cloud = TapeCloud(scenario, start_s, store, watch_prices=Wake.PRICE in policy.wakes_on)
    engine = Engine(
        policy,
        scenario.jobs,
        TapeProvider(cloud, store, scenario),
        scenario.billing,
        catalogue=scenario.catalogue,
        egress=scenario.egress,
        goals=scenario.goals,
        seed=scenario.seed,
        record=True,
    )
    return Lived(engine.run(), cloud.left_running)


def run_live(scenario: Scenario, policy: Policy, start_s: float) -> Outcome:
    """Return the outcome of `live`."""
    return live(scenario, policy, start_s).outcome


def _arrays(scenario: Scenario) -> dict[int, TaskList]:
    """Return the tasks of a scenario's arrays, by job id."""

    def side_by_side(cpus: int, market: Market) -> int:
        return max(scenario.catalogue.machine_of(market).vcpus // cpus, 1)

    return {
        job_id: TaskList([str(number) for number in range(job.steps)], partial(side_by_side, job.cpus_per_task))
        for job_id, job in enumerate(scenario.jobs)
        if job.cpus_per_task is not None
    }


def _programs(jobs: Sequence[Job]) -> dict[int, int]:
    """Return the number of each job's program: names of trials of one program differ only in a number."""
    stems = [job.name.rstrip("0123456789") for job in jobs]
    return {job_id: stems.index(stem) for job_id, stem in enumerate(stems)}


def _assignment(progress: JobProgress) -> Assignment:
    return Assignment(f"{_RUN}-{progress.job_id:03d}", ("true",), progress.job.steps, "loss")
