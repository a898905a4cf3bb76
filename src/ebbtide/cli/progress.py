"""Progress of a command on standard error: a bar on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

# Where standard error is no terminal: the first line after so long, and then at most one in so long.
FIRST_LINE_S = 3.0
LINE_EVERY_S = 10.0

_COUNTED = re.compile(r"\b(\d+) of (\d+)\b")


@dataclass
class Progress:
    """What a command says of its progress; the library's `on_progress` callbacks are its methods.

    Attributes:
        doing: What is being done, in a few words: "replaying".
        total: How many units of work there are; None: not known, and no remaining time is shown.
        completed: How many of them are done.
        began_s: On the monotonic clock, when `completed` began to count.
    """

    doing: str
    total: float | None = None
    completed: float = 0.0
    began_s: float = field(default_factory=time.monotonic)
    _begun: int = 0

    def say(self, doing: str) -> None:
        """Say what is being done now."""
        self.doing = doing

    def done(self, completed: float) -> None:
        """So many units of the total are done."""
        self.completed = completed

    def advance(self, units: float = 1.0) -> None:
        """So many more units are done."""
        self.completed += units

    def of(self, completed: float, total: float) -> None:
        """So many of a total that is known only now, or has changed, are done."""
        self.completed, self.total = completed, total

    def at(self, doing: str, completed: float, total: float) -> None:
        """Say what is being done now, and how much was done before it."""
        self.doing, self.completed, self.total = doing, completed, total

    def begin(self, doing: str) -> None:
        """Another unit of the total begins: those before it are done."""
        self.doing, self.completed = doing, self._begun
        self._begun += 1

    def counted(self, doing: str) -> None:
        """The same of what counts itself: when "thresholds 3 of 20" begins, two of twenty are done."""
        self.doing = doing
        if found := _COUNTED.search(doing):
            self.completed, self.total = float(found[1]) - 1.0, float(found[2])

    def step(self, doing: str, total: float | None = None) -> None:
        """Begin another part of the work, with units of its own."""
        self.doing, self.total, self.completed, self.began_s = doing, total, 0.0, time.monotonic()
        self._begun = 0

    @property
    def remaining_s(self) -> float | None:
        """Seconds left if the rest takes as long as what is done; None: not known."""
        if not self.total or self.completed <= 0:
            return None
        share = min(self.completed / self.total, 1.0)
        return (time.monotonic() - self.began_s) * (1.0 - share) / share

    def line(self) -> str:
        """One plain line: "replaying 120 of 400, about 2 min left"."""
        counted = f" {self.completed:,.0f} of {self.total:,.0f}" if self.total else ""
        left_s = self.remaining_s
        if left_s is None:
            return f"{self.doing}{counted}, {lasting(time.monotonic() - self.began_s)} so far"
        return f"{self.doing}{counted}, about {lasting(left_s)} left"


@contextmanager
def progress(doing: str, total: float | None = None, *, stream: TextIO | None = None) -> Iterator[Progress]:
    """Tell of progress on standard error while the block runs.

    On a terminal it is a bar that vanishes at the end, with the time since the beginning and, where the total is
    known, the time left. Elsewhere it is a plain line after 3 s and then at most every 10 s, so that logs stay
    short. What the block raises, an interrupt too, passes through.

    Args:
        doing: What is being done, in a few words.
        total: How many units of work; None: not known yet.
        stream: Where to; None: standard error.
    """
    state = Progress(doing, total)
    console = Console(file=stream or sys.stderr, markup=False, highlight=False)
    with _bar(console, state) if console.is_terminal else _lines(stream or sys.stderr, state):
        yield state


def lasting(seconds: float) -> str:
    """A time in the unit that suits: "40 s", "3 min", "1.5 h"."""
    if seconds < 90:
        return f"{max(seconds, 0.0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class _ProgressColumn(ProgressColumn):
    """Reads the state at each refresh, so that an update costs the caller nothing."""

    max_refresh = None

    def __init__(self, state: Progress, began_s: float) -> None:
        super().__init__()
        self.state = state
        self.began_s = began_s

    def render(self, task: Task) -> Text:  # noqa: ARG002
        state = self.state
        counted = f"{state.completed:,.0f}/{state.total:,.0f}  " if state.total else ""
        left_s = state.remaining_s
        left = "" if left_s is None else f", about {lasting(left_s)} left"
        return Text(f"{counted}{lasting(time.monotonic() - self.began_s)}{left}")


class _Following(RichProgress):
    """A bar that follows the state."""

    state: Progress

    def get_renderables(self) -> Iterator[object]:  # type: ignore[override]
        for task in self.tasks:
            task.description, task.total, task.completed = self.state.doing, self.state.total, self.state.completed
        yield from super().get_renderables()


@contextmanager
def _bar(console: Console, state: Progress) -> Iterator[None]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _ProgressColumn(state, state.began_s),
    )
    bar = _Following(*columns, console=console, transient=True, refresh_per_second=5)
    bar.state = state
    bar.add_task(state.doing, total=state.total)
    with bar:
        yield


@contextmanager
def _lines(stream: TextIO, state: Progress) -> Iterator[None]:
    ended = threading.Event()

    def tell() -> None:
        wait_s = FIRST_LINE_S
        while not ended.wait(wait_s):
            wait_s = LINE_EVERY_S
            try:
                stream.write(state.line() + "\n")
                stream.flush()
            except (OSError, ValueError):
                # Nobody reads it any more: the work goes on.
                return

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
