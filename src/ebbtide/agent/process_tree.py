"""Finds and ends the processes that a machine's programs started, wherever they went.

Processes are found by an environment variable that all processes of a machine inherit; as descendants of the
agent, which adopts those whose parent has ended; and by a record of these, in case the agent itself is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

# Environment variable of an agent and of all that it starts: the agent's working folder, unique to the machine.
MACHINE = "EBBTIDE_MACHINE"

_RECORD = ".processes.json"
_PROC = Path("/proc")
_BOOT_ID = _PROC / "sys/kernel/random/boot_id"
# Longest time spent killing processes: one that waits for a broken disk may never end.
_PATIENCE_S, _BETWEEN_S = 2.0, 0.05
_FROZEN_WITHIN_S = 0.5
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class SystemProcess:
    """A process as /proc shows it; the pair of its id and start time (in ticks since boot) is never reused."""

    pid: int
    started: int
    session: int
    parent: int
    state: str
    threads: int
    name: str = ""

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.started

    @property
    def is_dead(self) -> bool:
        """True if the process has ended, even if its parent has not collected its exit code."""
        return self.state in ("Z", "X") and self.threads <= 1

    @property
    def is_frozen(self) -> bool:
        return self.state in ("T", "t", "Z", "X")


ProcessTable = dict[int, SystemProcess]


class LeftProcesses:
    """The processes that an agent's programs start, and may leave running.

    Args:
        folder: The folder that the agent works in.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._recorded: set[tuple[int, int, int]] = set()
        # The program that started each process that was seen; the program may have ended since.
        self._origins: dict[tuple[int, int], int] = {}
        self._programs: tuple[int, ...] = ()

    def begin(self) -> None:
        """Mark and adopt all that this process starts from now on, and end what an earlier agent left running."""
        os.environ[MACHINE] = str(self._folder)
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        end_machine(self._folder)

    def remember(self) -> None:
        """Record the processes that run now, for the next agent if this one is killed."""
        table = process_table()
        self._note_origins(table)
        found = {
            (each.pid, each.started, each.session)
            for each in _with_descendants(_adopted(table), table)
            if not each.is_dead
        }
        if found != self._recorded:
            new = self._folder / f"{_RECORD}.new"
            new.write_text(json.dumps({"boot": _boot(), "processes": sorted(found)}), encoding="utf-8")
            new.replace(self._folder / _RECORD)
            self._recorded = found

    def reap(self, programs: Collection[int]) -> None:
        """Collect the exit codes of adopted processes; to be called in the thread that starts programs.

        Args:
            programs: Ids of the programs' own processes, whose exit codes are collected elsewhere.
        """
        self._programs = tuple(programs)
        if sys.platform != "linux":
            return
        own = os.getsid(0)
        # Look at any ended child, but collect its exit code only once it is known to be an adopted process.
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in programs or os.getsid(ended.si_pid) == own:
                    return
                os.waitpid(ended.si_pid, os.WNOHANG)

    def end(self) -> None:
        """Kill all of these processes, now that their assignment is over."""
        _end(lambda table: [*_adopted(table), *_marked(MACHINE, str(self._folder), table)])

    def end_of(self, program: int | None, name: str, value: str) -> None:
        """Kill what one program started, now that its assignment is over, while other programs run.

        A process with its own session, a cleared environment and no parent is known only if `remember` saw it
        while it had a parent; if not, it is killed with the last program that runs beside it.

        Args:
            program: Id of the program's process; None: it has not begun.
            name: Name of an environment variable that all its processes have.
            value: Value of that variable.
        """
        self._note_origins(process_table())

        def found(table: ProcessTable) -> list[SystemProcess]:
            own = [
                each
                for each in table.values()
                if program is not None and program in (each.session, self._origins.get(each.key))
            ]
            return [*own, *_marked(name, value, table)]

        _end(found)

    def _note_origins(self, table: ProcessTable) -> None:
        """Note which program started which process, as far as that can be seen now."""
        began = {program: [table[program]] for program in self._programs if program in table}
        for (pid, started), program in self._origins.items():
            if (each := table.get(pid)) is not None and each.started == started:
                began.setdefault(program, []).append(each)
        self._origins = {
            each.key: program
            for program, processes in began.items()
            for each in _with_descendants(processes, table)
        }


def end_machine(folder: Path) -> int:
    """Kill all processes of the machine whose agent works in a folder, except this process and its ancestors.

    Returns:
        How many processes were killed.
    """
    record = _read_record(folder / _RECORD)
    return _end(lambda table: [*_marked(MACHINE, str(folder), table), *_recorded(record, table)])


def end_program(pid: int) -> None:
    """Kill a process and all its descendants, which may have sessions of their own."""
    _end(lambda table: [table[pid]] if pid in table else [])


def processes_with(name: str, value: str) -> list[int]:
    """Ids of this user's processes that were started with this environment variable; empty without /proc."""
    return [each.pid for each in _marked(name, value, process_table())]


def processes_of(program: int, name: str, value: str, table: ProcessTable) -> list[SystemProcess]:
    """The processes of one program.

    Args:
        program: Id of the program's first process.
        name: Name of an environment variable that all that it started has.
        value: Value of that variable.
        table: All processes.
    """
    own = [each for each in table.values() if each.session == program or each.pid == program]
    return _with_descendants([*own, *_marked(name, value, table)], table)


