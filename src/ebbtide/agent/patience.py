"""Patience of a machine that cannot begin: which problems are waited for, how long, and which are told."""

from __future__ import annotations

import errno
import math
import tarfile
from collections.abc import Callable
from dataclasses import dataclass

from ebbtide.agent.folders import NO_ROOM, FullDiskError
from ebbtide.agent.inputs import DamagedInputError
from ebbtide.base.runtime import Runtime
from ebbtide.errors import DamagedCheckpointError, LostCheckpointError

# Longest time for which storage that lacks what it had or gives it damaged, or a disk that is full, is waited for.
LACKS_S = 300.0
# Seconds for which storage that does not answer is waited for: before that is told, and in all.
_TOLD_S, _UNANSWERED_S = 60.0, 1800.0
# Seconds between two tries; where the disk is full, each may download many gigabytes.
_RETRY_S, _FULL_RETRY_S = 1.0, 30.0
# Errors of a machine that can begin no further program.
CROWDED = frozenset({errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE})
# The same, and those of a machine that can write to no disk.
_OF_MACHINE = NO_ROOM | CROWDED | {errno.EIO, errno.EROFS}


@dataclass(frozen=True)
class GivenUp:
    """A machine that cannot begin.

    Attributes:
        problem: What is wrong, in words.
        of_machine: Whether another machine may succeed.
    """

    problem: str
    of_machine: bool


class Patience:
    """Decide after each failed try whether another one is worthwhile, and wait before it.

    Storage that does not answer, or answers with errors, is waited for long: the agent itself ends once it hears
    of no controller. Storage that lacks what it had, damaged inputs and a full disk are given up sooner.

    Args:
        runtime: Gives the time, and waits.
        limit_s: Seconds after which a problem that lasts is given up.
        say: Called with a line for the job's log.
    """

    def __init__(self, runtime: Runtime, limit_s: float, say: Callable[[str], None]) -> None:
        self._runtime, self._limit_s, self._say = runtime, limit_s, say
        self._told, self._tried_s = "", math.inf
        self._lasted_s = self._unanswered_s = 0.0

    def ends_with(self, error: Exception) -> GivenUp | None:
        """Return why no further try is worthwhile; else wait, and return None."""
        problem, now_s = lasting_problem(error), self._runtime.monotonic_s()
        since_s, self._tried_s = max(now_s - self._tried_s, 0.0), now_s
        # Time in which storage does not answer does not count for what lasts, and does not begin the wait anew.
        if problem:
            self._lasted_s += since_s
        else:
            # A try may have downloaded for long before it failed.
            self._unanswered_s += min(since_s, _TOLD_S)
        if problem or self._unanswered_s >= _TOLD_S:
            self._tell(problem or f"storage does not answer: {error}")
        if problem and self._lasted_s > self._limit_s:
            return GivenUp(problem, is_of_machine(error))
        if not problem and self._unanswered_s > _UNANSWERED_S:
            return GivenUp(f"storage did not answer for {_UNANSWERED_S / 60.0:.0f} min: {error}", of_machine=True)
        self._runtime.sleep(_FULL_RETRY_S if isinstance(error, FullDiskError) else _RETRY_S)
        return None

    def _tell(self, problem: str) -> None:
        if problem != self._told:
            self._told = problem
            self._say(f"ebbtide: {problem}; asked again")


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
