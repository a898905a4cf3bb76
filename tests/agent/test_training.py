"""A training: the lines of its program, as the agent hears them, and the time that it has to leave."""

from __future__ import annotations

import math
import queue
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import LIMIT_S

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.agent.core_shares import CoreShare
from ebbtide.agent.folders import PrivateFolder
from ebbtide.agent.processes import TrainingProcess
from ebbtide.agent.protocol import Ended, Ending
from ebbtide.agent.training import Loop, TrainingRun
from ebbtide.agent.work import SavingTimes
from ebbtide.base.runtime import Runtime
from ebbtide.errors import StorageError
from ebbtide.storage.objects import FolderStore

pytestmark = pytest.mark.usefixtures("processes")


def heard(program: str, folder: Path) -> list[object]:
    lines: queue.Queue[object] = queue.Queue()
    TrainingProcess([sys.executable, "-c", program], {}, folder, lines.put)
    found = []
    while (line := lines.get(timeout=LIMIT_S)) is not None:
        found.append(line)
    return found


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ('print(\'{"step": 1, "loss": 0.5}\')', [{"step": 1, "loss": 0.5}]),
        ("print('words {not json}')", ["words {not json}"]),
        ("print('[1, 2]')", ["[1, 2]"]),
        ("print('{\"open\": ')", ['{"open": ']),
        # A progress bar on standard error ends in no line feed: what is reported stands behind it.
        (
            "import os\nos.write(2, b'\\r 50%|### | 5/10')\nos.write(1, b'{\"step\": 5}\\n')",
            ["", {"step": 5}],
        ),
    ],
)
def test_reports_are_told_from_words(program: str, expected: list[object], tmp_path: Path) -> None:
    assert heard(program, tmp_path) == expected


COUNTS = """
import json, pathlib, time
from ebbtide.trial import Trial

class Keeper:
    def save(self, folder, *, within_step): (pathlib.Path(folder) / "x").write_text("x")
    def restore(self, folder): pass
    ends_at = None

trial = Trial.current()
trial.keep(Keeper())
for step in trial.steps(10_000):
    time.sleep(0.01)
    trial.report(loss=1.0)
"""


@pytest.mark.parametrize(
    "shell",
    [
        "python program.py\necho over\n",
        "true | python program.py\n",
        "exec python program.py\n",
        "python -c 'from ebbtide.trial import Trial; Trial.current()'\npython program.py\necho over\n",
    ],
)
def test_a_program_in_a_script_is_asked_itself(tmp_path: Path, shell: str) -> None:
    """The shell that runs it would end at SIGUSR1, and at SIGTERM without a word to its child."""
    (tmp_path / "program.py").write_text(COUNTS)
    (tmp_path / "wrap.sh").write_text(shell.replace("python", sys.executable))
    kept = tmp_path / "kept"
    kept.mkdir()
    lines: queue.Queue[Any] = queue.Queue()
    environment = {"EBBTIDE_CHECKPOINT_DIR": str(kept), "EBBTIDE_TRIAL_ID": "t", "EBBTIDE_AGENT": "1"}
    program = TrainingProcess(["bash", "wrap.sh"], environment, tmp_path, lines.put)

    def wait(name: str) -> Any:
        while True:
            line = lines.get(timeout=LIMIT_S)
            assert line is not None, f"it ended before it said {name!r}"
            if isinstance(line, dict) and name in line:
                return line

    wait("step")
    program.ask_to_save()
    wait("saved")
    program.ask_to_leave()
    assert wait("left")["left"] > 0
    program.process.wait(LIMIT_S)


def test_what_a_program_says_of_its_process_is_believed_only_of_its_own(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "300"])
    says = (
        "import json, sys, time\n"
        "for pid in (%d, -1, 0, 1, 2**80, 'x', True): print(json.dumps({'api': 1, 'pid': pid}))\n"
        "print('said', flush=True)\ntime.sleep(300)\n"
    )
    lines: queue.Queue[Any] = queue.Queue()
    program = TrainingProcess([sys.executable, "-c", says % other.pid], {}, tmp_path, lines.put)
    try:
        while lines.get(timeout=LIMIT_S) != "said":
            pass
        program.ask_to_leave()
        assert program.process.wait(LIMIT_S) == -signal.SIGTERM
        assert other.poll() is None
    finally:
        program.kill()
        other.kill()
        other.wait()