def kill_processes(name: str, value: str) -> int:
    """Kill the processes that carry this environment variable and their descendants, except this one and its
    ancestors.

    Returns:
        How many processes were killed.
    """
    return _end(lambda table: _marked(name, value, table))


def _end(found: Callable[[ProcessTable], Iterable[SystemProcess]]) -> int:
    """Kill processes and all their descendants; returns how many."""
    killed: set[tuple[int, int]] = set()
    until_s = time.monotonic() + _PATIENCE_S
    while (left := _freeze(found)) and time.monotonic() < until_s:
        for each in left:
            signal_process(each, signal.SIGKILL)
            killed.add(each.key)
        time.sleep(_BETWEEN_S)
    return len(killed)


def _freeze(found: Callable[[ProcessTable], Iterable[SystemProcess]]) -> list[SystemProcess]:
    """Stop processes and all their descendants before they are killed. Killed one by one, they could start others
    meanwhile, or lose the parent by which they are known."""
    frozen: dict[tuple[int, int], SystemProcess] = {}
    refused: set[tuple[int, int]] = set()
    until_s = time.monotonic() + _FROZEN_WITHIN_S
    while time.monotonic() < until_s:
        table = process_table()
        left = [
            each for each in _with_descendants(found(table), table) if not each.is_dead and each.key not in refused
        ]
        new = [each for each in left if each.key not in frozen]
        if not new and all(each.is_frozen for each in left):
            break
        for each in new:
            if signal_process(each, signal.SIGSTOP):
                frozen[each.key] = each
            else:
                refused.add(each.key)
        if not new:
            time.sleep(_BETWEEN_S / 10)
    return list(frozen.values())


def signal_process(process: SystemProcess, number: int) -> bool:
    """Send a signal to this process, never to another that has its id now; returns whether it was sent."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):
        handle = None
    try:
        now = _process(process.pid)
        if now is None or now.key != process.key:
            return False
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def _adopted(table: ProcessTable) -> list[SystemProcess]:
    """Children of this process outside its session. Programs begin sessions of their own, and nothing that they
    start can join this session; processes that a library started here stay in it."""
    own = os.getsid(0)
    return [each for each in table.values() if each.parent == os.getpid() and each.session != own]


def _marked(name: str, value: str, table: ProcessTable) -> list[SystemProcess]:
    wanted = f"{name}={value}".encode()
    found = []
    for each in table.values():
        with contextlib.suppress(OSError):
            if wanted in (_PROC / str(each.pid) / "environ").read_bytes().split(b"\0"):
                found.append(each)
    return found


def _recorded(record: set[tuple[int, int, int]], table: ProcessTable) -> list[SystemProcess]:
    """Recorded processes that still run, and all others in their sessions: the id of a session is not reused until
    it is empty."""
    alive = [
        each
        for pid, started, _ in record
        if (each := table.get(pid)) is not None and each.started == started and not each.is_dead
    ]
    ours = {each.session for each in alive if (*each.key, each.session) in record}
    sessions = ours - {table[pid].session for pid in _ancestry(table) if pid in table}
    return alive + [each for each in table.values() if each.session in sessions]


def _with_descendants(begin: Iterable[SystemProcess], table: ProcessTable) -> list[SystemProcess]:
    """Processes and all their descendants, except this process, its ancestors, and what only these started."""
    children: dict[int, list[SystemProcess]] = {}
    for each in table.values():
        children.setdefault(each.parent, []).append(each)
    found: dict[int, SystemProcess] = {}
    spared = _ancestry(table)
    waiting = [each for each in begin if each.pid not in spared]
    while waiting:
        each = waiting.pop()
        if each.pid not in found and each.pid not in spared:
            found[each.pid] = each
            waiting += children.get(each.pid, [])
    return list(found.values())


def _ancestry(table: ProcessTable) -> set[int]:
    """Ids of this process and of its ancestors."""
    found, pid = set(), os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        pid = table[pid].parent if pid in table else 0
    return found


def _read_record(path: Path) -> set[tuple[int, int, int]]:
    """Ids, start times and sessions that an agent recorded; empty after a reboot of the computer."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["boot"] == _boot():
            return {(int(pid), int(started), int(session)) for pid, started, session in kept["processes"]}
    return set()


def _boot() -> str:
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text(encoding="ascii").strip()
    return ""


def process_table() -> ProcessTable:
    """All processes; empty without /proc."""
    names = (folder.name for folder in _PROC.iterdir()) if _PROC.is_dir() else ()
    found = (_process(int(name)) for name in names if name.isdigit())
    return {each.pid: each for each in found if each is not None}


def _process(pid: int) -> SystemProcess | None:
    with contextlib.suppress(OSError, IndexError, ValueError):
        # The program's name, in brackets, may hold any character.
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        before, _, after = text.rpartition(")")
        rest = after.split()
        state, parent, _, session = rest[:4]
        name = before.partition("(")[2]
        return SystemProcess(pid, int(rest[19]), int(session), int(parent), state, int(rest[17]), name)
    return None
