"""How a user stops a run: a request in a file of the run's folder, and the lock that its controller holds.

The controller reads the file at every poll, so a request works even while the journal is busy.
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
# A process that checks whether there is a controller holds the lock for an instant.
_LOCKED_FOR_S = 1.0


class StopRequest(StrEnum):
    """What a controller is asked to do."""

    STOP = "stop"  # save all trials, wait for uploads, release all machines
    DOWN = "down"  # release all machines now, with a short time for saves


def request_stop(run: Path, request: StopRequest) -> None:
    """Leave a request for the controller of a run, whether one runs or not.

    Args:
        run: Path of the run's folder.
        request: What the controller is to do; `stop` does not replace an earlier `down`.
    """
    if requested_stop(run) is not StopRequest.DOWN:
        write_text(run / _REQUEST, json.dumps({"request": str(request), "at_epoch_s": time.time()}) + "\n")


def requested_stop(run: Path) -> StopRequest | None:
    """The last request to a run's controller; None: there is none."""
    try:
        return StopRequest(json.loads((run / _REQUEST).read_text(encoding="utf-8"))["request"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        # The file is damaged, or not ours: to stop spending money is the safe reading.
        return StopRequest.STOP


def forget_stop(run: Path) -> None:
    """Remove the request of a run, since a new controller starts."""
    (run / _REQUEST).unlink(missing_ok=True)


@contextmanager
def controlling(run: Path) -> Iterator[None]:
    """Be the only controller of a run inside the `with` block; `controller_pid` gives this process.

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
