"""Progress: a bar on a terminal, plain lines elsewhere, nothing of it in the way of an interrupt."""

from __future__ import annotations

import io
import threading
from functools import partial
from types import SimpleNamespace

import pytest
from tests.waiting import eventually

from ebbtide.cli import progress as module
from ebbtide.cli.progress import CommandProgress, lasting, progress


def tells() -> bool:
    """Look for a running thread that prints progress."""
    return any(thread.name == "progress" for thread in threading.enumerate())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands at 1,000 seconds."""
    stands = SimpleNamespace(monotonic=lambda: 1_000.0)
    monkeypatch.setattr(module, "time", stands)
    return stands


@pytest.mark.usefixtures("clock")
def test_remaining_time_is_told_once_some_is_done() -> None:
    state = CommandProgress("replaying", 400.0, began_s=940.0)
    assert state.remaining_s is None
    state.done(100)
    assert state.remaining_s == 180.0
    assert state.line() == "replaying 100 of 400, about 3 min left"
    state.advance(300)
    assert state.remaining_s == 0.0


@pytest.mark.usefixtures("clock")
def test_without_a_total_the_time_so_far_is_told() -> None:
    assert CommandProgress("training", began_s=993.0).line() == "training, 7 s so far"


def test_a_total_of_nothing_is_no_division_by_zero() -> None:
    state = CommandProgress("fitting", 0.0)
    state.advance()
    assert state.remaining_s is None


@pytest.mark.usefixtures("clock")
def test_another_part_counts_from_its_own_beginning() -> None:
    state = CommandProgress("fitting", 10.0, 5.0, 900.0)
    state.step("scoring", 4.0)
    assert (state.doing, state.total, state.completed, state.remaining_s) == ("scoring", 4.0, 0.0, None)
    assert state.began_s == 1_000.0


@pytest.mark.parametrize(("seconds", "expected"), [(-1, "0 s"), (40, "40 s"), (180, "3 min"), (5400, "1.5 h")])
def test_times_in_the_unit_that_suits(seconds: float, expected: str) -> None:
    assert lasting(seconds) == expected


def test_quick_work_says_nothing_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with progress("reading", stream=stream):
        pass
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("clock")
def test_slow_work_says_a_plain_line_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_LINE_S", 0.01)
    monkeypatch.setattr(module, "LINE_EVERY_S", 3_600.0)
    # One is done and 20 seconds are over when the first line is due.
    monkeypatch.setattr(module, "CommandProgress", partial(CommandProgress, completed=1.0, began_s=980.0))
    stream = io.StringIO()
    with progress("reading [/red]", 4, stream=stream):
        eventually(lambda: stream.getvalue().endswith("\n"))
    assert stream.getvalue() == "reading [/red] 1 of 4, about 60 s left\n"


def test_a_terminal_shows_a_bar_with_what_is_done_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with progress("replaying [/red]", 10, stream=stream) as state:
        state.done(5)
        state.say("replaying [bold]")
    shown = stream.getvalue()
    assert "replaying [bold]" in shown
    assert "5/10" in shown
    assert "left" in shown


def test_what_the_block_raises_passes_and_no_thread_stays() -> None:
    for stream in (io.StringIO(), Terminal()):
        with pytest.raises(KeyboardInterrupt), progress("working", stream=stream):
            raise KeyboardInterrupt
    assert not tells()


def test_a_closed_stream_does_not_end_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_LINE_S", 0.01)
    stream = io.StringIO()
    stream.close()
    with progress("working", stream=stream):
        # What would tell has met the closed stream.
        eventually(lambda: not tells())
