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
from ebbtide.live.agent.protocol import REPORTS, Channel, Envelope, Log, Noticed, key_of
from ebbtide.live.agent_provider import AgentProvider, Callbacks, Pace
from ebbtide.live.clouds.cloud import Instance
from ebbtide.live.storage import FolderStore
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.events import Event, Wake

KEY = bytes(range(32))


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
    return AgentProvider(cloud, FolderStore(folder), agent, callbacks, key=KEY, pace=Pace(0.01))


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
    assert rents._out[-1].detail == "it ended in another way than it seemed"


def test_one_that_ended_otherwise_just_before_the_run_did_is_charged_as_it_was(tmp_path: Path) -> None:
    """The look that saw it told the engine, which had nothing more to wait for."""
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RELEASED, started_s=START_S)
    lease.ended_s = START_S + 99.0
    ended = Instance("run-m0000", LeaseState.RELEASED, START_S, START_S, START_S + 120.0)
    rents = provider(tmp_path, ended, None)
    rents._leases[0] = lease
    rents._look()
    assert lease.ended_s == START_S + 120.0
    assert rents.end_remaining(0.3) == [lease]


def test_one_that_does_not_answer_is_given_up_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.live.machine_ends._ENDS_WITHIN_S", 0.2)
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


def test_a_machine_of_a_part_of_the_cloud_that_was_silent_ended_when_that_last_listed_it(tmp_path: Path) -> None:
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RUNNING, started_s=START_S)
    lease.running_s = START_S
    listed = Instance("run-m0000", LeaseState.RUNNING, START_S, START_S, math.nan, listed_s=START_S + 60.0)
    rents = provider(tmp_path, listed, None)
    rents._pace = Pace(0.01, missing_s=0.05)
    rents._leases[0] = lease
    cloud: Any = rents._cloud
    for _ in range(3):
        cloud.now_s += 1000.0
        rents._look()
    assert lease.is_open
    cloud.instances = list
    rents._look()
    time.sleep(0.1)
    rents._look()
    assert (lease.state, lease.ended_s) == (LeaseState.RELEASED, START_S + 60.0)


def reports_of(store: FolderStore, machine: str = "run-m0000", key: bytes = KEY) -> MessageLog:
    return MessageLog(store, Channel(machine, REPORTS, key_of(key, machine)))


def running(rents: AgentProvider) -> Lease:
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RUNNING, started_s=START_S)
    rents._leases[0] = lease
    rents._mailboxes.open(0)
    return lease


def test_what_cannot_be_read_is_set_aside_and_counted_and_the_others_received(tmp_path: Path) -> None:
    """Storage holds whatever anybody with a machine's role wrote."""
    logged: list[tuple[str, str]] = []
    rents = provider(tmp_path, None, None)
    rents._log = lambda trial, line: logged.append((trial, line))
    rents._training._by_id = {"run-000": SimpleNamespace(trial_id="run-000", ended=True, attempt=0, on=None)}  # type: ignore[dict-item]
    lease, store = running(rents), FolderStore(tmp_path)
    mine = reports_of(store)
    sealed = mine._channel.seal(Envelope("b", 1, 0, Log("run-000", "received")))
    forged = reports_of(store, key=b"another")._channel.seal(Envelope("b", 2, 0, Log("run-000", "forged")))
    of_another = reports_of(store, "run-m0001")._channel.seal(Envelope("b", 2, 0, Log("run-000", "of another")))
    elsewhere = mine._channel.seal(Envelope("b", 2, 0, Log("/tmp/x", "out")))
    odd = [7, {"no": "kind"}, {**sealed, "line": "changed"}, forged, of_another, elsewhere, sealed]
    for number, content in enumerate((b"{torn", json.dumps(odd).encode(), b'"text"', b"[" * 100_000), start=1):
        store.put_once(f"machines/run-m0000/reports/{number:08d}", content)
    rents._receive(lease)
    # The first of the machine's own is number 2, so that number 1 came late, as one that was written twice does.
    assert logged == []
    mine.write(5, [Envelope("c", 1, 0, Log("run-000", "received"))])
    rents._receive(lease)
    assert logged == [("run-000", "received")]
    assert rents.snapshot()["quarantined"] == 3 + 5
    assert {kept["machine"] for kept in rents.snapshot()["quarantine"]} == {"run-m0000"}
    assert mine.last() == 5


def test_a_report_whose_handling_fails_is_given_again(tmp_path: Path) -> None:
    rents = provider(tmp_path, None, None)
    lease, store = running(rents), FolderStore(tmp_path)
    first, second = (Envelope("b", number, 0, Noticed(START_S + number)) for number in (1, 2))
    reports_of(store).write(1, [first, second])
    handled: list[float] = []

    def fail(_: Lease, taken_at_s: float) -> None:
        handled.append(taken_at_s)
        if len(handled) == 2:
            raise OSError("the disk is full")

    rents._noticed = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="full"):
        rents._receive(lease)
    rents._receive(lease)
    rents._receive(lease)
    assert handled == [START_S + 1, START_S + 2, START_S + 2]


