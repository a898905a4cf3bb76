"""Reports of machines, and the events that come of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.runs.cloud_as_told import KEY, Clock, provider, running
from tests.runs.sweeps import START_S, A

from ebbtide.agent.heartbeats import HeartbeatReader
from ebbtide.agent.messages import MessageLog
from ebbtide.agent.protocol import REPORTS, Channel, Envelope, Log, Noticed, key_of
from ebbtide.controller.agent_provider import PollIntervals
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.events import Event, Wake
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import FolderStore


def reports_of(store: FolderStore, machine: str = "run-m0000", key: bytes = KEY) -> MessageLog:
    return MessageLog(store, Channel(machine, REPORTS, key_of(key, machine)))


def test_what_cannot_be_read_is_set_aside_and_counted_and_the_others_received(tmp_path: Path) -> None:
    """Storage holds whatever anybody with a machine's role wrote."""
    logged: list[tuple[str, str]] = []
    rents = provider(tmp_path, None, None)
    rents._log = lambda trial, line: logged.append((trial, line))
    rents._training._trainings._by_id = {
        "run-000": SimpleNamespace(trial_id="run-000", ended=True, attempt=0, on=None)
    }  # type: ignore[dict-item]
    lease, store = running(rents), FolderStore(tmp_path)
    mine = reports_of(store)
    sealed = mine._channel.seal(Envelope("b", 1, 0, Log("run-000", "received")))
    forged = reports_of(store, key=b"another")._channel.seal(Envelope("b", 2, 0, Log("run-000", "forged")))
    of_another = reports_of(store, "run-m0001")._channel.seal(Envelope("b", 2, 0, Log("run-000", "of another")))
    elsewhere = mine._channel.seal(Envelope("b", 2, 0, Log("/tmp/x", "out")))
    odd = [7, {"no": "kind"}, {**sealed, "line": "changed"}, forged, of_another, elsewhere, sealed]
    for number, content in enumerate((b"{torn", json.dumps(odd).encode(), b'"text"', b"[" * 100_000), start=1):
        store.put_once(f"machines/run-m0000/reports/{number:08d}", content)
    rents._reports.read(lease)
    # The first of the machine's own is number 2, so that number 1 came late, as one that was written twice does.
    assert logged == []
    mine.write(5, [Envelope("c", 1, 0, Log("run-000", "received"))])
    rents._reports.read(lease)
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
    assert [rents._reports.read(lease) for _ in range(3)] == [False, True, True]
    assert handled == [START_S + 1, START_S + 2, START_S + 2]


def test_a_machine_whose_reports_are_missing_is_asked_to_repeat(tmp_path: Path) -> None:
    rents = provider(tmp_path, None, None)
    lease, store = running(rents), FolderStore(tmp_path)
    store.put_once("machines/run-m0000/reports/00000001", b"{torn")
    reports_of(store).write(2, [Envelope("b", 7, 0, Log("run-000", "a line"))])
    rents._reports.read(lease)
    assert rents._mailboxes.items.values()[0]["pending"] == [{"kind": "repeat"}]


def test_a_report_that_was_lost_does_not_hold_up_those_after_it(tmp_path: Path) -> None:
    rents = provider(tmp_path, None, None)
    lease = running(rents)
    heard: list[str] = []
    rents._log = lambda _trial, line: heard.append(line)
    rents._training._trainings._by_id["run-000"] = None  # type: ignore[assignment]
    reports = reports_of(FolderStore(tmp_path))
    for count, number in ((1, 1), (3, 3)):
        reports.write(number, [Envelope("b", count, 0, Log("run-000", str(count)))])
    for _ in range(12):
        rents._reports.read(lease)
    assert heard == ["1", "3"]
    assert rents._mailboxes.quarantined == 1
    assert "is missing" in rents._mailboxes.quarantine[0]["why"]


def test_events_of_one_look_are_told_together_where_they_are_many(tmp_path: Path) -> None:
    rents = provider(tmp_path, None, None)
    for many, expected in ((4, 0), (3, 2)):
        rents._pace = PollIntervals(many=many)
        rents._out.extend(Event(Wake.SAVED, float(number), job_id=number) for number in range(3))
        rents._out.popleft()  # as next_event gives it
        assert [event.job_id for event in rents.burst()] == [1, 2][:expected]
        rents._out.clear()


def test_finished_is_believed_where_storage_of_the_run_has_it(tmp_path: Path) -> None:
    rents, store = provider(tmp_path, None, None), FolderStore(tmp_path)
    assert not rents._training._trainings._stored.has("run-000", 1)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "state").write_text("1")
    CheckpointStore(store, "run-000").begin_writing("run-m0000").save(tmp_path / "work", step=1)
    assert rents._training._trainings._stored.has("run-000", 1)


def test_machines_that_should_have_ended_get_no_heartbeat(tmp_path: Path) -> None:
    rents = provider(tmp_path, None, None)
    running(rents).state = LeaseState.RELEASED
    rents._leases[1] = Lease(1, A, 0.21, on_demand=False, requested_s=START_S)
    rents.beat()

    def newest(machine: str) -> int:
        store, key = FolderStore(tmp_path), key_of(KEY, machine)
        return HeartbeatReader(store, "run", machine, key, 900.0).look()

    assert [newest("run-m0000"), newest("run-m0001")] == [0, 1]


def test_a_heartbeat_that_storage_does_not_answer_is_not_repeated_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look asks for one for each of its machines: it must not wait for as many requests that hang."""
    clock, asked_s = Clock(), list[float]()
    rents = provider(tmp_path, None, None, runtime=clock)

    def hang(_store: FolderStore, _key: str, _content: bytes) -> bool:
        asked_s.append(clock.monotonic_s())
        clock.now_s += 60.0
        raise OSError("timed out")

    monkeypatch.setattr(FolderStore, "put_once", hang)
    for _ in range(100):
        rents.beat()
    assert asked_s == [0.0]
    clock.now_s += rents._heartbeats.every_s
    rents.beat()
    assert asked_s == [0.0, 60.0 + rents._heartbeats.every_s]


@pytest.mark.parametrize(
    ("told_s", "expected_s"), [(90.0, 90.0), (120.0, 120.0), (86_400.0, 120.0), (-86_400.0, 0.0)]
)
def test_a_notice_has_its_longest_time_whatever_a_machine_says(
    tmp_path: Path, told_s: float, expected_s: float
) -> None:
    clock = Clock()
    clock.now_s = START_S
    rents = provider(tmp_path, None, None, runtime=clock)
    rents._cloud.now_s, rents._cloud.time_of = START_S, lambda epoch_s: epoch_s  # type: ignore[misc, method-assign]
    lease = running(rents)
    rents._noticed(lease, START_S + told_s)
    assert lease.revoke_at_s - START_S == expected_s
