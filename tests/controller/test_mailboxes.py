"""Messages in storage do not pile up: what was read, and is in the journal, is deleted in time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runs.cloud_as_told import KEY, Clock, provider, running

from ebbtide.agent.messages import MessageLog, Unreadable
from ebbtide.agent.protocol import REPORTS, Channel, Envelope, SaveOrder, Up, key_of
from ebbtide.controller import agent_provider, mailboxes
from ebbtide.controller.mailboxes import Mailboxes
from ebbtide.market.leases import LeaseState
from ebbtide.storage.objects import FolderStore, numbers_below


def reports_of(store: FolderStore, machine: str = "run-m0000") -> MessageLog:
    return MessageLog(store, Channel(machine, REPORTS, key_of(KEY, machine)))


def boxes_of(store: FolderStore, machines: int = 1) -> Mailboxes:
    boxes = Mailboxes(store, KEY, lambda lease_id: f"run-m{lease_id:04d}")
    for lease_id in range(machines):
        boxes.open(lease_id)
    return boxes


def there(store: FolderStore, machine: str = "run-m0000", kind: str = "reports") -> list[int]:
    return sorted(numbers_below(store, f"machines/{machine}/{kind}"))


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailboxes, "_REPORTS_KEPT", 5)


def test_reports_that_are_in_the_journal_are_deleted_but_the_newest(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    boxes, reports = boxes_of(store), reports_of(store)
    for number in range(1, 101):
        reports.write(number, [Envelope("b", number, 0, Up())])
    assert len(list(boxes.new(0))) == 100
    # Whoever resumes the run from the journal reads them again.
    boxes.delete_old()
    assert len(there(store)) == 100
    boxes.written()
    for _ in range(5):
        boxes.delete_old()
    assert there(store) == [96, 97, 98, 99, 100]
    # An agent that begins again counts on from there.
    assert reports_of(store).last() == 100
    restored = boxes_of(store)
    restored.restore(boxes.items.values())
    restored.written()
    restored.delete_old()
    reports.write(101, [Envelope("b", 101, 0, Up())])
    assert len(list(restored.new(0))) == 1


def test_of_many_machines_some_are_deleted_at_a_look(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    boxes = boxes_of(store, machines=50)
    for lease_id in range(50):
        reports = reports_of(store, f"run-m{lease_id:04d}")
        for number in range(1, 9):
            reports.write(number, [Envelope("b", number, 0, Up())])
        assert len(list(boxes.new(lease_id))) == 8
    boxes.written()
    for _ in range(10):
        boxes.delete_old()
    assert all(there(store, f"run-m{lease_id:04d}") == [4, 5, 6, 7, 8] for lease_id in range(50))


def test_a_journal_that_is_older_than_what_was_deleted_reads_on(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for number in range(80, 91):
        reports_of(store).write(number, [Envelope("b", number, 0, Up())])
    # What others put there is no reason to skip anything.
    store.put_once("machines/run-m0000/reports/00000070", b"[]")
    reports = reports_of(store)
    found = [each for _ in range(10) for each in reports.new()]
    assert [isinstance(each, Unreadable) for each in found] == [True] + [False] * 11
    assert reports.read == 90


def test_messages_of_machines_that_are_long_over_are_deleted(tmp_path: Path) -> None:
    clock, store = Clock(), FolderStore(tmp_path)
    rents = provider(tmp_path, None, None, runtime=clock)
    lease = running(rents)
    rents._mailboxes.order(0, SaveOrder())
    rents._mailboxes.write([0])
    reports_of(store).write(1, [Envelope("b", 1, 0, Up())])
    rents._delete_old()
    clock.now_s += 2 * agent_provider._MESSAGES_KEPT_S
    rents._delete_old()
    assert (there(store), there(store, kind="orders")) == ([1], [1])
    lease.state = LeaseState.RELEASED
    clock.now_s += 60.0
    rents._delete_old()
    assert (there(store), there(store, kind="orders")) == ([1], [1])
    clock.now_s += agent_provider._MESSAGES_KEPT_S
    # One that still runs, since its end was refused, may need its orders.
    rents._ends.unended[0] = "refused"
    rents._over_since_s.clear()
    rents._delete_old()
    assert there(store, kind="orders") == [1]
    rents._ends.unended.clear()
    clock.now_s += 60.0
    rents._delete_old()
    clock.now_s += agent_provider._MESSAGES_KEPT_S
    rents._delete_old()
    assert (there(store), there(store, kind="orders")) == ([], [])
