"""SIGTERM reaches the program that saves, whatever it was started by, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.waiting import eventually, holds

from ebbtide.agent.leaving import Leaving, is_forwarder, is_helper
from ebbtide.trial import CHECKPOINT_DIR

pytestmark = pytest.mark.usefixtures("processes")

# Notes each SIGTERM; ends at the first one, some time later, and prints as it does.
CHILD = """
import os, pathlib, signal, sys, time
place = pathlib.Path(os.environ["PLACE"])
def told(*_):
    print("saving", flush=True)
    with (place / "told").open("a") as file:
        file.write("told\\n")
    time.sleep(1.0)
    (place / "saved").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, told)
workers = []
if "workers" in sys.argv:
    import multiprocessing
    def work():
        def heard(*_):
            (place / "worker told").touch()
            os._exit(1)
        signal.signal(signal.SIGTERM, heard)
        (place / "worker ready").touch()
        while os.getppid() != 1 and (place / "child").exists() and not (place / "saved").exists():
            time.sleep(0.05)
    workers = [multiprocessing.get_context("fork").Process(target=work)]
    workers[0].start()
    while not (place / "worker ready").exists():
        time.sleep(0.05)
(place / "child").touch()
for number in range(10_000):
    sum(range(20_000))
    print("step", number, flush=True)
    time.sleep(0.01)
"""
WRAPPERS = {
    "alone": [sys.executable, "{child}"],
    "shell": ["bash", "-c", f"{sys.executable} {{child}}; echo done"],
    "pipe": ["bash", "-c", f"{sys.executable} {{child}} 2>&1 | tee {{place}}/log"],
    "trap": ["bash", "-c", f"trap 'echo kept' TERM; {sys.executable} {{child}}; echo done"],
    "ignores": ["bash", "-c", f"trap '' TERM; env -i PLACE=$PLACE {sys.executable} -c \"import signal, runpy, sys; "
        "signal.signal(signal.SIGTERM, signal.SIG_DFL); runpy.run_path('{child}', run_name='__main__')\"; echo done"],
    "python": [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '{child}']).returncode)"],
    "keeps": [sys.executable, "-c", "import signal, subprocess, sys; signal.signal(signal.SIGTERM, lambda *_: None); "
        "sys.exit(subprocess.run([sys.executable, '{child}']).returncode)"],
    "passes": [sys.executable, "-c", "import signal, subprocess, sys\nchild = subprocess.Popen([sys.executable, '{child}'])\n"
        "signal.signal(signal.SIGTERM, lambda *_: child.terminate())\nsys.exit(child.wait())"],
    "session": ["bash", "-c", f"setsid {sys.executable} {{child}} > {{place}}/log 2>&1 & wait"],
    "workers": [sys.executable, "{child}", "workers"],
    "pipe of wandb": ["bash", "-c", f"{sys.executable} {{child}} --report_to wandb --out /data/docker | cat"],
}  # fmt: skip


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    (tmp_path / "child.py").write_text(CHILD)
    found: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> subprocess.Popen[bytes]:
        words = [
            word.replace("{child}", str(tmp_path / "child.py")).replace("{place}", str(tmp_path))
            for word in WRAPPERS[name]
        ]
        environment = os.environ | {CHECKPOINT_DIR: str(tmp_path / "checkpoints"), "PLACE": str(tmp_path)}
        found.append(subprocess.Popen(words, start_new_session=True, env=environment, stdout=subprocess.DEVNULL))
        return found[-1]

    yield start
    for process in found:
        for one in psutil.process_iter(["cmdline"]):
            with suppress(psutil.Error, ProcessLookupError):
                words = one.info["cmdline"] or ()
                if os.getsid(one.pid) == process.pid or str(tmp_path / "child.py") in words:
                    one.kill()
        process.wait()


@pytest.mark.long
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_program_is_told_once(
    name: str, started: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = started(name)
    eventually((tmp_path / "child").exists)
    said: list[str] = []
    leaving = Leaving(process.pid, tmp_path / "checkpoints", said.append)
    assert not leaving.is_running()
    leaving.begin()
    eventually(lambda: not leaving.go_on() and process.poll() is not None)
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "told").read_text() == "told\n"
    assert not (tmp_path / "worker told").exists()
    assert not leaving.is_running()
    assert bool(said) == (name not in ("alone", "passes", "workers"))


@pytest.mark.parametrize(
    ("command", "helper", "forwarder"),
    [
        ("python -m joblib.externals.loky.backend.popen_loky_posix --process-name L", True, False),
        ("/venv/bin/wandb-core --port-filename x", True, False),
        ("python3.11 -u /venv/lib/torch/_inductor/compile_worker/__main__.py --workers=2", True, False),
        ("python -X dev train.py --report_to wandb", False, False),
        ("python wandb.py", False, False),
        ("python /home/joblib/docker/train.py --deepspeed x.json", False, False),
        ("/venv/bin/python /venv/bin/torchrun --nproc-per-node 2 train.py", False, True),
        ("python -m torch.distributed.run train.py", False, True),
        ("python -m accelerate.commands.launch train.py", False, True),
        ("docker run image", False, True),
        ("uv run train.py", False, True),
        ("uv --offline run train.py", False, True),
        ("uv pip list", False, False),
        ("", False, False),
    ],
)
def test_helpers_and_launchers_are_known_by_their_program_alone(
    command: str, helper: bool, forwarder: bool
) -> None:
    assert (is_helper(command.split()), is_forwarder(command.split())) == (helper, forwarder)


def test_the_text_of_python_or_of_a_shell_is_no_launcher() -> None:
    text = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=6)"
    assert is_helper(["python", "-B", "-c", text, "--multiprocessing-fork"])
    assert not is_helper(["python", "-c", "print('multiprocessing')"])
    assert not is_forwarder(["bash", "-c", "trap '' TERM; torchrun train.py"])
    assert not is_helper(["bash", "-c", "python train.py --report_to wandb | cat"])


def test_what_does_not_end_is_seen_to_run(
    started: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = started("python")
    eventually((tmp_path / "child").exists)
    leaving = Leaving(process.pid, tmp_path / "checkpoints", lambda _line: None)
    leaving.begin()
    eventually(lambda: process.poll() is not None)
    holds(leaving.is_running, duration_s=0.3)
