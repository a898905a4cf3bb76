"""Virtual time: tasks take turns on one thread, and time moves to the next due task."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from concurrent.futures import Executor, Future
from heapq import heappop, heappush
from typing import Any

import greenlet
from tests.harness.deterministic.faults import Faults

from ebbtide.base.runtime import Flag, Runtime

# Tasks of a process from which on those that are over are forgotten.
_MANY_TASKS = 64


class Killed(BaseException):
    """Raised in the tasks of a killed process."""


class Process:
    """A simulated process, whose tasks live and die together.

    Args:
        name: Name of the process in traces.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.tasks: list[_Task] = []

    def check(self) -> None:
        """Check that the process lives; to be called wherever it acts on the outside world.

        Raises:
            Killed: The process is dead.
        """
        if not self.is_alive:
            raise Killed


class _Task:
    """A task: its greenlet, and a number that identifies outdated wake-ups."""

    __slots__ = ("awaits", "green", "process")

    def __init__(self, process: Process, green: greenlet.greenlet) -> None:
        self.process, self.green, self.awaits = process, green, 0


class VirtualTime:
    """The clock, and the tasks that wait for it.

    Args:
        faults: Decides the order of tasks that are due at the same time.
        start_s: Time at which it starts, seconds since 1970.
    """

    def __init__(self, faults: Faults, start_s: float) -> None:
        self.now_s = start_s
        self.turns = 0
        self._faults = faults
        self._numbers = itertools.count()
        # Time, order among tasks of the same time, number, task, wake-up.
        self._due: list[tuple[float, int, int, _Task, int]] = []
        self._hub = greenlet.getcurrent()
        self._current: _Task | None = None
        self._until: Callable[[], bool] = bool
        self._until_s = -math.inf
        self.on_error: Callable[[Process, BaseException], None] = _raised

    def begin(self, process: Process, target: Callable[[], Any], delay_s: float = 0.0) -> None:
        """Start another task of a process."""
        process.check()
        task = _Task(process, greenlet.greenlet(lambda: self._run(process, target), self._hub))
        if len(process.tasks) >= _MANY_TASKS:
            process.tasks = [each for each in process.tasks if not each.green.dead]
        process.tasks.append(task)
        self._schedule(task, self.now_s + delay_s)

    def sleep(self, duration_s: float) -> None:
        """Let the current task wait."""
        task, due_s = self._present(), self.now_s + max(duration_s, 0.0)
        if (not self._due or due_s < self._due[0][0]) and due_s <= self._until_s and not self._until():
            # No other task is due before: skip scheduling, which would make this task the next one at once.
            next(self._numbers)
            task.awaits += 1
            self.turns += 1
            self.now_s = due_s
            return
        self._schedule(task, due_s)
        self._switch(task)

    def wait(self, flag: VirtualFlag, timeout_s: float | None) -> None:
        """Let the current task wait for a flag."""
        task = self._present()
        flag.waiting.append(task)
        if timeout_s is not None:
            self._schedule(task, self.now_s + timeout_s)
        else:
            task.awaits += 1
        self._switch(task)
        if task in flag.waiting:
            flag.waiting.remove(task)

    def wake(self, task: _Task) -> None:
        """Make a waiting task due now."""
        self._schedule(task, self.now_s)

    def kill(self, process: Process) -> None:
        """End a process, wherever its tasks are."""
        if not process.is_alive:
            return
        process.is_alive = False
        for task in process.tasks:
            # Wake each task once more, to unwind it.
            if task is not self._current and not task.green.dead:
                self._schedule(task, self.now_s)
        if self._current is not None and self._current.process is process:
            raise Killed

    def run(self, until: Callable[[], bool], until_s: float) -> None:
        """Let tasks take turns until a condition holds, a time is reached, or no task is left."""
        self._until, self._until_s = until, until_s
        while self._due and self._due[0][0] <= until_s and not until():
            time_s, _, _, task, awaits = heappop(self._due)
            if task.green.dead or awaits != task.awaits:
                continue
            self.now_s = max(self.now_s, time_s)
            self.turns += 1
            self._current = task
            if task.process.is_alive:
                task.green.switch()
            elif task.green:
                task.green.throw(Killed)
            self._current = None

    def _present(self) -> _Task:
        assert self._current is not None
        self._current.process.check()
        return self._current

    def _schedule(self, task: _Task, time_s: float) -> None:
        task.awaits += 1
        number = next(self._numbers)
        heappush(self._due, (time_s, self._faults.order(number), number, task, task.awaits))

    def _switch(self, task: _Task) -> None:
        self._hub.switch()
        task.process.check()

    def _run(self, process: Process, target: Callable[[], Any]) -> None:
        try:
            target()
        except Killed:
            pass
        except BaseException as error:
            if process.is_alive:
                self.on_error(process, error)


def _raised(_process: Process, error: BaseException) -> None:
    raise error


class VirtualFlag:
    """A flag that tasks wait for."""

    def __init__(self, time: VirtualTime) -> None:
        self._time, self._is_set = time, False
        self.waiting: list[_Task] = []

    def set(self) -> None:
        """Set the flag, and wake the tasks that wait for it."""
        self._is_set = True
        waiting, self.waiting = self.waiting, []
        for task in waiting:
            self._time.wake(task)

    def clear(self) -> None:
        """Clear the flag, so that tasks wait for it again."""
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, for at most `timeout` seconds; returns whether it is set."""
        if not self._is_set:
            self._time.wait(self, timeout)
        return self._is_set


class VirtualRuntime(Runtime):
    """The runtime of one simulated process.

    Args:
        time: The simulation's clock.
        process: The process.
        skew_s: Seconds by which its wall clock is ahead of the true time.
    """

    def __init__(self, time: VirtualTime, process: Process, skew_s: float = 0.0) -> None:
        self._time, self._process, self._skew_s = time, process, skew_s

    def monotonic_s(self) -> float:
        self._process.check()
        return self._time.now_s

    def epoch_s(self) -> float:
        return self._time.now_s + self._skew_s

    def sleep(self, duration_s: float) -> None:
        self._process.check()
        self._time.sleep(duration_s)

    def begin(self, target: Callable[[], None]) -> None:
        self._time.begin(self._process, target)

    def flag(self) -> Flag:
        return VirtualFlag(self._time)

    def pool(self, workers: int) -> Executor:  # noqa: ARG002
        return _OneAfterTheOther()


class _OneAfterTheOther(Executor):
    """Runs each call at once, in the calling task."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        found: Future[Any] = Future()
        try:
            found.set_result(fn(*args, **kwargs))
        except Exception as error:
            found.set_exception(error)
        return found
