"""Heartbeats: counted whatever the clocks say, and of no use to anybody who has not the keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cut_objects import CutAnswers

from ebbtide.agent.heartbeats import HeartbeatReader, Heartbeats
from ebbtide.agent.protocol import key_of
from ebbtide.storage.objects import FolderStore

RUN_KEY = b"of the run"
FOLDER = "runs/run/alive"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


def controller(store: FolderStore) -> Heartbeats:
    return Heartbeats(store, "run", RUN_KEY, 60.0)


def machine(store: FolderStore, name: str = "m-1", key: bytes = RUN_KEY) -> HeartbeatReader:
    return HeartbeatReader(store, "run", name, key_of(key, name), 60.0)


def test_they_are_counted_whatever_the_clocks_say(store: FolderStore) -> None:
    beats, reader = controller(store), machine(store)
    assert reader.look() == 0
    for number in range(1, 30):
        beats.beat(["m-1", "m-2"])
        assert reader.look() == number
    # Another controller goes on from there, also beside the first one; few objects are kept.
    controller(store).beat(["m-1"])
    assert reader.look() == 30
    beats.beat(["m-1"])
    assert reader.look() == 31
    other = controller(store)
    for _ in range(60):
        other.beat(["m-1"])
    assert len(list(store.keys(f"{FOLDER}/"))) <= 26


def test_those_of_a_newer_controller_are_heard_however_far_an_older_one_has_skipped(store: FolderStore) -> None:
    older, newer, reader = controller(store), controller(store), machine(store)
    older.epoch = 1
    older.beat(["m-1"])
    newer.epoch = 2
    newer.beat(["m-1"])
    # The older one does not know yet that another has taken over, and passes over what a stranger has left by ever
    # longer steps, while the newer one finds free numbers between.
    for number in (3, 5):
        for first in (0, 1_000_000):
            store.put_once(f"{FOLDER}/{first + number:010d}", b"")
    older.beat(["m-1"])
    before = reader.look()
    newer.beat(["m-1"])
    assert reader.look() > before


def test_those_that_are_not_named_are_not_kept_alive(store: FolderStore) -> None:
    beats, first, second = controller(store), machine(store), machine(store, "m-2")
    beats.beat(["m-1", "m-2"])
    beats.beat(["m-1"])
    assert (first.look(), second.look()) == (2, 1)


FORGED = {
    "nothing": b"",
    "torn": b'{"alive": {"m-1"',
    "deep": b"[" * 100_000,
    "a list": b"[]",
    "a number": b'{"alive": 7}',
    "another's": json.dumps({"alive": {"m-1": "0" * 32, "": "0" * 32}}).encode(),
    "no text": b'{"alive": {"m-1": [], "": null}}',
    "no ASCII": '{"alive": {"m-1": "é", "": "é"}}'.encode(),
}


@pytest.mark.parametrize("content", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("number", ["0000000002", "0000000003", "9999999999", "999999999999"])
def test_what_others_leave_there_neither_keeps_alive_nor_strands(
    store: FolderStore, number: str, content: bytes
) -> None:
    beats, reader = controller(store), machine(store)
    beats.beat(["m-1"])
    store.put_once(f"{FOLDER}/{number}", content)
    assert reader.look() == 1
    seen = 1
    for beating in (beats, beats, controller(store), controller(store)):
        beating.beat(["m-1"])
        assert reader.look() > seen
        seen = reader.look()
        # An agent that starts now sees it as well.
        assert machine(store).look() == seen


def test_one_of_which_an_answer_is_cut_off_is_read_again(tmp_path: Path) -> None:
    """Before, it was never read again, and a machine ended itself without a newer one."""
    store = CutAnswers(tmp_path)
    controller(store).beat(["m-1"])
    reader = machine(store)
    store.cuts = [9]
    assert reader.look() == 1


def test_one_of_another_number_machine_or_run_is_no_heartbeat(store: FolderStore) -> None:
    controller(store).beat(["m-1"])
    content = store.get(f"{FOLDER}/0000000001")
    store.put_once(f"{FOLDER}/0000000007", content)
    assert machine(store).look() == 1
    assert machine(store, "m-2").look() == 0
    assert machine(store, key=b"of another run").look() == 0
    # Nor can a machine make one for the others of its run.
    alive = json.loads(content)["alive"]
    store.put_once(f"{FOLDER}/0000000008", json.dumps({"alive": {"m-2": alive["m-1"]}}).encode())
    assert machine(store, "m-2").look() == 0


def test_many_forged_ones_are_read_once_each(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    beats, reader = controller(store), machine(store)
    beats.beat(["m-1"])
    for number in range(2, 400):
        store.put_once(f"{FOLDER}/{number:010d}", b"forged")
    beats.beat(["m-1"])
    assert reader.look() == beats._number
    read = list[str]()
    monkeypatch.setattr(FolderStore, "get", lambda _self, key: read.__iadd__([key]) and b"{}")
    reader.look()
    assert read == []


def test_who_cannot_write_a_heartbeat_is_told(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise OSError("away")

    monkeypatch.setattr(FolderStore, "put_once", refuse)
    with pytest.raises(OSError, match="away"):
        controller(store).beat(["m-1"])


def test_machines_of_a_run_that_a_former_version_began_see_higher_numbers(store: FolderStore) -> None:
    for number in range(493, 501):
        store.put_once(f"{FOLDER}/{number:010d}", b"[]")
    # Nobody's number leaves no room for ours.
    store.put_once(f"{FOLDER}/999999999999", b"[]")
    beats, reader = controller(store), machine(store)
    for number in range(501, 540):
        beats.beat(["m-1"])
        assert reader.look() == number
    assert not store.has(f"{FOLDER}/0000000500")
