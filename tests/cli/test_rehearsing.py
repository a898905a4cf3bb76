"""`ebbtide rehearse` on a small program, as a user has it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.waiting import LIMIT_S, eventually

COMMAND = [sys.executable, "-c", "from ebbtide.cli.main import main; main()", "rehearse"]
PROGRAM = Path(__file__).parents[1] / "training_program.py"
JOB = f"command: python {PROGRAM} --steps 2000 --step-s 0.1 --evaluate-every 10\nmetric: loss\n"


def processes_in(folder: Path) -> list[psutil.Process]:
    """Processes that name a folder on their command line."""
    found = psutil.process_iter(["cmdline"])
    return [one for one in found if any(str(folder) in word for word in one.info["cmdline"] or ())]


def wait_for_end(folder: Path) -> None:
    """Wait until no process of a rehearsal in a folder is left."""
    eventually(lambda: not processes_in(folder), poll_s=0.1)


@pytest.mark.usefixtures("processes")
@pytest.mark.long
def test_a_small_training_is_interrupted_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    command = [*COMMAND, "job.yaml", "--after-s", "5", "--json", "out.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["notice_s"], found["problem"], found["is_good"]) == (120.0, "", True)
    assert found["steps_resumed"] >= found["steps_at_notice"] > 10
    assert found["steps_lost"] == 0
    assert found["step_s"] >= 0.1
    assert 0.0 < found["written_s"] <= found["stored_s"] < found["notice_s"]
    assert found["checkpoint_bytes"] > 1000
    assert min(found["start_s"], found["restart_s"], found["interval_s"]) > 0.0
    assert found["verdict"] in done.stdout.replace("\n", " ")
    assert list((tmp_path / ".ebbtide" / "runs").iterdir()) == []
    wait_for_end(tmp_path)


@pytest.mark.usefixtures("processes")
@pytest.mark.long
def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    said = tmp_path / "said.txt"
    with said.open("w") as errors:
        running = subprocess.Popen(
            [*COMMAND, "job.yaml"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
    eventually(lambda: "it trains" in said.read_text() or running.poll() is not None, poll_s=0.1)
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait(LIMIT_S) == 130, said.read_text()
    assert said.read_text().splitlines()[-1] == "interrupted"
    assert list((tmp_path / ".ebbtide" / "runs").iterdir()) == []
    wait_for_end(tmp_path)


@pytest.mark.usefixtures("processes")
def test_a_program_that_fails_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise KeyError('no data')\n")
    command = [*COMMAND, "--", "python", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "the program failed: KeyError: 'no data' (train.py, line 1); let it run by itself first" in done.stdout
    assert "ebbtide logs train-" in done.stderr
    assert "Traceback (most" not in done.stderr


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_program_that_saves_nothing_is_told(tmp_path: Path) -> None:
    lines = ("import json, time", "for step in range(1, 1000):", "    time.sleep(0.1)")
    (tmp_path / "train.py").write_text("\n".join((*lines, "    print(json.dumps({'step': step}), flush=True)\n")))
    command = [*COMMAND, "--after-s", "1", "--", "python", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "the program made no checkpoint, so all its work is lost with its machine" in done.stdout
    wait_for_end(tmp_path)


# It has done all of its work when it is asked to leave, and has nothing left to do when it is started again.
DONE = """
import pathlib
import signal
import sys

if pathlib.Path("ckpt/done").exists():
    sys.exit(print("nothing left to do"))
pathlib.Path("ckpt").mkdir(exist_ok=True)
for step in range(1, 4):
    pathlib.Path("ckpt/step").write_text(str(step))
    print(f"step {step}/3", flush=True)
pathlib.Path("ckpt/done").touch()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.pause()
"""


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_program_that_was_done_at_its_notice_needs_more_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DONE)
    command = [*COMMAND, "--checkpoints", "ckpt", "--after-s", "2", "--", "python", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "done before it could be interrupted: give a smaller `--after-s`, or more steps" in done.stdout
