"""The provider over a cloud that answers as it is told to."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.execution.live.sweeps import START_S, A

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.execution.agents import AgentProvider
from ebbtide.execution.cloud import CloudError, Instance
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.object_storage import FolderStore


def provider(folder: Path, instance: Instance | None, ended_s: float | None, failures: int = 0) -> AgentProvider:
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
    return AgentProvider(cloud, FolderStore(folder), "run", lambda _: Assignment("", (), 1, "loss"), agent, poll_s=0.01)


@pytest.mark.parametrize(
    ("state", "started_s", "found"),
    [
        (LeaseState.RELEASED, START_S, LeaseState.RELEASED),
        # Taken a moment before it was given back: what it costs is as for one that was taken.
        (LeaseState.REVOKED, START_S, LeaseState.REVOKED),
        (LeaseState.RELEASED, math.nan, LeaseState.FAILED),
    ],
)
def test_what_is_given_back_ends_as_the_cloud_has_it(
    state: LeaseState, started_s: float, found: LeaseState, tmp_path: Path
) -> None:
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S - 20.0)
    instance = Instance("run-m0000", state, started_s, math.nan, START_S + 50.0)
    provider(tmp_path, instance, START_S + 50.0, failures=2).terminate(lease)
    assert (lease.state, lease.ended_s) == (found, START_S + 50.0)


def test_one_that_the_cloud_never_heard_of_has_ended_too(tmp_path: Path) -> None:
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S)
    provider(tmp_path, None, None).terminate(lease)
    assert (lease.state, lease.ended_s) == (LeaseState.FAILED, START_S + 99.0)
