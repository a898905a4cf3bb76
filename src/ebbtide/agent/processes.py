"""The training program as a process of this machine."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ebbtide.agent.process_tree import end_program
from ebbtide.agent.program_output import MOST_OF_TEXT, DroppedLines, Line, LineReader, Printed, Thinning

# `setpriv` ends a program with its parent, without Python code between fork and exec, where other threads may hold
# locks.
_SETPRIV = shutil.which("setpriv")
# `taskset` pins a program to cores from its first instruction on; without it, all cores are used.
_TASKSET = shutil.which("taskset")
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_GRACE_S = 5.0

_CHUNK_BYTES = 1 << 16


def program_path() -> str:
    """Return the search path for programs: PATH, with this Python's folder in front unless it is in PATH."""
    path, own = os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)
    return path if not own or own in path.split(os.pathsep) else f"{own}{os.pathsep}{path}"


class TrainingProcess:
    """A running program, in a process group of its own, which ends when this process does.

    Args:
        arguments: The command as a list of arguments; no shell reads it.
        environment: Variables that are added to this process's.
        folder: Working directory of the program.
        on_line: Called, from another thread, with each line of JSON as a mapping, each other line as text, the
            number of lines that are left out where there are very many, and None when the program has ended.
        cores: Numbers of the cores that it is pinned to; empty: it may use any.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        on_line: Callable[[Printed], None],
        cores: Sequence[int] = (),
    ) -> None:
        self._on_line = on_line
        # The process that uses `ebbtide.trial`, which a script may have started; None: none has reported itself.
        self._speaker: int | None = None
        kept = [_TASKSET, "--cpu-list", ",".join(map(str, cores))] if _TASKSET and cores else []
        guarded = [*([_SETPRIV, "--pdeathsig", "KILL", "--"] if _SETPRIV else []), *kept, *arguments]
        self.process = subprocess.Popen(
            guarded,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env=os.environ | {"PATH": program_path()} | dict(environment),
            start_new_session=True,
            preexec_fn=None if _SETPRIV else _die_with_parent,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Id of its process, which leads a process group."""
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the program; negative: minus the signal that ended it; None: it still runs."""
        return self.process.poll()

    def ask_to_save(self) -> None:
        """Ask a program that uses `ebbtide.trial` to save; the signal would end any other program."""
        self._signal(signal.SIGUSR1)

    def ask_to_leave(self) -> None:
        """Ask the program to save and end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the program at once, with its process group and all that it started."""
        if self.process.poll() is None:
            end_program(self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=_GRACE_S)

    def _signal(self, number: int) -> None:
        # Signal one process only: it ends its own children, such as data loaders. A shell would end at once.
        with contextlib.suppress(ProcessLookupError):
            if self._speaker is not None and self._is_ours(self._speaker):
                os.kill(self._speaker, number)
            else:
                self.process.send_signal(number)

    def _is_ours(self, pid: int) -> bool:
        """Return whether a process belongs to this program; an id that the program prints may be wrong."""
        if self.process.poll() is not None or pid <= 1:
            return False
        try:
            # Its launcher, such as torchrun, may have given it a session of its own.
            return os.getsid(pid) == self.process.pid or self.process.pid in _parents(pid)
        except (OSError, OverflowError):
            return False

    def _hear(self, pid: object) -> None:
        # A script may start several programs in turn.
        is_gone = self._speaker is None or not self._is_ours(self._speaker)
        if is_gone and isinstance(pid, int) and self._is_ours(pid):
            self._speaker = pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        reader, thinning = LineReader(), Thinning()
        with self.process.stdout as output:
            while True:
                chunk = os.read(output.fileno(), _CHUNK_BYTES)
                lines = reader.lines(chunk)
                kept = thinning.passing(lines, time.monotonic())
                for line in kept:
                    found = _parsed(line)
                    if isinstance(found, dict) and "api" in found:
                        self._hear(found.get("pid"))
                    self._on_line(found)
                if len(kept) < len(lines):
                    self._on_line(DroppedLines(len(lines) - len(kept)))
                if not chunk:
                    break
        self.process.wait()
        self._on_line(None)


def _parsed(line: str) -> Line:
    # A progress bar leaves its line open, so a report of the program may follow it on the same line.
    if "{" in line:
        begins = line.find('{"')
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(line[max(begins, 0) :])
            if isinstance(found, dict):
                return found
    return line[:MOST_OF_TEXT]


def _parents(pid: int) -> Iterator[int]:
    """Ids of the ancestors of a process, its parent first."""
    while pid > 1:
        # Its name, in parentheses, may hold anything.
        pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        yield pid


def _die_with_parent() -> None:
    """Run after the fork: a training must end with its agent, since another agent may start the same training."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
