"""The account book: read as it was written; what cannot be is named by its field, and stops no other."""

from __future__ import annotations

import json
import math
import threading
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cut_objects import CutAnswers
from tests.markets import C3, R3, history, job
from tests.runs.teams import NOW_S, UNATTENDED_S, account

from ebbtide.base.runtime import Runtime
from ebbtide.controller.team.account_book import AccountBook
from ebbtide.controller.team.account_lines import WallClock, lines_of
from ebbtide.errors import StorageError
from ebbtide.policies.baselines import Reactive
from ebbtide.storage.objects import FolderStore
from ebbtide.testing.scripted import replay


def test_accounts_are_read_as_they_were_written(tmp_path: Path) -> None:
    book = AccountBook(FolderStore(tmp_path))
    ledger = replay(Reactive(), [job(3600)], history({C3: [(0, 0.12)], R3: [(0, 0.09)]})).ledger
    first = replace(account("one", 1.5), lines=tuple(lines_of(ledger, [], {}, WallClock(0.0, 0.0, 1.0))))
    book.write(replace(first, spent_usd=0.5))
    book.write(first)
    book.write(account("two", 2.0))
    damaged: dict[str, str] = {}
    assert book.read(first.month, damaged) == [first, account("two", 2.0)]
    assert book.read(first.month, damaged, lines=False) == [replace(first, lines=()), account("two", 2.0)]
    assert book.read("1999-01", damaged) == []
    assert not damaged
    book.write(replace(first, lines=(replace(first.lines[0], usd="1"),)))  # type: ignore[arg-type]
    assert book.read(first.month, damaged) == [account("two", 2.0)]
    assert "usd of a line is '1'" in damaged["one"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b'{"version": 1, "na', "Unterminated"),
        (b"[]", "it holds list, no account"),
        (b"[" * 100_000, "recursion"),
        (b"\x80", "decode"),
        ({"spent_usd": -1e6}, "spent_usd is '-1000000.0'; a number from 0 to 1e\\+09 is needed"),
        ({"spent_usd": float("nan")}, "spent_usd is 'nan'"),
        ({"spent_usd": 1e308}, "spent_usd is '1e\\+308'"),
        ({"spent_usd": "1"}, "spent_usd is '1'"),
        ({"spent_usd": True}, "spent_usd is 'True'"),
        ({"spent_usd": None}, "spent_usd is 'None'"),
        ({"machines": -50}, "machines is '-50'; a whole number from 0 to 1e\\+06 is needed"),
        ({"machines": 0.5}, "machines is '0.5'; a whole number"),
        ({"usd_per_hour": float("inf")}, "usd_per_hour is 'inf'"),
        ({"at_epoch_s": -1.0}, "at_epoch_s is '-1.0'"),
        ({"unattended_s": -1.0}, "unattended_s is '-1.0'"),
        ({"owner": "../ann"}, "is no tag that every cloud takes"),
        ({"owner": 7}, "owner is no text"),
        ({"name": "another"}, "name is 'another', in the place of one"),
        ({"month": "1999-01"}, "month is '1999-01', in the place of 2026-11"),
        ({"tags": 7}, "not iterable"),
    ],
)
def test_what_no_account_can_be_is_named_and_the_others_are_read(content: Any, why: str, tmp_path: Path) -> None:
    book, one = AccountBook(FolderStore(tmp_path)), account("one", 1.0)
    book.write(one)
    book.write(account("two", 2.0))
    file = tmp_path / "accounts" / one.month / "one.json"
    changed = (
        content if isinstance(content, bytes) else json.dumps(json.loads(file.read_text()) | content).encode()
    )
    file.write_bytes(changed)
    damaged: dict[str, str] = {}
    assert book.read(one.month, damaged, lines=False) == [account("two", 2.0)]
    assert list(damaged) == ["one"]
    with pytest.raises(ValueError, match=why):
        raise ValueError(damaged["one"])


def test_an_absurd_version_stops_nobody(tmp_path: Path) -> None:
    """The month's report of everybody ended with an OverflowError."""
    book, one = AccountBook(FolderStore(tmp_path)), account("one", 1.0)
    book.write(one)
    book.write(account("two", 2.0))
    file = tmp_path / "accounts" / one.month / "one.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": math.inf}))
    damaged: dict[str, str] = {}
    assert book.read(one.month, damaged) == [account("two", 2.0)]
    assert "infinity" in damaged["one"]


