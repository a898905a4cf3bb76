"""How far replays are: a bar with the time left on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# In a file of output, a line no more often than this.
_LINE_EVERY_S = 10.0


# Into a file or a pipe, where nobody set a width.
_WIDTH = 120


def table_console() -> Console:
    """Standard output, as wide as the terminal is."""
    console = Console()
    return console if console.is_terminal or os.environ.get("COLUMNS") else Console(width=_WIDTH)


@contextmanager
def replay_progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show on standard error how many replays are done; gives what is to be called with their number.

    Args:
        total: Replays there will be.
    """
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield Lines(total, errors)
        return
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("replaying", total=total)
        yield lambda done: progress.update(task, completed=done)


class Lines:
    """Lines such as "replaying 120 of 400, about 2 min left"."""

    def __init__(self, total: int, console: Console, now_s: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._console = console
        self._now_s = now_s
        self._began_s = self._told_s = now_s()

    def __call__(self, done: int) -> None:
        """Tell that so many are done, unless something was told a moment ago."""
        now_s = self._now_s()
        if now_s - self._told_s < _LINE_EVERY_S or not done:
            return
        self._told_s = now_s
        left_s = (now_s - self._began_s) / done * (self._total - done)
        self._console.print(f"replaying {done} of {self._total}, about {_told(left_s)} left", highlight=False)


def _told(duration_s: float) -> str:
    if duration_s < 90:
        return f"{max(duration_s, 1):.0f} s"
    return f"{duration_s / 60:.0f} min" if duration_s < 90 * 60 else f"{duration_s / 3600:.1f} h"
