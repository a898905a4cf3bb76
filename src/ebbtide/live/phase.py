"""Where a live run is in its life, as its controller writes it down and as anyone reads it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from ebbtide.live.journal import Journal
from ebbtide.live.settings import RunFolder
from ebbtide.live.stopping import controller_pid, requested_stop


class State(StrEnum):
    """What a run does, in one word for its user."""

    NEW = "not begun"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"  # by its user; it can go on
    DOWN = "down"  # its machines were ended by `ebbtide down`; it can go on
    GAVE_UP = "gave up"  # its policy ended it: out of budget, say
    FINISHED = "finished"
    FAILED = "failed"  # over, and some trial of it failed
    BROKEN = "broken off"  # its controller ended with an error
    GONE = "controller gone"  # killed: machines may run until they miss it


# A controller goes on from these; machines of theirs have been given back.
CAN_RESUME = frozenset({State.STOPPED, State.DOWN, State.GAVE_UP, State.BROKEN, State.GONE})
OVER = frozenset({State.FINISHED, State.FAILED})


@dataclass(frozen=True)
class Phase:
    """As kept in the journal. All times are seconds of this machine's clock, those with `epoch` since 1970.

    Attributes:
        state: As the controller left it.
        pid: Of that controller.
        began_epoch_s: When that controller began.
        first_began_epoch_s: When the first one did.
        ran_before_s: How long those before it ran.
        ended_epoch_s: When it ended; None: it has not, or was killed.
        why: In words, where it did not finish.
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
        """A controller begins, where `before` is what the one before it left, and was last heard of then."""
        now_s = time.time()
        if before is None:
            return cls(State.RUNNING, pid, now_s, now_s)
        last_s = before.ended_epoch_s if before.ended_epoch_s is not None else last_seen_epoch_s
        ran_s = before.ran_before_s + max(last_s - before.began_epoch_s, 0.0)
        return cls(State.RUNNING, pid, now_s, before.first_began_epoch_s, ran_s)

    def end(self, state: State, why: str = "") -> Phase:
        """The controller ends."""
        return replace(self, state=state, ended_epoch_s=time.time(), why=why)

    def elapsed_s(self, now_s: float) -> float:
        """How long controllers of the run have run by `now_s`, pauses left out."""
        return self.ran_before_s + max((self.ended_epoch_s or now_s) - self.began_epoch_s, 0.0)

    def encode(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"state": str(self.state)}

    @classmethod
    def decode(cls, values: dict[str, Any] | None) -> Phase | None:
        """From what `encode` gave."""
        return None if values is None else cls(**{**values, "state": State(values["state"])})


def state_now(folder: RunFolder, phase: Phase | None) -> tuple[State, int | None]:
    """What a run truly does, and the process id of its controller if one has it.

    Args:
        folder: The run's.
        phase: As its journal has it.
    """
    pid = controller_pid(folder.path)
    if pid is not None:
        asked = requested_stop(folder.path) is not None
        return (State.STOPPING if asked else State.RUNNING), pid
    if phase is None:
        return State.NEW, None
    return (State.GONE if phase.state is State.RUNNING else phase.state), None


def phase_of(journal: Journal) -> Phase | None:
    """As the journal has it; None: no controller has begun."""
    return Phase.decode(journal.state("phase"))
