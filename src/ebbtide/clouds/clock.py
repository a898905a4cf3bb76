"""The clock that times rented machines: the system clock, except that it never goes back."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable


class ForwardClock:
    """A wall clock that follows the system clock when that is set forward, and ignores it being set back.

    The cloud charges by its own clock: if the local clock were set back by an hour, the run would notice an hour
    too late that its budget is spent.

    Args:
        wall_s: Returns the wall-clock time, seconds since 1970.
        since_boot_s: Returns monotonic seconds, which setting the wall clock does not change.
    """

    def __init__(
        self, wall_s: Callable[[], float] = time.time, since_boot_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall_s, self._since_boot_s = wall_s, since_boot_s
        # Both the controller's thread and its attendant's read the clock.
        self._lock = threading.Lock()
        self._ahead_s = -math.inf

    def now_s(self) -> float:
        """The time now, seconds since 1970."""
        with self._lock:
            since_boot_s, wall_s = self._since_boot_s(), self._wall_s()
            if wall_s - since_boot_s >= self._ahead_s:
                self._ahead_s = wall_s - since_boot_s
                return wall_s
            return since_boot_s + self._ahead_s


# Shared by all clouds in this process.
CLOCK = ForwardClock()
