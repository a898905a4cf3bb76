"""What programs leave is found by its mark, its parent and a record, wherever it went, and ended; nothing else is."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import LIMIT_S, eventually

from ebbtide.agent.process_tree import MACHINE, end_machine, kill_processes, processes_with

pytestmark = pytest.mark.usefixtures("processes")

NAME = "EBBTIDE_TEST_MARK"

# An agent without its loop: it starts a program, and does what it reads.
AGENT = """
import os, pathlib, sys
from ebbtide.agent.process_tree import LeftProcesses
from ebbtide.agent.processes import TrainingProcess
left = LeftProcesses(pathlib.Path(sys.argv[1]))
left.begin()
program = TrainingProcess(sys.argv[2:], {}, pathlib.Path(sys.argv[1]), lambda line: None)
for line in sys.stdin:
    match line.strip():
        case "remember":
            left.remember()
        case "kill":
            program.kill()
        case "end":
            left.end()
            left.reap([program.process.pid])
    print("done", flush=True)
"""

DOUBLE_FORK = (
    "import os, sys, time\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "os.execvpe('sleep', ['sleep', sys.argv[1]], {'PATH': os.environ['PATH']})\n"
)

# Each leaves `sleep {0}` beside the program, which is a `sleep` of its own or has ended.
LEAVES = {
    "setsid": ["bash", "-c", "setsid sleep {0} & sleep 300"],
    "env -i": ["bash", "-c", "env -i sleep {0} & sleep 300"],
    "setsid env -i": ["bash", "-c", "setsid env -i sleep {0} & sleep 300"],
    "double fork": [sys.executable, "-c", DOUBLE_FORK, "{0}"],
    "wrap.sh": ["bash", "wrap.sh", "{0}"],
}


def sleeping(seconds: str) -> list[int]:
    """Ids of the processes `sleep SECONDS`."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


class Agent:
    def __init__(self, folder: Path, kind: str) -> None:
        # A time that no other test sleeps for.
        self.seconds = f"{1000 + os.getpid()}.{secrets.randbelow(10**9):09d}"
        (folder / "wrap.sh").write_text("sleep $1\necho over\n")
        program = [part.replace("{0}", self.seconds) for part in LEAVES[kind]]
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(folder), *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # As the local cloud starts an agent.
            env=os.environ | {MACHINE: str(folder)},
        )
        eventually(self.left)

    def left(self) -> list[int]:
        return sleeping(self.seconds)

    def do(self, what: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(what, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "done\n"

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        for pid in self.left():
            os.kill(pid, 9)


@pytest.fixture(params=LEAVES)
def agent(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Agent]:
    started = Agent(tmp_path, request.param)
    yield started
    started.close()


def test_nothing_goes_on_beside_the_next_assignment(agent: Agent) -> None:
    agent.do("kill")
    agent.do("end")
    assert agent.left() == []
    # Nor does it stay as a zombie.
    children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children")
    assert children.read_text().split() == []
    assert agent.process.poll() is None


def test_what_a_killed_agent_left_is_found_by_the_next(agent: Agent, tmp_path: Path) -> None:
    agent.do("remember")
    agent.process.kill()
    agent.process.wait()
    end_machine(tmp_path)
    assert agent.left() == []


def test_a_machine_ends_with_all_its_processes_though_none_was_written_down(agent: Agent, tmp_path: Path) -> None:
    assert end_machine(tmp_path) > 0
    assert agent.left() == []
    assert agent.process.wait(LIMIT_S) < 0


def test_a_process_that_has_the_id_of_another_is_spared(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "300"], start_new_session=True)
    started = int(Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19])
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def written(boot: str, started: int) -> None:
        kept = {"boot": boot, "processes": [[other.pid, started, other.pid]]}
        (tmp_path / ".processes.json").write_text(json.dumps(kept))

    try:
        # It has the id and the session of a process that was written down, but began later, or after a restart.
        for before in ((boot, started - 1), ("another", started)):
            written(*before)
            assert end_machine(tmp_path) == 0
            assert other.poll() is None
        (tmp_path / ".processes.json").write_text('{"boot": 1, "processes": 7}')
        assert end_machine(tmp_path) == 0
        written(boot, started)
        assert end_machine(tmp_path) == 1
        assert other.wait(LIMIT_S) < 0
    finally:
        other.kill()
        other.wait()


def test_what_carries_the_mark_is_ended_whatever_session_it_is_in(tmp_path: Path) -> None:
    value = f"mark-{os.getpid()}"
    script = "import os, subprocess, time; subprocess.Popen(['setsid', 'sleep', '300']); time.sleep(300)"
    marked = subprocess.Popen([sys.executable, "-c", script], env=os.environ | {NAME: value})
    other = subprocess.Popen(["sleep", "300"], env=os.environ | {NAME: value + "0"})
    elsewhere = subprocess.Popen(["sleep", "300"], env=os.environ | {MACHINE: str(tmp_path / "other")})
    try:
        eventually(lambda: len(processes_with(NAME, value)) >= 2)
        assert kill_processes(NAME, value) == 2
        assert marked.wait(LIMIT_S) < 0
        assert processes_with(NAME, value) == []
        assert kill_processes(NAME, value) == 0
        assert end_machine(tmp_path) == 0
        assert (other.poll(), elsewhere.poll()) == (None, None)
    finally:
        for process in (other, elsewhere):
            process.kill()
            process.wait()
