"""MPI: ranks that all depend on each other. One machine lost ends all; the whole begins again (ExoSphere 4.2)."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ebbtide.errors import InputError
from ebbtide.live.frameworks.driver import Driver
from ebbtide.live.frameworks.framework import Standing

# If it fails so often without a machine being lost, it fails of itself.
_MOST_FAILURES = 3


class MpiFramework:
    """A program of several ranks, one on each machine, started whenever all machines are there.

    Args:
        folder: Folder for checkpoints and logs.
        ranks: Number of ranks, one on each machine.
        iterations: Number of iterations of the program.
        iteration_s: Real seconds that one iteration takes.
        checkpoints: Whether it restarts from its newest checkpoint; else from the beginning.

    Raises:
        InputError: MPI is not installed here.
    """

    def __init__(
        self, folder: Path, *, ranks: int, iterations: int, iteration_s: float, checkpoints: bool = False
    ) -> None:
        self._launcher = _launcher()
        self._folder = folder
        self._ranks, self._iterations, self._iteration_s = ranks, iterations, iteration_s
        self._checkpoints = checkpoints
        self._machines: list[str] = []
        self._driver: Driver | None = None
        self._on: dict[str, int] = {}
        self._pids: dict[int, int] = {}
        self._failures = 0
        self.standing = Standing()

    def start(self) -> None:
        """Nothing runs until all machines are there."""

    def join(self, machine: str) -> None:
        self._machines.append(machine)
        self._begin()

    def warn(self, machine: str) -> None:
        if machine in self._on and self._checkpoints:
            self.checkpoint()

    def lose(self, machine: str) -> None:
        self._machines.remove(machine)
        rank = self._on.get(machine)
        if rank is not None and self._driver is not None:
            pid = self._pids.get(rank)
            if pid is not None:
                # As when a machine goes: one rank dies, and the launcher ends the others.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._end()
        self._begin()

    def checkpoint(self) -> None:
        if self._driver is not None and self._checkpoints:
            (self._folder / "save").touch()

    def hear(self, timeout_s: float) -> bool:
        if self._driver is None:
            return False
        driver = self._driver
        try:
            _, said = driver.news.get(timeout=max(timeout_s, 1e-3))
        except queue.Empty:
            return False
        if said is not None:
            self._learn(said)
        elif self.standing.result is None:
            self._failures += 1
            if self._failures >= _MOST_FAILURES:
                raise InputError(f"the MPI program failed {self._failures} times: {driver.last_words}")
            self._end()
            self._begin()
        return True

    def close(self) -> None:
        if self._driver is not None:
            self._end()

    def _begin(self) -> None:
        if self._driver is not None or len(self._machines) < self._ranks or self.standing.result is not None:
            return
        self._on = {machine: rank for rank, machine in enumerate(self._machines[: self._ranks])}
        self._pids = {}
        (self._folder / "save").unlink(missing_ok=True)
        command = [
            *self._launcher,
            "-n",
            str(self._ranks),
            sys.executable,
            "-m",
            "ebbtide.live.frameworks.mpi_program",
            "--folder",
            str(self._folder),
            "--iterations",
            str(self._iterations),
            "--iteration-s",
            repr(self._iteration_s),
        ]
        self._driver = Driver(command, self._folder / "mpi.log", environment=_ENVIRONMENT)

    def _end(self) -> None:
        assert self._driver is not None
        self._driver.end()
        while not self._driver.news.empty():
            _, said = self._driver.news.get()
            if said is not None:
                self._learn(said)
        for pid in self._pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._driver, self._on = None, {}
        if self.standing.result is None:
            lost = self.standing.done - self.standing.saved
            self.standing = replace(self.standing, done=self.standing.saved, lost=self.standing.lost + lost)

    def _learn(self, said: dict[str, Any]) -> None:
        if "pid" in said:
            self._pids[int(said["rank"])] = int(said["pid"])
        if "iteration" in said:
            self.standing = replace(self.standing, done=said["iteration"] / self._iterations)
        if "saved" in said:
            saved = said["saved"] / self._iterations
            self.standing = replace(self.standing, saved=saved, checkpoints=self.standing.checkpoints + 1)
        if "result" in said:
            self.standing = replace(self.standing, done=1.0, saved=1.0, result=float(said["result"]))


# Ranks on one machine speak through its memory, and no further than it.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMPI_MCA_btl": "self,sm",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def _launcher() -> list[str]:
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        found = None
    if found is None:
        raise InputError("MPI is not installed; pip install 'ebbtide[mpi]'")
    return [found, "--oversubscribe", "--bind-to", "none"]
