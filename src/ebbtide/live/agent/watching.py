"""Programs that do not use `ebbtide.trial`: their checkpoint folder is watched.

The folder counts as complete once no file in it has changed for a moment and none is open for writing. It is
copied before it is uploaded, so that the program may write the next checkpoint meanwhile; a copy during which
anything changed is discarded. Before the program is asked to end it is paused for an instant: if nothing is being
written then, the folder is complete, even if the signal kills the program.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ebbtide.live.runtime import RUNTIME, Runtime

_LOGGER = logging.getLogger(__name__)

# A folder without a change for so long is at rest: between the files of one checkpoint programs pause less.
QUIET_S = 1.0
_LOOK_S = 0.2
# A folder that is never at rest is copied between two looks after this time, or nothing of it would be stored.
_RESTLESS_S = 6.0
# A program that is writing has so much time to finish before it is asked to end.
MOST_WAIT_S = 10.0
_HOLD_S = 0.1
_AGAIN_S = 0.05
# A copy is made only if the free space on the disk is this multiple of its size.
_ROOM = 1.2

# Of each file: its path, size in bytes, time of the last change in ns, and inode number.
Signature = tuple[tuple[str, int, int, int], ...]


class Mirror:
    """Watches the checkpoint folder of one program, in a thread of its own.

    Args:
        folder: Folder in which the program writes checkpoints; its present content is stored already.
        copies: Folder for copies, on the same disk.
        pid: Process id of the program, which leads a process group.
        found: Called, from the thread, with the folder of a complete copy.
        is_busy: Whether an upload is under way, during which no copy is made.
        quiet_s: Seconds without a change after which the folder is at rest.
        runtime: Gives the time and the threads.
    """

    def __init__(
        self,
        folder: Path,
        copies: Path,
        pid: int,
        found: Callable[[Path], None],
        is_busy: Callable[[], bool],
        *,
        quiet_s: float = QUIET_S,
        runtime: Runtime = RUNTIME,
    ) -> None:
        if pid <= 1:
            raise ValueError(f"{pid} is no id of a program's process")
        self._runtime = runtime
        self._folder, self._copies, self._pid = folder, copies, pid
        self._found, self._is_busy, self._quiet_s = found, is_busy, quiet_s
        self._stored = self._last = signature_of(folder) or ()
        self._since_s = self._began_s = runtime.monotonic_s()
        self._at_rest: Signature | None = None
        self._number = 0
        self._closed = runtime.flag()
        self._lock = threading.Lock()
        runtime.begin(self._watch)

    def close(self) -> None:
        """Stop watching; `found` is not called for a copy under way."""
        self._closed.set()

    def ask_to_leave(self) -> None:
        """Ask the program to end, at a moment when it writes nothing, if there is one soon. Returns at once."""
        self._runtime.begin(self._leave)

    def has_new(self, exit_code: int) -> bool:
        """Whether the program, now that it has ended, left a complete checkpoint of which there is no copy.

        Args:
            exit_code: Exit code of the program; negative: it was ended by a signal.
        """
        with self._lock:
            now = signature_of(self._folder)
            # A program that ended by itself has finished writing; one that was killed may have been writing.
            return bool(now) and now != self._stored and (exit_code >= 0 or now == self._at_rest)

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK_S):
            try:
                self._look(self._runtime.monotonic_s())
            except OSError as error:
                _LOGGER.warning("checkpoints in %s are not copied yet: %s", self._folder, error)

    def _look(self, now_s: float) -> None:
        now = signature_of(self._folder)
        if now is None or now != self._last:
            if self._last == self._stored:
                self._began_s = now_s
            self._last, self._since_s = now or (), now_s
            if now_s - self._began_s < _RESTLESS_S:
                return
            # It is never at rest: a copy during which nothing changed has to do.
        rests = now_s - self._since_s >= self._quiet_s
        restless = not rests and now_s - self._began_s >= _RESTLESS_S
        if rests:
            self._began_s = now_s
        if not now or now == self._stored or self._is_busy():
            return
        if (rests or restless) and not is_written(self._folder, self._pid):
            with self._lock:
                self._copy(now)

    def _copy(self, now: Signature) -> None:
        shutil.rmtree(self._copies, ignore_errors=True)
        self._copies.mkdir(parents=True)
        if sum(size for _, size, _, _ in now) * _ROOM > shutil.disk_usage(self._copies).free:
            _LOGGER.warning("there is no room on the disk for a copy of %s; it is stored at its end", self._folder)
            self._stored = now
            return
        self._number += 1
        copy = self._copies / f"{self._number:06d}"
        for name, _, _, _ in now:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._folder / name, copy / name)
        # The folder of a program that has died is judged by `has_new`: its last file may be incomplete.
        is_dead = _state_of(self._pid) in ("Z", "")
        if is_dead or signature_of(self._folder) != now or is_written(self._folder, self._pid):
            shutil.rmtree(copy, ignore_errors=True)
            return
        self._stored = now
        if not self._closed.is_set():
            self._found(copy)

    def _leave(self) -> None:
        until_s = self._runtime.monotonic_s() + MOST_WAIT_S
        while not self._closed.is_set() and self._runtime.monotonic_s() < until_s:
            with held(self._pid) as is_held:
                if not is_held:
                    break
                if not is_written(self._folder, self._pid):
                    self._at_rest = signature_of(self._folder)
                    # Paused, it does nothing before it receives this.
                    _signal(self._pid, signal.SIGTERM)
                    return
            self._runtime.sleep(_AGAIN_S)
        _signal(self._pid, signal.SIGTERM)


@contextlib.contextmanager
def held(pid: int) -> Iterator[bool]:
    """Pause a process group inside the `with` block. Gives False if the group does not exist."""
    try:
        os.killpg(pid, signal.SIGSTOP)
    except ProcessLookupError:
        yield False
        return
    try:
        until_s = time.monotonic() + _HOLD_S
        while _state_of(pid) not in ("T", "t", "Z", "") and time.monotonic() < until_s:
            time.sleep(0.001)
        yield True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGCONT)


def signature_of(folder: Path) -> Signature | None:
    """The files of a folder, except hidden ones, which are still being written. None: it changed meanwhile."""
    found = []
    try:
        for root, folders, files in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in files:
                path = Path(root) / name
                if not name.startswith(".") and path.is_file():
                    about = path.stat()
                    name = path.relative_to(folder).as_posix()
                    found.append((name, about.st_size, about.st_mtime_ns, about.st_ino))
    except FileNotFoundError:
        return None
    return tuple(sorted(found))


def is_written(folder: Path, pid: int) -> bool:
    """Whether any process of a group has a file below a folder open for writing.

    Args:
        folder: Folder whose files are looked for.
        pid: Id of the process group.
    """
    below = f"{folder.resolve()}{os.sep}"
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        # A process that ends meanwhile writes no more.
        with contextlib.suppress(OSError):
            if os.getpgid(int(process.name)) == pid and any(_writes_below(process, below)):
                return True
    return False


def _writes_below(process: Path, below: str) -> Iterator[bool]:
    for link in (process / "fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith(below):
                about = (process / "fdinfo" / link.name).read_text()
                flags = next(line for line in about.splitlines() if line.startswith("flags:"))
                yield int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
