"""Simulated machines: real agents in simulated processes, and programs that only count their steps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.harness.deterministic.faults import Faults
from tests.harness.deterministic.storage import SimulatedStorage, StorageOf
from tests.harness.deterministic.virtual_time import Process, VirtualRuntime, VirtualTime

from ebbtide.agent.checkpoint_watch import Span
from ebbtide.agent.machine import Mirrors, OnLine, Program
from ebbtide.agent.metadata import MachineNotice
from ebbtide.agent.program_output import ProgramOutput
from ebbtide.base.runtime import Runtime
from ebbtide.storage.checkpoints.tree import Tree
from ebbtide.storage.objects import ObjectStore
from ebbtide.trial import CHECKPOINT_DIR, MAX_STEPS, TRIAL_ID

_FILE = "state.json"
# Shares of steps at which a program fails, or is killed as if out of memory; of metadata requests that fail.
_FAILS, _IS_KILLED, _NO_METADATA = 0.001, 0.002, 0.08
_PRINTS, _LINES, _MOST_WAITING = 0.01, 3_000, 2_500
_LETTERS = str.maketrans("0123456789", "abcdefghij")
_STEP_S, _SAVE_S, _START_S = (1.0, 5.0), (0.05, 1.5), (0.5, 4.0)


def sum_of(steps: int) -> int:
    """Return the sum of 1 to `steps`, as added up by a program that did each step once."""
    return steps * (steps + 1) // 2


def read_state(content: bytes) -> tuple[int, int]:
    """Return the step and the sum in a checkpoint's file."""
    step, total = json.loads(content)
    return step, total


class CountingProgram:
    """A program that uses `ebbtide.trial`, as the agent sees it: it adds up its steps, and saves on request.

    Args:
        process: The simulated process of its agent.
        time: The simulation's clock.
        faults: Decides when it fails.
        environment: Environment variables from its agent.
        on_line: Called with each line that it prints.
        on_step: Called with the trial, a step, and whether the program begins there or has done it.
    """

    def __init__(
        self,
        process: Process,
        time: VirtualTime,
        faults: Faults,
        environment: Mapping[str, str],
        on_line: OnLine,
        on_step: Callable[[Process, str, int, bool], None],
    ) -> None:
        self._time, self._faults, self._on_line = time, faults, on_line
        self._on_step, self._process, self._trial = on_step, process, environment[TRIAL_ID]
        self._folder, self._last = Path(environment[CHECKPOINT_DIR]), int(environment[MAX_STEPS])
        self._code: int | None = None
        self._leaves = self._saves = False
        # Runs in the agent's process, so that the program ends with it.
        time.begin(process, self._run)

    @property
    def pid(self) -> int:
        return 0

    @property
    def exit_code(self) -> int | None:
        return self._code

    def ask_to_save(self) -> None:
        self._saves = True

    def ask_to_leave(self) -> None:
        self._leaves = True

    def kill(self) -> None:
        self._exit(-9)

    def _exit(self, code: int) -> None:
        if self._code is None:
            self._code = code
            self._on_line(None)

    def _run(self) -> None:
        self._time.sleep(self._faults.number("program starts in", *_START_S))
        if self._code is not None:
            return
        newest = max(self._folder.glob(f"*/{_FILE}"), default=None)
        step, total = read_state(newest.read_bytes()) if newest is not None else (0, 0)
        began = step
        self._on_step(self._process, self._trial, step, True)
        self._on_line({"api": 1})
        self._on_line({"started": step})
        while step < self._last:
            duration_s = self._faults.number("step takes", *_STEP_S)
            self._time.sleep(duration_s)
            if self._code is not None:
                return
            step, total = step + 1, total + step + 1
            self._on_step(self._process, self._trial, step, False)
            self._on_line({"step": step, "loss": 1.0 / step, "step_s": duration_s})
            now_s = self._time.now_s
            if self._faults.strikes("program prints a lot", _PRINTS, now_s, self._folder.parent.name):
                self._print_much()
            if step > began and self._faults.strikes("program fails", _FAILS, now_s, self._folder.parent.name):
                self._exit(1)
                return
            if self._faults.strikes("program is killed", _IS_KILLED, now_s, self._folder.parent.name):
                self._exit(-9)
                return
            if self._saves or self._leaves or step == self._last:
                self._saves = False
                self._save(step, total)
                if self._code is not None:
                    return
            if self._leaves and step < self._last:
                self._on_line({"left": step})
                self._exit(0)
                return
        self._on_line({"finished": step})
        self._exit(0)

    def _print_much(self) -> None:
        """Print many distinct lines while the agent reads none, and check that few wait for it."""
        for number in range(_LINES):
            self._on_line(str(number).translate(_LETTERS))
        waiting = getattr(self._on_line, "__self__", None)
        if isinstance(waiting, ProgramOutput) and len(waiting) > _MOST_WAITING:
            raise MemoryError(f"{len(waiting)} lines of a program wait for its agent")

    def _save(self, step: int, total: int) -> None:
        duration_s = self._faults.number("save takes", *_SAVE_S)
        self._time.sleep(duration_s)
        if self._code is None:
            place = self._folder / f"step-{step:08d}"
            place.mkdir(parents=True, exist_ok=True)
            (place / _FILE).write_text(json.dumps([step, total]))
            self._on_line({"saved": step, "folder": place.name, "save_s": duration_s})


