"""Patience of a machine that cannot begin: which problems are waited for, how long, and which are told."""

from __future__ import annotations

import errno
import math
import tarfile
from collections.abc import Callable

from ebbtide.agent.folders import NO_ROOM, FullDiskError
from ebbtide.agent.inputs import DamagedInputError
from ebbtide.base.runtime import Runtime
from ebbtide.errors import DamagedCheckpointError, LostCheckpointError

# Longest time for which storage that lacks what it had or gives it damaged, or a disk that is full, is waited for.
LACKS_S = 300.0
# Seconds between two tries; where the disk is full, each may download many gigabytes.
_RETRY_S, _FULL_RETRY_S = 1.0, 30.0
# Errors of a machine that can begin no further program.
CROWDED = frozenset({errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE})
# The same, and those of a machine that can write to no disk.
_OF_MACHINE = NO_ROOM | CROWDED | {errno.EIO, errno.EROFS}


class Patience:
    """Decide after each failed try whether another one is worthwhile, and wait before it.

    Storage that does not answer is waited for without end: the agent itself ends once it hears of no controller.
    Storage that answers and lacks what it had, damaged inputs and a full disk are given up.

    Args:
        runtime: Gives the time, and waits.
        limit_s: Seconds after which a problem that lasts is given up.
        say: Called with a line for the job's log.
    """

    def __init__(self, runtime: Runtime, limit_s: float, say: Callable[[str], None]) -> None:
        self._runtime, self._limit_s, self._say = runtime, limit_s, say
        self._told, self._lasted_s, self._tried_s = "", 0.0, math.inf

    def ends_with(self, error: Exception) -> str:
        """Return the problem in words if no further try is worthwhile; else wait, and return an empty text."""
        problem, now_s = lasting_problem(error), self._runtime.monotonic_s()
        # Time in which storage does not answer does not count, and does not begin the wait anew.
        self._lasted_s += max(now_s - self._tried_s, 0.0) if problem else 0.0
        self._tried_s = now_s
        if problem and problem != self._told:
            self._told = problem
            self._say(f"ebbtide: {problem}; asked again")
        if self._lasted_s > self._limit_s:
            return problem
        self._runtime.sleep(_FULL_RETRY_S if isinstance(error, FullDiskError) else _RETRY_S)
        return ""


def is_of_machine(error: Exception) -> bool:
    """Return whether an error is one of this machine, so that another may succeed.

    Its disk is full, or storage with checkpoints that others have written is not mounted here.
    """
    if isinstance(error, FullDiskError | LostCheckpointError):
        return True
    return isinstance(error, OSError) and error.errno in _OF_MACHINE


def lasting_problem(error: Exception) -> str:
    """Return what is wrong in words if waiting alone is unlikely to help; empty: storage does not answer."""
    if isinstance(error, LostCheckpointError | DamagedCheckpointError | DamagedInputError):
        return str(error)
    if isinstance(error, tarfile.TarError):
        return f"the code in storage is not used: {error}"
    if isinstance(error, FullDiskError):
        return f"the machine's disk is too small: {error}"
    return ""
