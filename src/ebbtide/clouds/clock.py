"""The clock that times rented machines: the system clock, without steps back and without short jumps."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime


def _since_boot_s() -> float:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


# A clock that is set forward by more is followed once it has stayed there for a while, seconds.
_SMALL_S, _LASTS_S = 5.0, 30.0


class ForwardClock:
    """A wall clock that follows the system clock when that is set forward for good, and ignores it being set back.

    The cloud charges by its own clock: if the local clock were set back by an hour, the run would notice an hour
    too late that its budget is spent. If it were a day ahead for a second, the budget would seem to be spent.

    Args:
        wall_s: Returns the wall-clock time, seconds since 1970.
        since_boot_s: Returns seconds that setting the wall clock does not change; time in which the computer
            sleeps is included where the system can tell.
    """

    def __init__(
        self, wall_s: Callable[[], float] = time.time, since_boot_s: Callable[[], float] = _since_boot_s
    ) -> None:
        self._wall_s, self._since_boot_s = wall_s, since_boot_s
        # Both the controller's thread and its attendant's read the clock.
        self._lock = threading.Lock()
        self._ahead_s = -math.inf
        # Since when the system clock has been much further ahead; infinity: it is not.
        self._jumped_s = math.inf

    def now_s(self) -> float:
        """The time now, seconds since 1970."""
        with self._lock:
            since_boot_s, wall_s = self._since_boot_s(), self._wall_s()
            further_s = wall_s - since_boot_s - self._ahead_s
            # The first time, it is infinitely further.
            is_jump = _SMALL_S < further_s < math.inf
            self._jumped_s = min(self._jumped_s, since_boot_s) if is_jump else math.inf
            if further_s >= 0.0 and not (is_jump and since_boot_s - self._jumped_s < _LASTS_S):
                self._ahead_s, self._jumped_s = wall_s - since_boot_s, math.inf
                return wall_s
            return since_boot_s + self._ahead_s

    def follow(self, date: str) -> None:
        """Move the clock forward to the time of an answer of a cloud, by which it charges.

        Where the local clock is behind, a budget would be passed by what machines cost in the time between.

        Args:
            date: The answer's header `Date`, in whole seconds; one that is no date is ignored.
        """
        with suppress(ValueError, TypeError, OverflowError):
            date_s = parsedate_to_datetime(date).timestamp()
            if date_s > self.now_s():
                with self._lock:
                    self._ahead_s = max(self._ahead_s, date_s - self._since_boot_s())


# Shared by all clouds in this process.
CLOCK = ForwardClock()