class SimulatedMachine:
    """A rented machine, as its agent sees it.

    Args:
        process: The process of the agent.
        time: The simulation's clock.
        storage: The objects.
        faults: Decides what goes wrong.
        skew_s: Seconds by which its clock is ahead.
        taken_at_s: Returns the time of the revocation, seconds since 1970; None: there is no notice.
        on_step: Called with the steps of its programs.
        on_start: Called with the number of programs on the machine, whenever it starts one.
    """

    # Simulated programs start no other processes.
    remembers_every_s = 3600.0

    def __init__(
        self,
        process: Process,
        time: VirtualTime,
        storage: SimulatedStorage,
        faults: Faults,
        skew_s: float,
        taken_at_s: Callable[[], float | None],
        on_step: Callable[[Process, str, int, bool], None],
        on_start: Callable[[Process, int], None],
    ) -> None:
        self._on_step, self._on_start = on_step, on_start
        self._programs: list[CountingProgram] = []
        runtime = VirtualRuntime(time, process, skew_s)
        self.runtime: Runtime = runtime
        self.objects: ObjectStore = StorageOf(storage, process, runtime)
        self._process, self._time, self._faults = process, time, faults
        self._skew_s, self._taken_at_s = skew_s, taken_at_s

    def begin(self, folder: Path, on_end: Callable[[], None]) -> None:  # noqa: ARG002
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def notice(self) -> MachineNotice:
        self._process.check()
        if self._faults.strikes("no metadata", _NO_METADATA, self._time.now_s, self._process.name):
            raise OSError("the instance metadata do not answer")
        return MachineNotice(self._taken_at_s())

    def start(
        self,
        arguments: Sequence[str],  # noqa: ARG002
        environment: Mapping[str, str],
        folder: Path,  # noqa: ARG002
        on_line: OnLine,
        cores: Sequence[int] = (),  # noqa: ARG002
    ) -> Program:
        program = CountingProgram(self._process, self._time, self._faults, environment, on_line, self._on_step)
        self._programs = [each for each in [*self._programs, program] if each.exit_code is None]
        self._on_start(self._process, len(self._programs))
        return program

    def mirror(
        self,
        program: Program,
        folder: Path,  # noqa: ARG002
        found: Callable[[Path, Span], None],  # noqa: ARG002
        is_busy: Callable[[], bool],  # noqa: ARG002
        say: Callable[[str], None],  # noqa: ARG002
        bad: Sequence[Tree],  # noqa: ARG002
    ) -> Mirrors:
        return _NoMirror(program)

    def remember(self) -> None:
        self._process.check()

    def reap(self, programs: Sequence[Program]) -> None:
        """Do nothing: a simulated program leaves no processes."""

    def end_left(self, folder: Path | None = None, program: Program | None = None) -> None:
        """Nothing is left."""


class _NoMirror:
    """Copies nothing: these programs report their saves themselves."""

    written: Span | None = None
    has_asked = False

    def __init__(self, program: Program) -> None:
        self._program = program

    def close(self) -> None:
        """Do nothing."""

    def stepped(self) -> None:
        """Do nothing."""

    def ask_to_leave(self) -> None:
        self._program.ask_to_leave()

    def is_running(self) -> bool:
        return False

    def kill_rest(self) -> None:
        """Nothing is left."""

    def has_new(self, exit_code: int) -> bool:  # noqa: ARG002
        return False
