"""The clock by which rented machines are counted: the computer's own, but it never goes back."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable


class ForwardClock:
    """The time of the day, which is followed when it is set forward, and goes on as before when it is set back.

    Machines are charged by their cloud's clock, whatever becomes of ours: if that is set back by an hour, a budget
    would be reached an hour too late.

    Args:
        wall_s: Gives the time of the day, seconds since 1970.
        since_boot_s: Gives seconds that count on, however that is set.
    """

    def __init__(
        self, wall_s: Callable[[], float] = time.time, since_boot_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall_s, self._since_boot_s = wall_s, since_boot_s
        # The controller's thread and its attendant's ask.
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


# That of every cloud of this process.
CLOCK = ForwardClock()
