"""Progress of a command on standard error: a bar on a terminal, occasional plain lines elsewhere."""

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

# Seconds until the first line, and between lines, if standard error is not a terminal.
FIRST_LINE_S = 3.0
LINE_EVERY_S = 10.0

_COUNTED = re.compile(r"\b(\d+) of (\d+)\b")


@dataclass
class CommandProgress:
    """The progress of a command; its methods serve as the library's `on_progress` callbacks.

    Attributes:
        doing: The current activity in a few words: "replaying".
        total: Number of units of work; None: unknown, and no remaining time is shown.
        completed: Number of units that are done.
        began_s: When counting began, seconds on the monotonic clock.
    """

    doing: str
    total: float | None = None
    completed: float = 0.0
    began_s: float = field(default_factory=time.monotonic)
    _begun: int = 0

    def say(self, doing: str) -> None:
        """Set the current activity."""
        self.doing = doing

    def done(self, completed: float) -> None:
        """Set the number of completed units."""
        self.completed = completed

    def advance(self, units: float = 1.0) -> None:
        """Add completed units."""
        self.completed += units

    def of(self, completed: float, total: float) -> None:
        """Set the number of completed units and the total."""
        self.completed, self.total = completed, total

    def at(self, doing: str, completed: float, total: float) -> None:
        """Set the activity, the number of completed units and the total."""
        self.doing, self.completed, self.total = doing, completed, total

    def begin(self, doing: str) -> None:
        """Begin another unit: the units before it are done."""
        self.doing, self.completed = doing, self._begun
        self._begun += 1

    def counted(self, doing: str) -> None:
        """Begin a unit whose text contains its number: "thresholds 3 of 20" means that two of twenty are done."""
        self.doing = doing
        if found := _COUNTED.search(doing):
            self.completed, self.total = float(found[1]) - 1.0, float(found[2])

    def step(self, doing: str, total: float | None = None) -> None:
        """Begin another part of the work, with its own units."""
        self.doing, self.total, self.completed, self.began_s = doing, total, 0.0, time.monotonic()
        self._begun = 0

    @property
    def remaining_s(self) -> float | None:
        """Estimated seconds left, at the speed so far; None: unknown."""
        if not self.total or self.completed <= 0:
            return None
        share = min(self.completed / self.total, 1.0)
        return (time.monotonic() - self.began_s) * (1.0 - share) / share

    def line(self) -> str:
        """Progress as a plain line: "replaying 120 of 400, about 2 min left"."""
        counted = f" {self.completed:,.0f} of {self.total:,.0f}" if self.total else ""
        left_s = self.remaining_s
        if left_s is None:
            return f"{self.doing}{counted}, {lasting(time.monotonic() - self.began_s)} so far"
        return f"{self.doing}{counted}, about {lasting(left_s)} left"


@contextmanager
def progress(doing: str, total: float | None = None, *, stream: TextIO | None = None) -> Iterator[CommandProgress]:
    """Show progress on standard error while the block runs.

    A terminal shows a bar that vanishes at the end, with the elapsed time and, if the total is known, the time
    left. Elsewhere a plain line is written after 3 s and then every 10 s, so that logs stay short. Exceptions of
    the block, interrupts included, pass through.

    Args:
        doing: The activity in a few words.
        total: Number of units of work; None: unknown yet.
        stream: Stream to write to; None: standard error.
    """
    state = CommandProgress(doing, total)
    console = Console(file=stream or sys.stderr, markup=False, highlight=False)
    with _bar(console, state) if console.is_terminal else _lines(stream or sys.stderr, state):
        yield state


def lasting(seconds: float) -> str:
    """A duration in a suitable unit: "40 s", "3 min", "1.5 h"."""
    if seconds < 90:
        return f"{max(seconds, 0.0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class _ProgressColumn(ProgressColumn):
    """A column that reads the state at each refresh, so that updates cost the caller nothing."""

    max_refresh = None

    def __init__(self, state: CommandProgress, began_s: float) -> None:
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
    """A bar that shows the state."""

    state: CommandProgress

    def get_renderables(self) -> Iterator[object]:  # type: ignore[override]
        for task in self.tasks:
            task.description, task.total, task.completed = self.state.doing, self.state.total, self.state.completed
        yield from super().get_renderables()


@contextmanager
def _bar(console: Console, state: CommandProgress) -> Iterator[None]:
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
def _lines(stream: TextIO, state: CommandProgress) -> Iterator[None]:
    ended = threading.Event()

    def report() -> None:
        wait_s = FIRST_LINE_S
        while not ended.wait(wait_s):
            wait_s = LINE_EVERY_S
            try:
                stream.write(state.line() + "\n")
                stream.flush()
            except (OSError, ValueError):
                # The stream's reader is gone; the work continues.
                return

    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
