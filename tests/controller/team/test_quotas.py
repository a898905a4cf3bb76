"""Reservations: of controllers that reserve at the same time, no two get the same machine."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from tests.cut_objects import CutAnswers
from tests.runs.teams import NOW_S, ShakyStore
from tests.storage.checkpoints.test_stale_listings import Stale

from ebbtide.controller.team import quotas as quota_book
from ebbtide.controller.team.quotas import QuotaBook, Reservation
from ebbtide.errors import StorageError
from ebbtide.storage.objects import FolderStore


def of(machines: int) -> Reservation:
    return Reservation("ann", machines, NOW_S, 900.0)


def at_most(most: int, machines: int):  # type: ignore[no-untyped-def]
    return lambda others: machines + sum(one.machines for one in others.values()) <= most


def test_what_is_taken_is_refused_until_it_is_given_back(tmp_path: Path) -> None:
    a, b = QuotaBook(FolderStore(tmp_path)), QuotaBook(FolderStore(tmp_path))
    assert a.write("a", of(3), at_most(4, 3))
    assert not b.write("b", of(2), at_most(4, 2))
    assert b.write("b", of(1), at_most(4, 1))
    assert a.write("a", of(2), at_most(4, 2))
    assert b.write("b", of(2), at_most(4, 2))
    assert a.table() == b.table() == {"a": of(2), "b": of(2)}
    assert a.write("a", of(0))
    assert b.table() == {"b": of(2)}


def test_many_at_once_get_no_more_than_there_are(tmp_path: Path) -> None:
    got: list[str] = []

    def take(name: str) -> None:
        if QuotaBook(FolderStore(tmp_path)).write(name, of(1), at_most(5, 1)):
            got.append(name)

    threads = [threading.Thread(target=take, args=(f"run-{n}",)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 5
    assert sorted(QuotaBook(FolderStore(tmp_path)).table()) == sorted(got)


def test_one_who_was_held_up_for_long_fills_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its look and its write the table changes so often that its number is free again."""
    monkeypatch.setattr(quota_book, "_KEPT", 3)
    slow, other = QuotaBook(FolderStore(tmp_path)), QuotaBook(FolderStore(tmp_path))
    other.write("other", of(1))

    def fits(others: dict[str, Reservation]) -> bool:
        if others["other"].machines == 1:
            for machines in (2, 3, 4, 1, 2, 3, 4):
                other.write("other", of(machines))
        return others["other"].machines < 4

    assert not slow.write("slow", of(1), fits)
    assert other.table() == {"other": of(4)}
    other.write("other", of(3))
    assert slow.write("slow", of(1), fits)
    assert other.table() == {"other": of(3), "slow": of(1)}


def test_what_is_damaged_or_far_too_high_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    book = QuotaBook(FolderStore(tmp_path))
    book.write("a", of(2))
    (tmp_path / "quotas" / "00000002").write_bytes(b"")
    (tmp_path / "quotas" / "999999999999").write_text("{}")
    assert book.table() == book.table() == {"a": of(2)}
    assert book.write("b", of(1), at_most(3, 1))
    assert book.table() == {"a": of(2), "b": of(1)}
    assert (tmp_path / "quotas" / "00000003").exists()
    assert caplog.text.count("quotas/00000002 of the team's store cannot be read") == 1
    (tmp_path / "quotas" / "00000004").write_text('[{"owner": "ann", "machines": -5}]')
    assert book.table() == {"a": of(2), "b": of(1)}


def test_a_version_of_which_an_answer_is_cut_off_is_not_passed_over(tmp_path: Path) -> None:
    """Before, the version before it counted, in which a run had reserved nothing yet."""
    store = CutAnswers(tmp_path)
    book = QuotaBook(store)
    assert book.write("a", of(1))
    assert book.write("b", of(3))
    store.cuts = [9]
    assert not book.write("c", of(2), at_most(5, 2))
    assert book.table() == {"a": of(1), "b": of(3)}


def test_a_damaged_entry_counts_as_it_was_and_hides_no_other(tmp_path: Path) -> None:
    book = QuotaBook(FolderStore(tmp_path))
    book.write("a", of(2))
    book.write("b", of(1))
    newest = tmp_path / "quotas" / "00000002"
    entries = json.loads(newest.read_text())
    entries["a"]["machines"] = "two"
    entries["b"]["machines"] = 3
    newest.write_text(json.dumps(entries))
    assert book.table() == {"a": of(2), "b": of(3)}
    # A former version allowed machines that go on for weeks.
    entries["a"] |= {"machines": 4, "unattended_s": 1_209_600.0}
    newest.write_text(json.dumps(entries))
    assert {name: one.machines for name, one in book.table().items()} == {"a": 4, "b": 3}


@pytest.mark.parametrize("changes", [1, 5, quota_book._KEPT - 1])
def test_a_listing_that_is_old_hides_no_reservation(changes: int, tmp_path: Path) -> None:
    stale = Stale(tmp_path)
    others, book = QuotaBook(FolderStore(tmp_path)), QuotaBook(stale)
    assert book.write("b", of(1), at_most(50, 1))
    stale.stay("quotas/")
    for number in range(1, changes + 1):
        assert others.write("a", of(number), at_most(50, number))
    assert not book.write("b", of(50), at_most(50, 50))
    assert book.write("b", of(50 - changes), at_most(50, 50 - changes))
    assert others.table() == {"a": of(changes), "b": of(50 - changes)}


def test_where_all_listed_versions_are_gone_nothing_is_reserved(tmp_path: Path) -> None:
    """Before, that was an empty table, and every machine of the quota was free once more."""
    stale = Stale(tmp_path)
    others, book = QuotaBook(FolderStore(tmp_path)), QuotaBook(stale)
    assert book.write("b", of(1))
    stale.stay("quotas/")
    for number in range(1, 2 * quota_book._KEPT):
        others.write("a", of(number))
    with pytest.raises(StorageError, match="listed as it was a while ago"):
        book.write("b", of(50), at_most(100, 50))
    stale.listed.clear()
    assert book.has("b", 1)
    assert not book.has("b", 2)
    assert not book.has("c", 1)


def test_without_an_answer_nothing_is_reserved(tmp_path: Path) -> None:
    store = ShakyStore(tmp_path)
    store.refuses_writes = True
    with pytest.raises(OSError, match="away"):
        QuotaBook(store).write("a", of(1))
    assert QuotaBook(store).table() == {}


def test_others_who_write_all_the_time_are_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path)
    monkeypatch.setattr(store, "put_once", lambda _key, _content: False)
    with pytest.raises(StorageError, match="written by others all the time"):
        QuotaBook(store).write("a", of(1))
