"""A live run on a virtual clock: the real provider and its messages, machines of a tape, agents that only count.

Time moves to whatever happens next: in the market, on a machine, or when the engine wants to be woken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ebbtide.engine.engine import Engine
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import MissingObjectError
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.job import Job
from ebbtide.jobs.progress import JobProgress
from ebbtide.live import agent_provider, agent_training
from ebbtide.live.agent.config import AgentConfig, Assignment
from ebbtide.live.agent.messages import Message, MessageLog
from ebbtide.live.agent_provider import AgentProvider, Callbacks
from ebbtide.live.clouds.cloud import Instance, Wanted
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.api.events import Event, Wake
from ebbtide.policies.api.protocol import Policy
from ebbtide.simulation.replay import SAVE_MARGIN_S
from ebbtide.simulation.replayed_market import ReplayedMarket
from ebbtide.simulation.scenario import Scenario
from ebbtide.simulation.simulated_training import SimulatedTraining


class MemoryStore:
    """Objects in memory, as far as messages need them."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}

    def put_once(self, key: str, content: bytes) -> bool:
        if key in self._objects:
            return False
        self._objects[key] = content
        return True

    def get(self, key: str) -> bytes:
        if key not in self._objects:
            raise MissingObjectError(key)
        return self._objects[key]

    def has(self, key: str) -> bool:
        return key in self._objects

    def delete(self, key: str) -> None:
        self._objects.pop(key, None)

    def keys(self, prefix: str = "") -> Sequence[str]:
        return [key for key in self._objects if key.startswith(prefix)]


@dataclass
class Agent:
    """A machine's agent: takes orders and reports, as the real one does; its training is counted, not run.

    Attributes:
        lease: The machine.
        orders: Log of its orders.
        reports: Log of its reports.
        jobs: The job of each trial, and what its metric is as it trains, where it tells one.
        saved: Steps in storage, by trial.
        catalogue: Instance types.
    """

    lease: Lease
    orders: MessageLog
    reports: MessageLog
    jobs: dict[str, tuple[Job, Curve | None]]
    saved: dict[str, float]
    catalogue: Catalogue
    _training: SimulatedTraining | None = None
    _assignment: Assignment | None = None
    _next: Assignment | None = None
    _leaving: bool = False
    _reported: int = 0
    _count: int = field(default=0)

    @property
    def next_time_s(self) -> float:
        return self._training.next_time_s() if self._training is not None else math.inf

    def boot(self) -> None:
        self._report({"type": "up"})

    def noticed(self, now_s: float) -> None:
        self._report({"type": "notice", "taken_at_s": self.lease.revoke_at_s})
        if self._training is not None:
            self._tell(self._training.lease_noticed(self.lease, now_s), now_s)

    def obey(self, now_s: float) -> bool:
        """Take the orders that have come; whether there were any."""
        orders = list(self.orders.new())
        for order in orders:
            if order["type"] == "train":
                self._next = Assignment.decode(order["assignment"])
                if self._training is None:
                    self._begin(now_s)
                else:
                    self._leave(now_s)
            elif order["type"] == "save" and self._training is not None:
                self._tell(self._training.save(now_s), now_s)
            elif order["type"] == "leave" and self._training is not None:
                self._leave(now_s)
        return bool(orders)

    def advance(self, now_s: float) -> None:
        """Do what is due."""
        if self._training is not None:
            self._tell(self._training.advance(now_s), now_s)

    def _begin(self, now_s: float) -> None:
        assert self._next is not None
        self._assignment, self._next, self._leaving = self._next, None, False
        trial = self._assignment.trial_id
        job, _ = self.jobs[trial]
        progress = JobProgress(0, job, steps_saved=self.saved.get(trial, 0.0))
        self._training = SimulatedTraining(
            progress,
            lambda lease: job.steps_per_s(lease.market.cloud, lease.market.instance_type, self.catalogue),
            lambda lease: self.catalogue.instance_type(lease.market.cloud, lease.market.instance_type).vcpus,
            SAVE_MARGIN_S,
        )
        self._reported = int(progress.steps_saved)
        self._report({"type": "restored", "step": progress.steps_saved, "number": int(progress.steps_saved)})
        self._training.wake_at_step(self._reported + 1, now_s)
        self._tell(self._training.assign([self.lease], now_s), now_s)

    def _leave(self, now_s: float) -> None:
        assert self._training is not None
        self._leaving = True
        self._tell(self._training.assign([], now_s), now_s)

    def _tell(self, events: Sequence[Event], now_s: float) -> None:
        training, assignment = self._training, self._assignment
        assert training is not None
        assert assignment is not None
        for event in events:
            match event.wake:
                case Wake.MILESTONE:
                    self._reported += 1
                    self._report({"type": "step", "step": self._reported, "told_s": now_s, **self._metric()})
                    if self._reported < training.job.steps:
                        more = training.wake_at_step(self._reported + 1, now_s)
                        self._tell(more, now_s)
                case Wake.SAVED:
                    self.saved[assignment.trial_id] = training.progress.steps_saved
                    self._report({"type": "saved", "step": training.progress.steps_saved})
                case Wake.FINISHED:
                    self.saved[assignment.trial_id] = training.progress.steps_saved
                    self._report({"type": "finished", "step": training.progress.steps_saved})
                    self._training = None
                    return
        if self._training is training and not training.is_on(self.lease) and self._was_left(training):
            self._report({"type": "left", "step": training.progress.steps_saved})
            self._training = None
            if self._next is not None:
                self._begin(now_s)

    def _metric(self) -> dict[str, float]:
        assert self._assignment is not None
        _, curve = self.jobs[self._assignment.trial_id]
        if curve is None or self._reported not in curve.steps:
            return {}
        return {"at": self._reported, "metric": float(curve.metric[np.searchsorted(curve.steps, self._reported)])}

    def _was_left(self, training: SimulatedTraining) -> bool:
        return self._leaving or self.lease.state is LeaseState.NOTICED or not training.concerns(self.lease)

    def _report(self, message: Message) -> None:
        about: dict[str, Any] = {}
        if self._assignment is not None:
            about = {"trial": self._assignment.trial_id, "attempt": self._assignment.attempt}
        self._count += 1
        self.reports.read += 1
        number = self.reports.read
        self.reports.write(number, [{**about, **message, "boot": "b", "count": self._count}])


