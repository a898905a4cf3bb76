"""How `mpirun` reaches other machines: who does not know the secret has nothing done."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.usefixtures("processes")

SECRET = "ab" * 32
MODULE = [sys.executable, "-m", "ebbtide.agent.mpi"]


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


class Listener:
    """The second of two machines."""

    def __init__(self, folder: Path) -> None:
        self.port, self.address = free_port(), "127.0.0.1"
        self.environment = os.environ | {
            "EBBTIDE_MACHINES": f"127.0.0.2,{self.address}",
            "EBBTIDE_RANK": "1",
            "EBBTIDE_MPI_PORT": str(self.port),
            "EBBTIDE_SECRET": SECRET,
        }
        self.process = subprocess.Popen(
            [*MODULE, "listen"], env=self.environment, stdout=subprocess.PIPE, text=True, cwd=folder
        )

    def connect(self, *words: str, **others: str) -> subprocess.CompletedProcess[str]:
        command = [*MODULE, "connect", self.address, *words]
        return subprocess.run(
            command, env=self.environment | others, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    found = Listener(tmp_path)
    yield found
    found.process.kill()
    found.process.wait()


def test_a_command_is_done_there_and_its_exit_code_comes_back(listener: Listener) -> None:
    assert listener.connect("echo done; exit 7").returncode == 7
    assert listener.process.wait(LIMIT_S) == 7
    assert listener.process.stdout is not None
    assert listener.process.stdout.read() == "done\n"


def test_without_the_secret_nothing_is_done(listener: Listener, tmp_path: Path) -> None:
    assert listener.connect("touch there", EBBTIDE_SECRET="cd" * 32).returncode == 1
    with closing(socket.create_connection((listener.address, listener.port), timeout=LIMIT_S)) as stranger:
        stranger.sendall(json.dumps({"command": "touch there", "mac": ""}).encode() + b"\n")
        stranger.makefile().readlines()  # until the other side hangs up
    for said in (b"\n", b"[]\n", b"{}\n", b"\xff" * 64 + b"\n"):
        with closing(socket.create_connection((listener.address, listener.port), timeout=LIMIT_S)) as stranger:
            stranger.sendall(said)
    assert not (tmp_path / "there").exists()
    # One who knows it is still answered.
    assert listener.connect("touch there").returncode == 0
    assert (tmp_path / "there").exists()


def test_what_it_does_ends_with_the_one_who_asked(listener: Listener, tmp_path: Path) -> None:
    asking = subprocess.Popen(
        [*MODULE, "connect", listener.address, "touch begun; exec sleep 300"], env=listener.environment
    )
    eventually((tmp_path / "begun").exists)
    asking.kill()
    asking.wait()
    assert listener.process.wait(LIMIT_S) == 137


def test_a_daemon_that_ends_soon_after_the_first_machine_has_not_failed(
    listener: Listener, tmp_path: Path
) -> None:
    """On a busy machine it takes a while to end after a finished run, which would be done again."""
    asking = subprocess.Popen(
        [*MODULE, "connect", listener.address, "touch begun; sleep 1; exit 0"], env=listener.environment
    )
    eventually((tmp_path / "begun").exists)
    asking.kill()
    asking.wait()
    assert listener.process.wait(LIMIT_S) == 0


def test_reports_of_a_program_reach_the_agent_of_its_own_machine(listener: Listener) -> None:
    """Open MPI passes what it prints to the first machine."""
    speaks = "from ebbtide.trial import Trial; t = Trial.current(); t.finish()"
    command = f"{sys.executable} -c '{speaks}' >/dev/null"
    assert listener.connect(command).returncode == 0
    listener.process.wait(LIMIT_S)
    assert listener.process.stdout is not None
    reports = [json.loads(line) for line in listener.process.stdout.read().splitlines()]
    assert reports[0]["api"] == 1
    assert reports[-1] == {"finished": 0}
