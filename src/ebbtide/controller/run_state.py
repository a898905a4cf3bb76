"""The state of a live run, and requests to stop it.

The controller writes the state into the run's journal, and holds a lock while it runs. A user stops a run by a
request in a file of the run's folder, which the controller reads at every poll, so that it works even while the
journal is busy.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from ebbtide.base.files import only_one, write_text
from ebbtide.base.json_values import check_numbers
from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.journal.journal import Journal, journal_of
from ebbtide.errors import EbbtideError, InputError

LOCK, _PID, _REQUEST = "controller.lock", "controller.pid", "stop.json"
_REQUEST_BYTES = 100
# A process that checks whether there is a controller holds the lock for an instant.
_LOCKED_FOR_S = 1.0


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
    REFUSED = "refused"  # its policy or prices refused it before anything was rented, and would again
    ELSEWHERE = "taken over"  # another controller acts for it, from a copy of its folder or another host
    LOST = "journal lost"  # the journal is empty, though a controller has started before
    GONE = "controller gone"  # the controller was killed; machines run until they miss its heartbeat


# A run in one of these states can be resumed.
CAN_RESUME = frozenset(
    {State.STOPPED, State.DOWN, State.GAVE_UP, State.BROKEN, State.ELSEWHERE, State.LOST, State.GONE}
)
OVER = frozenset({State.FINISHED, State.FAILED})
# In one of these states a run has ended for good: it is not continued by itself.
ENDED = OVER | {State.GAVE_UP, State.DOWN}


@dataclass(frozen=True)
class RunPhase:
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
    def begin(cls, before: RunPhase | None, pid: int, last_seen_epoch_s: float) -> RunPhase:
        """Phase of a controller that starts now.

        Args:
            before: Phase that the previous controller wrote; None: this is the first controller.
            pid: Process id of the new controller.
            last_seen_epoch_s: When the previous controller last wrote anything, in seconds since 1970.
        """
        now_s = time.time()
        if before is None:
            return cls(State.RUNNING, pid, now_s, now_s)
        last_s = before.ended_epoch_s if before.ended_epoch_s is not None else last_seen_epoch_s
        ran_s = before.ran_before_s + max(last_s - before.began_epoch_s, 0.0)
        return cls(State.RUNNING, pid, now_s, before.first_began_epoch_s, ran_s)

    def end(self, state: State, why: str = "") -> RunPhase:
        """The same after the controller has ended, with its last state and the reason."""
        return replace(self, state=state, ended_epoch_s=time.time(), why=why)

    def elapsed_s(self, now_s: float) -> float:
        """Seconds for which controllers of the run have run up to `now_s`, without the pauses between them."""
        return self.ran_before_s + max((self.ended_epoch_s or now_s) - self.began_epoch_s, 0.0)

    def encode(self) -> dict[str, Any]:
        """Plain values for the journal."""
        return asdict(self) | {"state": str(self.state)}

    @classmethod
    def decode(cls, values: dict[str, Any] | None) -> RunPhase | None:
        """Decode what `encode` gave; None stays None.

        Raises:
            LookupError: It lacks a field.
            TypeError: A time is no number, or a field is not known.
            ValueError: The state is not known.
        """
        if values is None:
            return None
        check_numbers(values)
        return cls(**{**values, "state": State(values["state"])})


def state_now(folder: RunFolder, phase: RunPhase | None) -> tuple[State, int | None]:
    """The actual state of a run, and the process id of its controller.

    Args:
        folder: Folder of the run.
        phase: Phase in the run's journal; None: no controller has ever started.

    Returns:
        The state; the process id, None: no controller runs, 0: its id is not known.
    """
    pid = controller_of(folder)
    if pid is not None:
        asked = requested_stop(folder.path) is not None
        return (State.STOPPING if asked else State.RUNNING), pid
    if phase is None:
        # A lock file means that a controller started, and the first thing that it writes is its phase.
        return (State.LOST if (folder.path / LOCK).exists() else State.NEW), None
    return (State.GONE if phase.state is State.RUNNING else phase.state), None


def phase_of(journal: Journal) -> RunPhase | None:
    """The phase in a run's journal; None: no controller has ever started.

    Raises:
        InputError: The journal is damaged, or cannot be read.
    """
    return journal.decoded(RunPhase.decode, journal.state("phase"))


class StopRequest(StrEnum):
    """Request to a controller to stop its run."""

    STOP = "stop"  # save all trials, wait for uploads, release all machines
    DOWN = "down"  # release all machines now, with a short time for saves


def request_stop(run: Path, request: StopRequest) -> None:
    """Leave a request for the controller of a run, whether one runs or not.

    Args:
        run: Path of the run's folder.
        request: What the controller is to do; `stop` does not replace an earlier `down`.
    """
    if requested_stop(run) is StopRequest.DOWN:
        return
    text = _request_text(request)
    try:
        write_text(run / _REQUEST, text, mode=0o600)
    except OSError:
        # On a full disk, overwrite the file that the controller made, which has room for any request.
        with (run / _REQUEST).open("r+", encoding="utf-8") as file:
            file.write(text)


def _request_text(request: StopRequest | None) -> str:
    """Text of a request, always of the same length, so that one can overwrite another."""
    values = {"request": request and str(request), "at_epoch_s": time.time()}
    return json.dumps(values).ljust(_REQUEST_BYTES) + "\n"


def requested_stop(run: Path) -> StopRequest | None:
    """The last request to a run's controller; None: there is none."""
    try:
        found = json.loads((run / _REQUEST).read_text(encoding="utf-8"))["request"]
        return None if found is None else StopRequest(found)
    except OSError:
        # There is no file, or the disk does not answer; then the run waits for it, as for its journal.
        return None
    except (ValueError, KeyError, TypeError):
        # The file is damaged, or not ours: the safe reading is to stop spending money.
        return StopRequest.STOP