class TapeCloud:
    """A cloud that rents from a tape, on a clock that only `sleep` moves."""

    def __init__(self, scenario: Scenario, start_s: float, store: MemoryStore, run: str) -> None:
        self._market = ReplayedMarket(
            scenario.prices,
            start_s,
            scenario.billing,
            availability=scenario.availability,
            delay=scenario.delay,
        )
        # The clock stops at every change of a price, as a look at the right moment would see it.
        self._market.watch_prices()
        self._store, self._catalogue = store, scenario.catalogue
        curves = scenario.curves or (None,) * len(scenario.jobs)
        of_job = zip(scenario.jobs, curves, strict=True)
        self._jobs = {f"{run}-{number:03d}": pair for number, pair in enumerate(of_job)}
        self._saved: dict[str, float] = {}
        self._leases: dict[str, Lease] = {}
        self._agents: dict[str, Agent] = {}
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

    def launch(self, wanted: Wanted) -> None:
        if wanted.token not in self._leases:
            lease = Lease(
                len(self._leases),
                wanted.market,
                wanted.max_price_usd_per_hour,
                on_demand=wanted.on_demand,
                requested_s=self.now_s,
            )
            self._leases[wanted.token] = lease
            self._market.launch(lease)

    def terminate(self, token: str) -> float | None:
        lease = self._leases.get(token)
        if lease is None:
            return None
        if lease.is_open:
            self._market.terminate(lease)
            self._agents.pop(token, None)
        return lease.ended_s

    def instances(self) -> Sequence[Instance]:
        running = {LeaseState.NOTICED: LeaseState.RUNNING}
        return [
            Instance(
                token,
                # A machine that has its notice before it has booted still starts.
                LeaseState.STARTING
                if lease.state is LeaseState.NOTICED and not lease.is_booted
                else running.get(lease.state, lease.state),
                lease.started_s,
                lease.running_s,
                lease.ended_s,
            )
            for token, lease in self._leases.items()
        ]

    def sleep(self, _seconds: float) -> None:
        """Let the next thing happen."""
        obeyed = [agent.obey(self.now_s) for agent in self._agents.values()]
        if any(obeyed):
            return
        agents_s = min((agent.next_time_s for agent in self._agents.values()), default=math.inf)
        time_s = min(agents_s, self._market.next_time_s, self.wake_at_s)
        if self._market.next_time_s <= time_s:
            event = self._market.advance()
            if event is not None and event.lease_id is not None:
                self._happened(event)
        elif agents_s <= time_s:
            self._market.now_s = time_s
        else:
            self._market.now_s = max(self.now_s, time_s)
        for agent in self._agents.values():
            if agent.next_time_s <= self.now_s:
                agent.advance(self.now_s)

    def _happened(self, event: Event) -> None:
        token = list(self._leases)[event.lease_id or 0]
        lease = self._leases[token]
        if event.wake is Wake.RUNNING:
            orders, reports = (MessageLog(self._store, token, kind) for kind in ("orders", "reports"))  # type: ignore[arg-type]
            self._agents[token] = Agent(lease, orders, reports, self._jobs, self._saved, self._catalogue)
            self._agents[token].boot()
            if lease.state is LeaseState.NOTICED:
                self._agents[token].noticed(self.now_s)
        elif event.wake is Wake.NOTICE and token in self._agents:
            self._agents[token].noticed(self.now_s)
        elif event.wake is Wake.ENDED:
            self._agents.pop(token, None)


class _Provider(AgentProvider):
    def next_event(self, until_s: float) -> Event | None:
        self._cloud.wake_at_s = until_s  # type: ignore[attr-defined]
        return super().next_event(until_s)


def run_live(scenario: Scenario, policy: Policy, start_s: float, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Run a scenario live: the same jobs, prices and seed, through orders and reports."""
    store = MemoryStore()
    cloud = TapeCloud(scenario, start_s, store, "run")
    clock = SimpleNamespace(sleep=cloud.sleep, time=lambda: cloud.now_s, monotonic=lambda: cloud.now_s)
    for module in (agent_provider, agent_training):
        monkeypatch.setattr(module, "time", clock)

    def assignment(progress: JobProgress) -> Assignment:
        return Assignment(f"run-{progress.job_id:03d}", ("true",), progress.job.steps, "loss")

    provider = _Provider(cloud, store, AgentConfig("run", "", str(Path()), ""), Callbacks(assignment))  # type: ignore[arg-type]
    engine = Engine(
        policy,
        scenario.jobs,
        provider,
        scenario.billing,
        catalogue=scenario.catalogue,
        seed=scenario.seed,
        record=True,
    )
    return engine.run()
