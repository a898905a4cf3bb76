"""How a run's user reaches its controller: a request in a file of the run's folder, and the lock of who runs it.

The file is read at every poll and costs one look at the folder, so it works while the journal is busy.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from ebbtide._files import only_one, write_text
from ebbtide.errors import InputError

LOCK, _PID, _REQUEST = "controller.lock", "controller.pid", "stop.json"
# Whoever asks whether there is a controller holds the lock for an instant.
_LOCKED_FOR_S = 1.0


class StopRequest(StrEnum):
    """What a controller is asked to do."""

    STOP = "stop"  # save all, wait for uploads, give all back
    DOWN = "down"  # give all back now, after a short grace for saves


def request_stop(run: Path, request: StopRequest) -> None:
    """Ask the controller of a run, whether there is one or not.

    Args:
        run: The run's folder.
        request: What for; `down` is never weakened to `stop`.
    """
    if requested_stop(run) is not StopRequest.DOWN:
        write_text(run / _REQUEST, json.dumps({"request": str(request), "at_epoch_s": time.time()}) + "\n")


def requested_stop(run: Path) -> StopRequest | None:
    """What was asked for last; None: nothing is."""
    try:
        return StopRequest(json.loads((run / _REQUEST).read_text(encoding="utf-8"))["request"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        # Somebody's own file of that name: to end the spending is the safe reading.
        return StopRequest.STOP


def forget_stop(run: Path) -> None:
    """A controller begins: what was asked for before is over."""
    (run / _REQUEST).unlink(missing_ok=True)


@contextmanager
def controlling(run: Path) -> Iterator[None]:
    """Be the only controller of a run, and found as that by `controller_pid`.

    Raises:
        InputError: Another controller has the run.
    """
    until_s = time.monotonic() + _LOCKED_FOR_S
    while True:
        lock = only_one(run / LOCK, "controller")
        try:
            lock.__enter__()
            break
        except InputError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)
    try:
        write_text(run / _PID, f"{os.getpid()}\n")
        yield
    finally:
        (run / _PID).unlink(missing_ok=True)
        lock.__exit__(None, None, None)


def controller_pid(run: Path) -> int | None:
    """The process id of the controller that has a run now; None: none has. 0: one has, and its id is not known."""
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
