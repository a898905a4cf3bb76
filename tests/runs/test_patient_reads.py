"""Reads of a run's journal, which may be away for minutes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ebbtide.errors import InputError, JournalAwayError
from ebbtide.runs import handle
from ebbtide.runs.handle import PatientReads


def away() -> int:
    raise JournalAwayError("the server does not answer")


def test_what_was_read_last_counts_while_the_journal_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, one second of it ended the supervision of a run whose controller waited for it."""
    now_s = [0.0]
    monkeypatch.setattr(handle.time, "monotonic", lambda: now_s[0])
    reads = PatientReads(0)

    def read_at(time_s: float, read: Callable[[], int]) -> int:
        now_s[0] = time_s
        return reads.read(read)

    assert read_at(0.0, away) == 0
    assert read_at(500.0, lambda: 7) == 7
    assert read_at(600.0, away) == 7
    assert read_at(1_200.0, away) == 7
    with pytest.raises(JournalAwayError):
        read_at(1_201.0, away)


def test_other_errors_are_not_waited_for() -> None:
    def wrong() -> int:
        raise InputError("it is no journal")

    with pytest.raises(InputError):
        PatientReads(0).read(wrong)