def forget_stop(run: Path) -> None:
    """Discard any earlier request when a new controller starts, and make room for the next one."""
    write_text(run / _REQUEST, _request_text(None), mode=0o600)


@contextmanager
def controlling(run: Path, runtime: Runtime = RUNTIME) -> Iterator[None]:
    """Be the only controller of a run inside the `with` block; `controller_pid` gives this process.

    Args:
        run: Path of the run's folder.
        runtime: Gives the time, and waits.

    Raises:
        InputError: Another controller has the run.
    """
    until_s = runtime.monotonic_s() + _LOCKED_FOR_S
    while True:
        lock = only_one(run / LOCK, "controller")
        try:
            lock.__enter__()
            break
        except InputError:
            if runtime.monotonic_s() > until_s:
                raise
            runtime.sleep(0.05)
    try:
        write_text(run / _PID, f"{os.getpid()}\n", mode=0o600)
        yield
    finally:
        (run / _PID).unlink(missing_ok=True)
        lock.__exit__(None, None, None)


def controller_of(folder: RunFolder) -> int | None:
    """Process id of a run's controller; None: no controller is known to run; 0: one runs, its id is not known.

    A journal in a database also knows of controllers on other hosts.
    """
    # A caller that needs the journal reads it next, and gets the error then.
    with suppress(EbbtideError):
        return known_controller_of(folder)
    return None


def known_controller_of(folder: RunFolder) -> int | None:
    """Process id of a run's controller, as `controller_of` has it; an error where none can be looked for.

    Raises:
        JournalError: The journal cannot be read; of a database that does not answer, `JournalAwayError`.
    """
    pid = controller_pid(folder.path)
    if pid is None and journal_of(folder, read_only=True).is_controlled():
        return 0
    return pid


def controller_words(pid: int) -> str:
    """Describe a controller to its user, by the process id that `controller_of` gave."""
    return f"pid {pid}" if pid else "on another host, or its pid is not known"


def controller_pid(run: Path) -> int | None:
    """Process id of a run's controller; None: no controller runs; 0: one runs, but its id is not known."""
    try:
        with (run / LOCK).open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                with suppress(OSError, ValueError):
                    return int((run / _PID).read_text(encoding="utf-8"))
                return 0
    except FileNotFoundError:
        pass
    return None
