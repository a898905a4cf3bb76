"""Asks a program to end, however it was started: by a shell with a pipe, `conda run`, or a wrapper in Python.

SIGTERM goes to the program's first process. If that process ends, or does not pass the signal on, while its
children run on, each child gets the signal once. Helpers that a program starts for itself, such as data loaders,
do not get it: the program ends them itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ebbtide.agent.process_tree import ProcessTable, SystemProcess, process_table, processes_of, signal_process
from ebbtide.trial import CHECKPOINT_DIR

_PROC = Path("/proc")
# A shell handles a signal only after its child has ended. Other wrappers may pass it on, and get longer to do so.
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish", "busybox"})
_SHELL_S, _WRAPPER_S = 0.5, 5.0
# Programs and modules that pass signals on to all that they started; the last ones do so as `uv run`.
_FORWARDERS = frozenset(
    {
        *("torchrun", "torch.distributed", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun", "srun"),
        *("docker", "podman", "nerdctl", "singularity", "apptainer", "tini", "dumb-init"),
        *("uvx", "honcho", "supervisord"),
    }
)
_RUNNERS = frozenset({"uv", "pixi", "hatch"})
# Programs and modules that a program starts as helpers for itself.
_HELPERS = frozenset({"multiprocessing", "compile_worker", "wandb", "wandb-core", "loky", "joblib"})
_PYTHON = re.compile(r"python[\d.]*(?:\.exe)?")
_IMPORTS = re.compile(r"\s*from ([\w.]+) import")
# A wrapper hardly works itself: it uses at most this fraction of its child's processor time.
_WRAPPER_SHARE = 0.2


class Leaving:
    """Asks the processes of one program to end.

    Args:
        pid: Id of its first process.
        folder: The folder for its checkpoints, named in the environment of all that it starts.
        say: Called with a line for the program's log.

    Attributes:
        killed: Whether processes that did not end were killed.
    """

    def __init__(self, pid: int, folder: Path, say: Callable[[str], None]) -> None:
        self._pid, self._folder, self._say = pid, folder, say
        self._asked: dict[tuple[int, int], float] = {}
        self._lock = threading.Lock()
        self.killed = False

    def begin(self) -> None:
        """Ask its first process to end; later calls do nothing."""
        with self._lock:
            if self._asked:
                return
            first = process_table().get(self._pid)
            if first is not None:
                self._ask(first)

    @property
    def has_asked(self) -> bool:
        """True once any process of the program has been asked to end."""
        return bool(self._asked)

    def is_running(self) -> bool:
        """Return whether a process of the program, other than its first, still runs after a request to end."""
        return bool(self._asked) and any(each.pid != self._pid for each in self._members(process_table()))

    def go_on(self) -> bool:
        """Ask the processes to which nobody has passed the signal on.

        Returns:
            Whether any process of the program still runs.
        """
        now_s = time.monotonic()
        table = process_table()
        members = self._members(table)
        alive = {each.pid for each in members}
        with self._lock:
            for each in members:
                if each.key in self._asked or self._is_fed(each, members):
                    continue
                parent = table.get(each.parent)
                if parent is None or parent.pid not in alive:
                    self._pass_on(each, "what started it has ended")
                elif parent.key in self._asked and self._keeps(parent, each, now_s - self._asked[parent.key]):
                    self._pass_on(each, f"`{_command(parent.pid)}` did not pass it on")
        return bool(members)

    def _members(self, table: ProcessTable) -> list[SystemProcess]:
        return [
            each for each in processes_of(self._pid, CHECKPOINT_DIR, str(self._folder), table) if not each.is_dead
        ]

    def _pass_on(self, process: SystemProcess, why: str) -> None:
        if not is_helper(_words(process.pid)) and self._ask(process):
            self._say(f"ebbtide: SIGTERM was passed on to `{_command(process.pid)}`, since {why}")

    def _ask(self, process: SystemProcess) -> bool:
        self._asked[process.key] = time.monotonic()
        return signal_process(process, signal.SIGTERM)

    def _keeps(self, parent: SystemProcess, child: SystemProcess, since_s: float) -> bool:
        """Return whether a process asked to end only waits for its child, without passing the signal on."""
        if is_forwarder(_words(parent.pid)) or _command(child.pid) == _command(parent.pid):
            return False
        if parent.name in _SHELLS or _ignores(parent.pid):
            return since_s >= _SHELL_S
        return since_s >= _WRAPPER_S and _cpu_ticks(parent.pid) <= _WRAPPER_SHARE * _cpu_ticks(child.pid)

    @staticmethod
    def _is_fed(process: SystemProcess, members: list[SystemProcess]) -> bool:
        """Return whether a process reads the output of another member, as `tee` does, and so ends after it."""
        with contextlib.suppress(OSError):
            pipe = os.readlink(_PROC / str(process.pid) / "fd/0")
            if pipe.startswith("pipe:"):
                return any(_prints_to(other.pid, pipe) for other in members if other.pid != process.pid)
        return False


def _prints_to(pid: int, pipe: str) -> bool:
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if os.readlink(_PROC / str(pid) / f"fd/{number}") == pipe:
                return True
    return False


def _ignores(pid: int) -> bool:
    """Return whether a process ignores SIGTERM."""
    with contextlib.suppress(OSError, ValueError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def _cpu_ticks(pid: int) -> int:
    """Processor time of a process and of the children that it has waited for, in clock ticks."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        rest = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return sum(map(int, rest[11:15]))
    return 0


def is_helper(words: Sequence[str]) -> bool:
    """Return whether a command line is that of a helper that a program starts for itself, as a data loader is."""
    return not _HELPERS.isdisjoint(_program(words))


def is_forwarder(words: Sequence[str]) -> bool:
    """Return whether a command line is that of a launcher that passes signals on to all that it started."""
    program = _program(words)
    if not _RUNNERS.isdisjoint(program[:1]):
        return "run" in words[1:4]
    return not _FORWARDERS.isdisjoint({*program[:1], ".".join(program[:2])})


def _program(words: Sequence[str]) -> list[str]:
    """Name the program of a command line: its executable, or the parts of the module's name that Python runs.

    Arguments do not count: `--report_to wandb` is no sign of a helper, and a path may have any words in it.
    """
    name = Path(words[0]).name if words else ""
    if not _PYTHON.fullmatch(name):
        return [name]
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return next(rest, "").split(".")
        if word == "-c":
            imported = _IMPORTS.match(next(rest, ""))
            return imported[1].split(".") if imported else []
        if word in ("-X", "-W"):
            next(rest, None)
        elif not word.startswith("-"):
            script = Path(word)
            return [script.parent.name if script.name == "__main__.py" else script.name]
    return []


def _words(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        words = (_PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        return [word.decode(errors="replace") for word in words]
    return []


def _command(pid: int) -> str:
    return " ".join(_words(pid))[:200]
