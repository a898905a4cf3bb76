"""The provider over a cloud that answers as it is told to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.runs.sweeps import START_S, A

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.clouds.cloud import Instance
from ebbtide.controller.agent_provider import AgentProvider, Callbacks, PollIntervals
from ebbtide.errors import CloudError
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.storage.objects import FolderStore

KEY = bytes(range(32))


class Clock(Runtime):
    """A clock that moves only where something waits, or a test moves it."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def epoch_s(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


def provider(
    folder: Path, instance: Instance | None, ended_s: float | None, failures: int = 0, runtime: Runtime = RUNTIME
) -> AgentProvider:
    asked: list[str] = []

    def terminate(token: str) -> float | None:
        asked.append(token)
        if len(asked) <= failures:
            raise CloudError("not now")
        return ended_s

    cloud: Any = SimpleNamespace(
        now_s=START_S + 99.0, terminate=terminate, instances=lambda: [instance] if instance else []
    )
    agent = AgentConfig("run", "", str(folder), "")
    callbacks = Callbacks(lambda _: Assignment("", (), 1, "loss"))
    return AgentProvider(
        cloud, FolderStore(folder), agent, callbacks, key=KEY, pace=PollIntervals(0.01), runtime=runtime
    )


def running(rents: AgentProvider) -> Lease:
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RUNNING, started_s=START_S)
    rents._leases[0] = lease
    rents._mailboxes.open(0)
    return lease
