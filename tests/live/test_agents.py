"""The provider over a cloud that answers as it is told to."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.live.sweeps import START_S, A

from ebbtide.errors import CloudError, CloudGoneError
from ebbtide.live.agent.config import AgentConfig, Assignment
from ebbtide.live.agent.messages import MessageLog
from ebbtide.live.agent_provider import AgentProvider, Callbacks, Pace
from ebbtide.live.clouds.cloud import Instance
from ebbtide.live.storage import FolderStore
from ebbtide.market.leases import Lease, LeaseState


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
    callbacks = Callbacks(lambda _: Assignment("", (), 1, "loss"))
    return AgentProvider(cloud, FolderStore(folder), agent, callbacks, pace=Pace(0.01))


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


class Refuses(CloudError):
    is_refusal = True


def test_an_end_that_is_refused_is_noted_and_asked_for_again_at_each_look(tmp_path: Path) -> None:
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RUNNING, started_s=START_S)
    running = Instance("run-m0000", LeaseState.RUNNING, START_S, START_S, math.nan)
    rents = provider(tmp_path, running, None)
    asked: list[str] = []

    def refuse(token: str) -> None:
        asked.append(token)
        raise Refuses("not allowed")

    cloud: Any = rents._cloud
    cloud.terminate = refuse
    rents._leases[0] = lease
    began_s = time.monotonic()
    rents.terminate(lease)
    assert time.monotonic() - began_s < 2.0
    assert not lease.is_open
    assert rents.unended == {"run-m0000": "not allowed"}
    rents._look()
    assert len(asked) == 2
    # It has ended after all: what it cost is counted up to then.
    ended = Instance("run-m0000", LeaseState.RELEASED, START_S, START_S, START_S + 500.0)
    cloud.instances = lambda: [ended]
    rents._look()
    assert rents.unended == {}
    assert lease.ended_s == START_S + 500.0
    assert rents._out[-1].detail == "its end had been refused"


def test_one_that_does_not_answer_is_given_up_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.live.agent_provider._ENDS_WITHIN_S", 0.2)
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, started_s=START_S)
    rents = provider(tmp_path, None, None, failures=10**9)
    rents.terminate(lease)
    assert rents.unended == {"run-m0000": "not now"}
    began_s = time.monotonic()
    cloud: Any = rents._cloud

    def silent() -> list[Instance]:
        raise CloudError("not now either")

    cloud.instances = silent
    rents.end_remaining(0.3)
    assert time.monotonic() - began_s < 3.0
    assert rents.unended == {"run-m0000": "not now either"}


def test_a_machine_that_the_cloud_forgot_has_ended_when_it_was_last_seen(tmp_path: Path) -> None:
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RUNNING, started_s=START_S)
    lease.running_s = START_S
    rents = provider(tmp_path, Instance("run-m0000", LeaseState.RUNNING, START_S, START_S, math.nan), None)
    rents._pace = Pace(0.01, missing_s=0.05)
    rents._leases[0] = lease
    rents._look()
    cloud: Any = rents._cloud
    cloud.instances, cloud.now_s = (list), START_S + 5000.0
    rents._look()
    assert lease.is_open
    time.sleep(0.1)
    rents._look()
    assert (lease.state, lease.ended_s) == (LeaseState.RELEASED, START_S + 99.0)


def test_messages_that_are_none_are_left_out_and_the_others_received(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Storage holds whatever anybody with a machine's role wrote."""
    logged: list[tuple[str, str]] = []
    rents = provider(tmp_path, None, None)
    rents._log = lambda trial, line: logged.append((trial, line))
    rents._training.trials = [SimpleNamespace(trial_id="run-000", ended=True, attempt=0, on=None)]  # type: ignore[list-item]
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RUNNING, started_s=START_S)
    rents._mailboxes.open(0)
    store = FolderStore(tmp_path)
    odd = [
        7,
        {"no": "type"},
        {"type": "notice", "count": 1},
        {"type": "notice", "taken_at_s": "soon", "count": 2},
        {"type": "log", "trial": "/tmp/x", "log": "out", "count": 3},
        {"type": "log", "count": 4},
        {"type": "step", "count": "five"},
        {"type": "log", "trial": "run-000", "log": "received", "count": 6},
    ]
    for number, content in enumerate((b"{torn", json.dumps(odd).encode(), b'"text"', b"[" * 100_000), start=1):
        store.put_once(f"machines/run-m0000/reports/{number:08d}", content)
    rents._receive(lease)
    assert logged == [("run-000", "received")]
    assert caplog.text.count("left out") >= 5
    assert MessageLog(store, "run-m0000", "reports").last() == 4


def test_a_cloud_that_is_no_more_ends_the_run_with_one_line(tmp_path: Path) -> None:
    rents = provider(tmp_path, None, None)

    def gone() -> list[Instance]:
        raise CloudGoneError("the local cloud has ended")

    cloud: Any = rents._cloud
    cloud.instances, cloud.is_over = gone, False
    with pytest.raises(CloudGoneError, match="the local cloud has ended"):
        rents.next_event(math.inf)
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, started_s=START_S)
    cloud.terminate = lambda _: gone()
    rents.terminate(lease)
    assert not lease.is_open
    assert rents.unended == {}