def test_what_earlier_and_newer_versions_wrote_counts(tmp_path: Path) -> None:
    book, one = AccountBook(FolderStore(tmp_path)), account("one", 1.0)
    book.write(one)
    file = tmp_path / "accounts" / one.month / "one.json"
    values = json.loads(file.read_text())
    del values["unattended_s"]
    file.write_text(json.dumps(values | {"version": 2, "more": 1}))
    damaged: dict[str, str] = {}
    assert book.read(one.month, damaged, lines=False) == [replace(one, unattended_s=1800.0)]
    # Its amounts may mean something else.
    assert book.read(one.month, damaged) == []
    assert "a newer Ebbtide wrote it; upgrade ebbtide" in damaged["one"]


def test_machines_of_a_controller_that_is_gone_count_until_they_have_ended() -> None:
    gone = account("gone", 1.0, machines=2, usd_per_hour=6.0)
    assert gone.committed_usd(0.0) == pytest.approx(1.0 + 6.0 * 180 / 3600)
    assert gone.committed_usd(3600.0) == pytest.approx(1.0 + 6.0 * (UNATTENDED_S + 180) / 3600)
    assert (gone.machines_left(UNATTENDED_S + 180.0), gone.machines_left(UNATTENDED_S + 181.0)) == (2, 0)
    # On a local cloud they end within seconds.
    assert replace(gone, unattended_s=60.0).machines_left(181.0) == 0


def test_an_account_is_written_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for by others meanwhile, and without it the run's limits count as reached."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "full"))
    book, one = AccountBook(FolderStore(tmp_path)), account("one", 1.0)
    book.write(one)
    assert book.read(one.month, {}) == [one]


class Slow(FolderStore):
    """Answers after a second of its clock, or when so many have asked."""

    now_s = 0.0
    at_once: threading.Barrier | None = None

    def get(self, key: str) -> bytes:
        if self.at_once is not None:
            self.at_once.wait(60.0)
        self.now_s += 1.0
        return super().get(key)


def test_a_slow_store_holds_nothing_up_for_long(tmp_path: Path) -> None:
    store = Slow(tmp_path)

    class Clock(Runtime):
        def monotonic_s(self) -> float:
            return store.now_s

        def pool(self, workers: int) -> Executor:
            return super().pool(1) if store.at_once is None else super().pool(workers)

    book = AccountBook(store, Clock())
    accounts = [account(f"run-{number:02d}", 1.0) for number in range(16)]
    for one in accounts:
        book.write(one)
    with pytest.raises(StorageError, match="accounts/2026-11/ takes too long to read"):
        book.read("2026-11", {}, within_s=10.0)
    assert store.now_s <= 12.0
    # Many are asked for at a time.
    store.at_once = threading.Barrier(16)
    assert book.read("2026-11", {}, within_s=1e9) == accounts


def test_what_was_read_of_runs_that_are_over_is_not_read_again(tmp_path: Path) -> None:
    """However many a team has had in a month: those that train are read each time, a long list goes on."""
    asked: list[str] = []

    class Clock(Runtime):
        def monotonic_s(self) -> float:
            return store.now_s

        def epoch_s(self) -> float:
            return NOW_S + 7200.0

        def pool(self, workers: int) -> Executor:  # noqa: ARG002
            return super().pool(1)

    class Counted(Slow):
        def get(self, key: str) -> bytes:
            asked.append(key.rpartition("/")[2].removesuffix(".json"))
            return super().get(key)

    store = Counted(tmp_path)
    book = AccountBook(store, Clock())
    over = [account(f"over-{number:02d}", 1.0) for number in range(30)]
    rents = account("rents", 1.0, machines=2, usd_per_hour=1.0)
    waits = replace(account("waits", 1.0), at_epoch_s=NOW_S + 7000.0)
    for one in (*over, rents, waits):
        book.write(one)
    with pytest.raises(StorageError, match="takes too long to read"):
        book.read("2026-11", {}, lines=False, within_s=20.0)
    assert book.read("2026-11", {}, lines=False, within_s=20.0) == [*over, rents, waits]
    asked.clear()
    assert book.read("2026-11", {}, lines=False, within_s=20.0) == [*over, rents, waits]
    assert asked == ["rents", "waits"]
    # One goes on, another is removed.
    resumed = account("over-03", 1.5, machines=1)
    book.write(resumed)
    (tmp_path / "accounts" / "2026-11" / "over-04.json").unlink()
    found = book.read("2026-11", {}, lines=False, within_s=20.0)
    assert found == [*over[:3], resumed, *over[5:], rents, waits]


def test_an_account_of_which_an_answer_is_cut_off_is_read_again(tmp_path: Path) -> None:
    store = CutAnswers(tmp_path)
    book = AccountBook(store)
    book.write(account("one", 1.5))
    damaged: dict[str, str] = {}
    store.cuts = [40]
    assert book.read(account("one", 1.5).month, damaged) == [account("one", 1.5)]
    assert not damaged
