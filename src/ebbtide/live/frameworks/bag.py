"""A bag of tasks: processes that do not need each other, saved on a warning, else begun again (ExoSphere 4.3)."""

from __future__ import annotations

import queue
import sys
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ebbtide.errors import InputError
from ebbtide.live.frameworks.driver import Driver
from ebbtide.live.frameworks.framework import Standing

# A task that fails so often fails of itself.
_MOST_FAILURES = 3


@dataclass(eq=False)
class _Task:
    """One task: its number, and units of work done, saved and failed in its present process."""

    number: int
    done: int = 0
    saved: int = 0
    failures: int = 0
    result: float | None = None


class BagFramework:
    """Tasks of several units of work each, one task at a time on each machine.

    Args:
        folder: Folder for what tasks save.
        tasks: Number of independent tasks.
        units: Number of units of work in each task.
        unit_s: Real seconds that one unit takes.
        lazy: Whether a task is saved when its machine gets notice; else it begins again.
    """

    def __init__(self, folder: Path, *, tasks: int, units: int, unit_s: float, lazy: bool = True) -> None:
        self._folder = folder
        self._units, self._unit_s, self._lazy = units, unit_s, lazy
        self._tasks = [_Task(number) for number in range(tasks)]
        self._waiting = deque(self._tasks)
        self._machines: dict[str, tuple[Driver, _Task] | None] = {}
        self._news: queue.Queue[tuple[Driver, dict[str, Any] | None]] = queue.Queue()
        self.standing = Standing()

    def start(self) -> None:
        """Nothing runs without a machine."""

    def join(self, machine: str) -> None:
        self._machines[machine] = None
        self._hand_out()

    def warn(self, machine: str) -> None:
        if self._lazy:
            self._save(machine)

    def lose(self, machine: str) -> None:
        work = self._machines.pop(machine, None)
        if work is not None:
            driver, task = work
            driver.end()
            self._drain(driver, task)
            if task.result is None:
                self._lost(task)
                self._waiting.appendleft(task)
        self._hand_out()

    def checkpoint(self) -> None:
        for machine in self._machines:
            self._save(machine)

    def hear(self, timeout_s: float) -> bool:
        try:
            driver, said = self._news.get(timeout=max(timeout_s, 1e-3))
        except queue.Empty:
            return False
        for machine, work in self._machines.items():
            if work is not None and work[0] is driver:
                self._heard(machine, work[1], driver, said)
                return True
        return False

    def close(self) -> None:
        for work in self._machines.values():
            if work is not None:
                work[0].end()

    def _save(self, machine: str) -> None:
        work = self._machines.get(machine)
        if work is not None:
            work[0].tell("save")

    def _hand_out(self) -> None:
        for machine, work in self._machines.items():
            if work is None and self._waiting:
                task = self._waiting.popleft()
                task.done = task.saved
                state = self._folder / f"task-{task.number}.json"
                command = [
                    sys.executable,
                    "-m",
                    "ebbtide.live.frameworks.bag_task",
                    "--number",
                    str(task.number),
                    "--units",
                    str(self._units),
                    "--unit-s",
                    repr(self._unit_s),
                    "--state",
                    str(state),
                ]
                driver = Driver(command, self._folder / f"task-{task.number}.log", news=self._news)
                self._machines[machine] = (driver, task)

    def _heard(self, machine: str, task: _Task, driver: Driver, said: dict[str, Any] | None) -> None:
        if said is not None:
            self._learned(task, said)
            return
        self._machines[machine] = None
        driver.end()
        if task.result is None:
            task.failures += 1
            if task.failures >= _MOST_FAILURES:
                raise InputError(f"task {task.number} failed {task.failures} times: {driver.last_words}")
            self._lost(task)
            self._waiting.append(task)
        self._hand_out()

    def _learned(self, task: _Task, said: dict[str, Any]) -> None:
        task.done = int(said.get("done", task.done))
        if "saved" in said:
            task.saved = int(said["saved"])
            self.standing = replace(self.standing, checkpoints=self.standing.checkpoints + 1)
        if "result" in said:
            task.result, task.saved = float(said["result"]), self._units
        self._count()

    def _lost(self, task: _Task) -> None:
        lost = (task.done - task.saved) / (self._units * len(self._tasks))
        task.done = task.saved
        self.standing = replace(self.standing, lost=self.standing.lost + lost)
        self._count()

    def _count(self) -> None:
        whole = self._units * len(self._tasks)
        results = [task.result for task in self._tasks if task.result is not None]
        self.standing = replace(
            self.standing,
            done=sum(task.done for task in self._tasks) / whole,
            saved=sum(task.saved for task in self._tasks) / whole,
            result=sum(results) if len(results) == len(self._tasks) else None,
        )

    def _drain(self, driver: Driver, task: _Task) -> None:
        """Read what it said before it was killed: it may have saved, or ended."""
        others = []
        while True:
            try:
                teller, said = self._news.get_nowait()
            except queue.Empty:
                break
            if teller is not driver:
                others.append((teller, said))
            elif said is not None:
                self._learned(task, said)
        for item in others:
            self._news.put(item)


def expected_result(tasks: int, units: int) -> float:
    """The sum of all tasks' answers."""
    return float(sum(number * units + units * (units - 1) // 2 for number in range(tasks)))
