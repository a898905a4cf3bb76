"""No process outlives its machine: all that one starts carries a mark in its environment, and is found by it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

# Set for an agent, and so for all that it starts: the folder that it works in, of which there is one a machine.
MACHINE = "EBBTIDE_MACHINE"

_PROC = Path("/proc")
_ROUNDS, _BETWEEN_S = 40, 0.05


def processes_with(name: str, value: str) -> list[int]:
    """Process ids of this user's that were started with a variable of that value; none where there is no /proc."""
    wanted = f"{name}={value}".encode()
    found = []
    for folder in _PROC.iterdir() if _PROC.is_dir() else ():
        if folder.name.isdigit():
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def kill_processes(name: str, value: str) -> int:
    """Kill them, but for this process and those above it, until none is left; returns how many that were."""
    killed: set[int] = set()
    spared = _ancestry()
    for _ in range(_ROUNDS):
        left = [pid for pid in processes_with(name, value) if pid not in spared and not _is_dead(pid)]
        if not left:
            break
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        # What it started in the last instant is found in the next round.
        time.sleep(_BETWEEN_S)
    return len(killed)


def _ancestry() -> set[int]:
    """This process, and all that it descends from."""
    found, pid = set(), os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        pid = _status(pid)[1]
    return found


def _is_dead(pid: int) -> bool:
    """Ended, and perhaps not yet noticed by who started it."""
    return _status(pid)[0] in ("Z", "X", "")


def _status(pid: int) -> tuple[str, int]:
    """Its state by one letter, and the process that started it."""
    try:
        # The name, in brackets, may hold anything.
        rest = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return rest[0], int(rest[1])
    except (OSError, IndexError, ValueError):
        return "", 0
