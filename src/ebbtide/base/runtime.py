"""Time, threads and waiting: the operating system's, or a simulation's on one thread and a virtual clock.

Everything in controller and agent that waits, looks at a clock or goes on beside something else does so through a
`Runtime`, so that both can be run, with every interleaving, from a seed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol


class Flag(Protocol):
    """Something that may be waited for, as `threading.Event` has it."""

    def set(self) -> None:
        """Let those that wait go on."""
        ...

    def clear(self) -> None:
        """Let those that wait from now on do so."""
        ...

    def is_set(self) -> bool:
        """Return whether the flag is set, so that nobody has to wait."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or for so many seconds; returns whether it is set."""
        ...


class Runtime:
    """The operating system's clock and threads."""

    def monotonic_s(self) -> float:
        """Seconds since some time in the past; never goes back."""
        return time.monotonic()

    def epoch_s(self) -> float:
        """Seconds since 1970 by this machine's clock, which may be wrong, or be set."""
        return time.time()

    def sleep(self, duration_s: float) -> None:
        """Wait for so many seconds."""
        time.sleep(duration_s)

    def begin(self, target: Callable[[], None]) -> None:
        """Let something go on beside the caller; the end of the process ends it, too."""
        threading.Thread(target=target, daemon=True).start()

    def flag(self) -> Flag:
        """A new flag, which is not set."""
        return threading.Event()

    def pool(self, workers: int) -> Executor:
        """Return an executor that does several things at a time."""
        return ThreadPoolExecutor(workers)


# That of every process which is not simulated.
RUNTIME = Runtime()