def test_a_machine_whose_reports_are_missing_is_asked_to_repeat(tmp_path: Path) -> None:
    rents = provider(tmp_path, None, None)
    lease, store = running(rents), FolderStore(tmp_path)
    store.put_once("machines/run-m0000/reports/00000001", b"{torn")
    reports_of(store).write(2, [Envelope("b", 7, 0, Log("run-000", "a line"))])
    rents._receive(lease)
    assert rents._mailboxes.items.values()[0]["pending"] == [{"kind": "repeat"}]


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


def test_an_end_that_came_otherwise_than_it_seemed_is_charged_as_it_was(tmp_path: Path) -> None:
    told = Instance("run-m0000", LeaseState.REVOKED, START_S, START_S + 5.0, START_S + 40.0)
    rents = provider(tmp_path, told, START_S + 50.0)
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S - 20.0)
    rents.launch(lease)
    rents._requests.waiting.clear()
    # As it looked when it was given back: the listing was old, and showed no start.
    lease.state, lease.ended_s = LeaseState.FAILED, START_S + 50.0
    event = rents.next_event(math.inf)
    assert event is not None
    assert (event.wake, event.lease_id) == (Wake.ENDED, 0)
    assert (lease.state, lease.started_s, lease.ended_s) == (LeaseState.REVOKED, START_S, START_S + 40.0)
    rents._look()
    assert not rents._out


def test_a_request_that_the_cloud_does_not_list_has_failed(tmp_path: Path) -> None:
    rents = provider(tmp_path, None, None)
    rents._pace = Pace(0.01, missing_s=0.0)
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S - 20.0)
    rents.launch(lease)
    rents._requests.waiting.clear()
    event = rents.next_event(math.inf)
    assert event is not None
    assert (event.wake, lease.state) == (Wake.LAUNCH_FAILED, LeaseState.FAILED)


def test_a_machine_that_the_cloud_forgot_before_it_was_given_back_ended_when_it_was_last_seen(
    tmp_path: Path,
) -> None:
    rents = provider(tmp_path, None, None)
    lease = running(rents)
    rents._machines.seen_s[0] = START_S + 30.0
    rents.terminate(lease)
    assert (lease.state, lease.ended_s) == (LeaseState.RELEASED, START_S + 30.0)


def test_a_report_that_was_lost_does_not_hold_up_those_after_it(tmp_path: Path) -> None:
    rents = provider(tmp_path, None, None)
    lease = running(rents)
    heard: list[str] = []
    rents._log = lambda _trial, line: heard.append(line)
    rents._training._by_id["run-000"] = None  # type: ignore[assignment]
    reports = reports_of(FolderStore(tmp_path))
    for count, number in ((1, 1), (3, 3)):
        reports.write(number, [Envelope("b", count, 0, Log("run-000", str(count)))])
    for _ in range(12):
        rents._receive(lease)
    assert heard == ["1", "3"]
    assert rents._mailboxes.quarantined == 1
    assert "is missing" in rents._mailboxes.quarantine[0]["why"]


def test_a_machine_that_is_forgotten_after_its_end_seemed_refused_ended_when_it_was_last_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.live.machine_ends._ENDS_WITHIN_S", 0.05)
    rents = provider(tmp_path, None, None, failures=10**9)
    lease = running(rents)
    rents._machines.seen_s[0] = START_S + 30.0
    rents.terminate(lease)
    assert (lease.ended_s, rents.unended) == (START_S + 99.0, {"run-m0000": "not now"})
    event = rents.next_event(math.inf)
    assert event is not None
    assert (event.wake, lease.ended_s, rents.unended) == (Wake.ENDED, START_S + 30.0, {})


def test_events_of_one_look_are_told_together_where_they_are_many(tmp_path: Path) -> None:
    rents = provider(tmp_path, None, None)
    for many, expected in ((4, 0), (3, 2)):
        rents._pace = Pace(many=many)
        rents._out.extend(Event(Wake.SAVED, float(number), job_id=number) for number in range(3))
        rents._out.popleft()  # as next_event gives it
        assert [event.job_id for event in rents.burst()] == [1, 2][:expected]
        rents._out.clear()


def test_many_ends_do_not_each_wait_for_a_cloud_that_does_not_answer(tmp_path: Path) -> None:
    """Else a request to stop a run of many machines would be answered after minutes."""
    asked: list[str] = []

    def terminate(token: str) -> float:
        asked.append(token)
        if len(asked) > 2:
            return START_S + 90.0
        time.sleep(0.3)
        raise CloudError("the connection timed out")

    rents = provider(tmp_path, None, None)
    rents._cloud.terminate = terminate  # type: ignore[method-assign]
    rents._ends.unended[99] = "refused before"
    leases = [Lease(number, A, 0.21, on_demand=False, requested_s=START_S) for number in range(50)]
    for lease in leases:
        rents.terminate(lease)
    assert asked == ["run-m0000"]
    assert rents.unended["run-m0049"] == "the connection timed out"
    # After a while it is asked again, and once it answers, for all.
    for expected in (2, 4, 5):
        rents._ends._silent_until_s = min(rents._ends._silent_until_s, time.monotonic())
        rents.terminate(leases[0])
        if expected == 4:
            rents.terminate(leases[1])
        assert len(asked) == expected
