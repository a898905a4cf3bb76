"""Lines of a training program, as the agent hears them."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ebbtide.live.agent.processes import TrainingProcess


def heard(program: str, folder: Path) -> list[object]:
    lines: queue.Queue[object] = queue.Queue()
    TrainingProcess([sys.executable, "-c", program], {}, folder, lines.put)
    found = []
    while (line := lines.get(timeout=30)) is not None:
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
            line = lines.get(timeout=20)
            assert line is not None, f"it ended before it said {name!r}"
            if isinstance(line, dict) and name in line:
                return line

    wait("step")
    program.ask_to_save()
    wait("saved")
    program.ask_to_leave()
    assert wait("left")["left"] > 0
    program.process.wait(10)


def test_what_a_program_says_of_its_process_is_believed_only_of_its_own(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "60"])
    says = (
        "import json, sys, time\n"
        "for pid in (%d, -1, 0, 1, 2**80, 'x', True): print(json.dumps({'api': 1, 'pid': pid}))\n"
        "print('said', flush=True)\ntime.sleep(60)\n"
    )
    lines: queue.Queue[Any] = queue.Queue()
    program = TrainingProcess([sys.executable, "-c", says % other.pid], {}, tmp_path, lines.put)
    try:
        while lines.get(timeout=20) != "said":
            pass
        program.ask_to_leave()
        assert program.process.wait(10) == -signal.SIGTERM
        assert other.poll() is None
    finally:
        program.kill()
        other.kill()
        other.wait()
