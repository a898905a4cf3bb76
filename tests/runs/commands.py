"""`ebbtide` as a process, as a user has it: a sweep in a folder, and what one does to it meanwhile."""

from __future__ import annotations

import io
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from unittest.mock import patch

import pytest
import yaml
from tests.runs.sweeps import flapping, sweep
from tests.waiting import LIMIT_S, eventually

from ebbtide.agent.process_tree import MACHINE, processes_with
from ebbtide.cli.main import main
from ebbtide.clouds.settings import RunFolder, known_runs
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.kinds.state import leases_on
from ebbtide.runs.start_local import end_local

# Reports nothing, saves nothing, and dies at once when it is told to leave.
SILENT = "import time\ntime.sleep(300)\n"


@dataclass
class User:
    """One with a sweep in a folder.

    Attributes:
        folder: Of the sweep, its program and the prices.
        started: Commands that were started and not waited for.
    """

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def run(self) -> RunFolder:
        """The newest run."""
        return known_runs(self.runs)[-1]

    def write(self, *, every_h: float = 0.12, **options: object) -> None:
        wanted = sweep(self.folder, **options)  # type: ignore[arg-type]
        (self.folder / "sweep.yaml").write_text(yaml.safe_dump(wanted.model_dump(mode="json", exclude_none=True)))
        flapping(every_h).write(self.folder / "prices.parquet")

    def start(self, *words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ebbtide.cli.main", *map(str, words), "--runs", str(self.runs)]
        self.started.append(
            subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return self.started[-1]

    def start_run(self, *words: object, policy: str = "cheapest-spot") -> subprocess.Popen[str]:
        return self.start("run", "sweep.yaml", "--prices", "prices.parquet", "--policy", policy, *words)

    def do(self, *words: object) -> tuple[int, str, str]:
        """One command to its end, in this process: exit code, output, errors."""
        out, errors = io.StringIO(), io.StringIO()
        # Wide, so that no cell is folded.
        wide = patch.dict(os.environ, COLUMNS="200")
        with wide, redirect_stdout(out), redirect_stderr(errors), pytest.raises(SystemExit) as ended:
            main([*map(str, words), "--runs", str(self.runs)])
        return int(ended.value.code or 0), out.getvalue(), errors.getvalue()

    def machines(self) -> list[int]:
        """Processes of the newest run's machines, whatever started them."""
        place = self.run.path / "cloud"
        return [
            pid
            for machine in place.glob("machine-*")
            for pid in processes_with(MACHINE, str((machine / "work").resolve()))
        ]

    def trains(self, trials: int = 1) -> bool:
        """Whether so many are on machines."""
        kept = journal_of(self.run, read_only=True).run() if list(self.runs.glob("*/run.json")) else None
        return kept is not None and sum(bool(leases_on(trial)) for trial in kept["provider"]["trials"]) >= trials

    def steps(self) -> float:
        """Steps done of the newest run's first trial, as its journal has it."""
        kept = journal_of(self.run, read_only=True).run()
        return float(kept["engine"]["jobs"][0]["steps_done"]) if kept is not None else 0.0

    def kill(self) -> None:
        """Kill every command that still runs."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()

    def wait(self, condition: Callable[[], object]) -> None:
        eventually(condition, poll_s=0.1)


def heard(stream: IO[str] | None, words: str) -> str:
    """All that a process says up to these words; the rest stays in the pipe, for `communicate`."""
    assert stream is not None
    said = b""
    while words.encode() not in said:
        ready, _, _ = select.select([stream], [], [], LIMIT_S)
        byte = os.read(stream.fileno(), 1) if ready else b""
        assert byte, f"it did not say {words!r}: {said.decode(errors='replace')}"
        said += byte
    return said.decode()


@contextmanager
def user(folder: Path) -> Iterator[User]:
    """Whatever becomes of it, nothing of it is left."""
    one = User(folder)
    try:
        yield one
    finally:
        one.kill()
        for path in one.runs.glob("*/run.json"):
            end_local(RunFolder(path.parent))
