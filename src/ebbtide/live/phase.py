"""The state of a live run, as its controller writes it down and as others read it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from ebbtide.live.journal import Journal
from ebbtide.live.settings import RunFolder
from ebbtide.live.stopping import controller_pid, requested_stop


class State(StrEnum):
    """The state of a run, in a word or two for its user."""

    NEW = "not begun"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"  # by its user; it can be resumed
    DOWN = "down"  # its machines were ended by `ebbtide down`; it can be resumed
    GAVE_UP = "gave up"  # its policy ended it, for example when the budget was spent
    FINISHED = "finished"
    FAILED = "failed"  # all trials ended, and some failed
    BROKEN = "broken off"  # its controller ended with an error
    GONE = "controller gone"  # it was killed: machines run until they miss its heartbeat


# A run in one of these states can be resumed.
CAN_RESUME = frozenset({State.STOPPED, State.DOWN, State.GAVE_UP, State.BROKEN, State.GONE})
OVER = frozenset({State.FINISHED, State.FAILED})


@dataclass(frozen=True)
class Phase:
    """The state of a run with its times, as kept in the journal. Times are in seconds of this machine's clock.

    Attributes:
        state: State as the last controller wrote it down.
        pid: Process id of that controller.
        began_epoch_s: Start of that controller, in seconds since 1970.
        first_began_epoch_s: Start of the run's first controller, in seconds since 1970.
        ran_before_s: Seconds for which earlier controllers ran.
        ended_epoch_s: End of the last controller, in seconds since 1970; None: it runs, or was killed.
        why: Reason in words, if the run did not finish; else empty.
    """

    state: State
    pid: int
    began_epoch_s: float
    first_began_epoch_s: float
    ran_before_s: float = 0.0
    ended_epoch_s: float | None = None
    why: str = ""

    @classmethod
    def begin(cls, before: Phase | None, pid: int, last_seen_epoch_s: float) -> Phase:
        """A controller starts.

        Args:
            before: What the controller before it wrote down; None: this is the first.
            pid: Process id of the new controller.
            last_seen_epoch_s: When the one before last wrote anything, in seconds since 1970.
        """
        now_s = time.time()
        if before is None:
            return cls(State.RUNNING, pid, now_s, now_s)
        last_s = before.ended_epoch_s if before.ended_epoch_s is not None else last_seen_epoch_s
        ran_s = before.ran_before_s + max(last_s - before.began_epoch_s, 0.0)
        return cls(State.RUNNING, pid, now_s, before.first_began_epoch_s, ran_s)

    def end(self, state: State, why: str = "") -> Phase:
        """The same after the controller has ended, with its last state and the reason."""
        return replace(self, state=state, ended_epoch_s=time.time(), why=why)

    def elapsed_s(self, now_s: float) -> float:
        """Seconds for which controllers of the run have run up to `now_s`, without the pauses between them."""
        return self.ran_before_s + max((self.ended_epoch_s or now_s) - self.began_epoch_s, 0.0)

    def encode(self) -> dict[str, Any]:
        """Plain values for the journal."""
        return asdict(self) | {"state": str(self.state)}

    @classmethod
    def decode(cls, values: dict[str, Any] | None) -> Phase | None:
        """Decode what `encode` gave; None stays None."""
        return None if values is None else cls(**{**values, "state": State(values["state"])})


def state_now(folder: RunFolder, phase: Phase | None) -> tuple[State, int | None]:
    """The actual state of a run, and the process id of its controller.

    Args:
        folder: Folder of the run.
        phase: Phase in the run's journal; None: no controller has ever started.

    Returns:
        The state; the process id, None: no controller runs, 0: its id is not known.
    """
    pid = controller_pid(folder.path)
    if pid is not None:
        asked = requested_stop(folder.path) is not None
        return (State.STOPPING if asked else State.RUNNING), pid
    if phase is None:
        return State.NEW, None
    return (State.GONE if phase.state is State.RUNNING else phase.state), None


def phase_of(journal: Journal) -> Phase | None:
    """The phase in a run's journal; None: no controller has ever started."""
    return Phase.decode(journal.state("phase"))
