"""Ctrl-C ends slow commands: code 130, one line, no half-written file, no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.waiting import LIMIT_S, eventually

import ebbtide as eb

pytestmark = pytest.mark.usefixtures("processes")

COMMAND = [sys.executable, "-c", "from ebbtide.cli.main import main; main()"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("interrupts")
    eb.generate_prices(days=20, seed=1, kind="auction").write(path / "prices.parquet")
    return path


def interrupted(words: list[str], folder: Path, after: str) -> tuple[int, str, list[psutil.Process]]:
    """Run a command as a terminal does, in a group of its own, and interrupt the group once it says so much."""
    said = folder / "said.txt"
    with said.open("w") as errors:
        running = subprocess.Popen(
            [*COMMAND, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
    eventually(lambda: after in said.read_text() or running.poll() is not None)
    children = psutil.Process(running.pid).children(recursive=True) if running.poll() is None else []
    os.killpg(running.pid, signal.SIGINT)
    code = running.wait(LIMIT_S)
    _, left = psutil.wait_procs(children, timeout=LIMIT_S)
    return code, said.read_text(), left


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (["generate", "--days", "3650", "--into", "out.parquet"], "generating prices"),
        pytest.param(
            ["reproduce", "exosphere", "--prices", "prices.parquet", "--json", "out.json"],
            "so far",
            marks=pytest.mark.long,
        ),
        (["curves", "measure", "--workloads", "resnet", "--into", "out.parquet"], "training"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_interrupt_ends_a_slow_command_cleanly(words: list[str], after: str, folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir() if path.name != "said.txt")
    code, said, left = interrupted(words, folder, after)
    assert code == 130, said
    assert said.splitlines()[-1] == "interrupted"
    assert "Traceback" not in said
    assert left == []
    assert sorted(path.name for path in folder.iterdir() if path.name != "said.txt") == before