class HeldProgram:
    """A program of which only what it is asked for is kept, as its mirror is, too."""

    pid, exit_code = 1, None

    def __init__(self) -> None:
        self.asked: list[str] = []

    @property
    def has_asked(self) -> bool:
        return "leave" in self.asked

    def ask_to_save(self) -> None:
        self.asked.append("save")

    def ask_to_leave(self) -> None:
        self.asked.append("leave")

    def kill(self) -> None:
        self.asked.append("kill")

    def close(self) -> None:
        """Nothing is watched."""

    def stepped(self) -> None:
        """Nothing is watched."""


class StillRuntime(Runtime):
    """A clock that stands still; what is to go on beside the caller waits until it is called."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def monotonic_s(self) -> float:
        return 0.0

    def begin(self, target: Callable[[], None]) -> None:
        self.waiting.append(target)


class HeldMachine:
    """A machine with one program."""

    def __init__(self, folder: Path) -> None:
        self.runtime, self.objects, self.program = StillRuntime(), FolderStore(folder), HeldProgram()

    def start(
        self, _arguments: object, _environment: object, _folder: object, on_line: Any, _cores: object
    ) -> Any:
        self.on_line = on_line
        return self.program

    def mirror(self, *_given: object) -> Any:
        return self.program


def begun(
    folder: Path, over: Callable[[TrainingRun, Ended], None] = lambda _training, _ended: None
) -> tuple[TrainingRun, HeldMachine]:
    """A training whose program runs, and its machine; saving is assumed to take ten seconds."""
    machine = HeldMachine(folder / "store")
    loop = Loop(
        put=lambda _training, happened: happened(),
        tell=lambda _report, _at_once: None,
        over=over,
        is_waiting=lambda _training: False,
        end_left=lambda _training: None,
    )
    training = TrainingRun(
        Assignment("t", ("train",), 100, "loss"),
        AgentConfig("run", "m-1", str(folder / "store"), str(folder / "work")),
        machine,  # type: ignore[arg-type]
        SavingTimes(first_s=10.0, margin_s=0.0),
        loop,
        CoreShare(),
    )
    machine.runtime.waiting.pop(0)()
    return training, machine


def asked_by(training: TrainingRun, program: HeldProgram, now_s: float, taken_at_s: float) -> list[str]:
    """Look at a training; returns what its program has been asked for so far."""
    training.tick(now_s, taken_at_s, taken_at_s)
    return program.asked


def test_a_program_that_does_not_say_when_it_has_saved_gets_as_much_time_again(tmp_path: Path) -> None:
    training, machine = begun(tmp_path)
    assert asked_by(training, machine.program, 9.9, 30.0) == []
    assert asked_by(training, machine.program, 10.0, 30.0) == ["leave"]
    assert asked_by(training, machine.program, 19.9, 30.0) == ["leave"]
    # What it has written by now can still be stored.
    assert asked_by(training, machine.program, 20.0, 30.0) == ["leave", "kill"]


def test_a_program_that_says_when_it_has_saved_trains_as_long_as_it_can(tmp_path: Path) -> None:
    training, machine = begun(tmp_path)
    machine.on_line({"api": 1})
    assert asked_by(training, machine.program, 19.9, 30.0) == []
    assert asked_by(training, machine.program, 20.0, 30.0) == ["leave"]
    assert asked_by(training, machine.program, 29.9, 30.0) == ["leave"]


def test_a_training_whose_outputs_could_not_be_stored_has_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, it counted as finished, its machine was given back, and its results were gone."""
    endings: list[Ended] = []
    training, machine = begun(tmp_path, lambda _training, ended: endings.append(ended))
    training._work.private = PrivateFolder(tmp_path / "private", linked=tmp_path / "store")

    def refused(*_: object) -> str:
        raise StorageError("the files that the program left are not kept: AccessDenied (403)")

    monkeypatch.setattr("ebbtide.agent.training.keep_outputs", refused)
    machine.program.exit_code = 0  # type: ignore[assignment]
    machine.on_line(None)
    training.tick(1.0, math.inf, math.inf)
    training.tick(2.0, math.inf, math.inf)
    assert endings == []
    machine.runtime.waiting.pop()()
    training.tick(3.0, math.inf, math.inf)
    (ended,) = endings
    assert (ended.how, ended.of_machine) == (Ending.FAILED, True)
    assert ended.tail == ("the files that the program left are not kept: AccessDenied (403)",)
