"""Interface between an agent and the machine that it runs on: storage, notices, programs, time."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ebbtide.agent.checkpoint_watch import Mirror, Span
from ebbtide.agent.config import AgentConfig
from ebbtide.agent.metadata import MachineNotice, notice_reader
from ebbtide.agent.process_tree import LeftProcesses
from ebbtide.agent.processes import TrainingProcess, program_path
from ebbtide.agent.program_output import Printed
from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.checkpoints.tree import Tree
from ebbtide.storage.objects import ObjectStore, object_store
from ebbtide.trial import CHECKPOINT_DIR

# Called with each line that a program prints, with numbers of lines that are left out, and with None at its end.
OnLine = Callable[[Printed], None]


class Program(Protocol):
    """A running program."""

    @property
    def pid(self) -> int:
        """Id of its process, which leads a process group."""
        ...

    @property
    def exit_code(self) -> int | None:
        """Exit code of the program; negative: minus the signal that ended it; None: it still runs."""
        ...

    def ask_to_save(self) -> None:
        """Ask a program that uses `ebbtide.trial` to save; the signal would end any other program."""
        ...

    def ask_to_leave(self) -> None:
        """Ask the program to save and end."""
        ...

    def kill(self) -> None:
        """End the program, and all that it started, at once."""
        ...


class Mirrors(Protocol):
    """Watches the checkpoint folder of a program.

    Attributes:
        written: When the last save was written, set by `has_new`; None: it was written as the program ended.
    """

    written: Span | None

    @property
    def has_asked(self) -> bool:
        """True once the program has been asked to end; it may have ended before."""
        ...

    def stepped(self) -> None:
        """Note that the program has made a step."""
        ...

    def close(self) -> None:
        """Watch no more."""
        ...

    def ask_to_leave(self) -> None:
        """Ask the program to end, at a moment when it writes nothing, if there is one soon."""
        ...

    def is_running(self) -> bool:
        """Return whether a process of the program, other than its first, still runs after a request to end."""
        ...

    def kill_rest(self) -> None:
        """Note that the program's remaining processes are killed: files still being written are incomplete."""
        ...

    def has_new(self, exit_code: int) -> bool:
        """Return whether the program, which has ended, left a complete checkpoint that is not copied yet.

        Args:
            exit_code: Exit code of the program; negative: it was ended by a signal.
        """
        ...


class RentedMachine(Protocol):
    """A rented machine, as its agent uses it.

    Attributes:
        runtime: Its clock and threads.
        objects: The storage of the run.
        remembers_every_s: Seconds between calls of `remember`.
    """

    runtime: Runtime
    objects: ObjectStore
    remembers_every_s: float

    def begin(self, folder: Path, on_end: Callable[[], None]) -> None:
        """End what an earlier agent left running, and make the folder of this agent anew.

        Args:
            folder: Folder in which the agent works.
            on_end: Called when the agent is asked to end, as a service manager does.
        """
        ...

    def notice(self) -> MachineNotice:
        """Return the cloud's notice of the machine's end.

        Raises:
            OSError: The metadata service does not answer.
        """
        ...

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        on_line: OnLine,
        cores: Sequence[int] = (),
    ) -> Program:
        """Start a program.

        Args:
            arguments: The command as a list of arguments; no shell reads it.
            environment: Variables that are added to the agent's.
            folder: Working directory of the program.
            on_line: Called, from another thread, with what it prints.
            cores: Numbers of the cores that it is pinned to; empty: it may use any.

        Raises:
            OSError: There is no such executable.
        """
        ...

    def mirror(
        self,
        program: Program,
        folder: Path,
        found: Callable[[Path, Span], None],
        is_busy: Callable[[], bool],
        say: Callable[[str], None],
        bad: Sequence[Tree],
    ) -> Mirrors:
        """Watch the checkpoint folder of a program that may not use `ebbtide.trial`.

        Args:
            program: The program.
            folder: The folder.
            found: Called, from another thread, with the folder of a complete copy, and when its save was written.
            is_busy: Whether an upload is under way, during which no copy is made.
            say: Called, from another thread, with a line for the program's log.
            bad: Checkpoints from which training has failed before its first step.
        """
        ...

    def remember(self) -> None:
        """Record the processes that its programs have started, for the next agent."""
        ...

    def reap(self, programs: Sequence[Program]) -> None:
        """Collect the exit codes of processes that its programs left.

        Args:
            programs: The present programs.
        """
        ...

    def end_left(self, folder: Path | None = None, program: Program | None = None) -> None:
        """End processes that its programs started and left running.

        Args:
            folder: The folder for checkpoints of one program, named in the environment of all that it starts: only
                these are ended, since other programs run. None: all that any program here started.
            program: That program; None: it has not begun.
        """
        ...


class ThisMachine:
    """The machine that this process runs on.

    Args:
        config: The configuration that it was started with.
    """

    remembers_every_s = 1.0

    def __init__(self, config: AgentConfig) -> None:
        self.runtime = RUNTIME
        self.objects = object_store(config.store)
        self._metadata = notice_reader(config.metadata_of, config.metadata_url, config.notice_s)

    def begin(self, folder: Path, on_end: Callable[[], None]) -> None:
        """End what an earlier agent left running, which must not run beside what is started now."""
        signal.signal(signal.SIGTERM, lambda *_: on_end())
        self._left = LeftProcesses(folder)
        self._left.begin()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def notice(self) -> MachineNotice:
        """Return the notice that the instance metadata give."""
        return self._metadata.notice()

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        on_line: OnLine,
        cores: Sequence[int] = (),
    ) -> Program:
        """Start a program as a process of its own."""
        # Checked here since `setpriv`, which starts the program, would report it less clearly.
        name, path = arguments[0], environment.get("PATH", program_path())
        if shutil.which(str(folder / name) if "/" in name else name, path=path) is None:
            raise FileNotFoundError(f"{name} is not found on the machine, or cannot be executed")
        return TrainingProcess(arguments, environment, folder, on_line, cores)

    def mirror(
        self,
        program: Program,
        folder: Path,
        found: Callable[[Path, Span], None],
        is_busy: Callable[[], bool],
        say: Callable[[str], None],
        bad: Sequence[Tree],
    ) -> Mirrors:
        """Watch the folder, with copies beside it."""
        copies = folder.parent / "copies"
        return Mirror(folder, copies, program.pid, found, is_busy, say=say, bad=bad, runtime=self.runtime)

    def remember(self) -> None:
        """Record the processes that run now."""
        self._left.remember()

    def reap(self, programs: Sequence[Program]) -> None:
        """Collect the exit codes of adopted processes; to be called in the thread that starts programs."""
        self._left.reap([program.pid for program in programs])

    def end_left(self, folder: Path | None = None, program: Program | None = None) -> None:
        """Kill processes that programs left running."""
        if folder is None:
            self._left.end()
        else:
            self._left.end_of(None if program is None else program.pid, CHECKPOINT_DIR, str(folder))


def checkpoints_of(machine: RentedMachine, trial_id: str) -> CheckpointStore:
    """The checkpoints of a trial, as a machine reads and writes them."""
    return CheckpointStore(machine.objects, trial_id, machine.runtime)
