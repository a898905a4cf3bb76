"""Tasks of an array on one machine: run as they are handed out, some side by side, and each result stored."""

from __future__ import annotations

import errno
import json
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ebbtide.agent.config import Assignment
from ebbtide.agent.folders import NO_ROOM, FullDiskError, PrivateFolder, on_own_disk, unpack
from ebbtide.agent.inputs import fetch_inputs, inputs_beside
from ebbtide.agent.machine import Program, RentedMachine
from ebbtide.agent.patience import CROWDED, LACKS_S, Patience, is_of_machine
from ebbtide.agent.program_output import MOST_OF_TEXT, READING_S, DroppedLines, Printed, ProgramOutput
from ebbtide.agent.protocol import Hand, Log, Report, TaskDone, TaskFailed
from ebbtide.agent.results import MOST_PRINTED, TaskResult, TaskResults
from ebbtide.storage.checkpoints.tree import remove_tree
from ebbtide.trial import INPUTS, RESULT_DIR, TASK, TASK_NUMBER

_LOGGER = logging.getLogger(__name__)

_RETRY_S = 1.0
# Longest time for which a store that has no room for a result is waited for.
_NO_ROOM_S = 3600.0
_TAIL_LINES = 30
# Of a notice, this multiple of the time that storing a result has taken is kept for storing.
_FACTOR = 1.5


@dataclass(eq=False)
class _Running:
    """A task under way.

    Attributes:
        number: Its number.
        value: Its value.
        folder: Folder with all that belongs to it.
        began_s: When it was begun, in monotonic seconds, as all times here.
        process: Its program.
        output: What it prints, until it is read.
        printed: End of what it printed.
        size: Number of characters in `printed`.
        output_read: Whether all that it printed was read.
        ended_s: When its program was seen to have ended; None: it was not.
        is_storing: Whether its result is being stored.
        is_over: Whether nothing more is to be done about it.
        is_killed: Whether it was killed, and is to be begun again elsewhere.
    """

    number: int
    value: str
    folder: Path
    began_s: float
    process: Program | None = None
    output: ProgramOutput = field(default_factory=lambda: ProgramOutput(lambda: None))
    printed: deque[str] = field(default_factory=deque)
    size: int = 0
    output_read: bool = False
    ended_s: float | None = None
    is_storing: bool = False
    is_over: bool = False
    is_killed: bool = False

    @property
    def results(self) -> Path:
        return self.folder / "results"


class TaskRunner:
    """Runs tasks of an array, as one assignment.

    A machine that is asked to leave gives each running task as long again as it has run, so that no more is lost
    than was waited for. A machine that will be revoked gives tasks all the time that there is.

    Args:
        assignment: The program that does a task, and how many are done side by side.
        folder: Folder of the assignment on this machine, which is made.
        code: Folder into which the user's code is unpacked.
        name: Id of this machine.
        margin_s: Seconds of a notice kept in reserve beside what storing a result needs.
        machine: Starts programs, and has the storage.
        put: Called, from other threads, with what is to be done in the agent's loop.
        tell: Called with each report; the second argument is whether it is urgent.
    """

    def __init__(
        self,
        assignment: Assignment,
        folder: Path,
        code: Path,
        name: str,
        margin_s: float,
        machine: RentedMachine,
        put: Callable[[Callable[[], None]], None],
        tell: Callable[[Report, bool], None],
    ) -> None:
        self.assignment = assignment
        self._folder, self._code, self._name, self._margin_s = folder, code, name, margin_s
        self._machine, self._put, self._tell = machine, put, tell
        self._results = TaskResults(machine.objects, assignment.trial_id)
        self._waiting: deque[tuple[int, str]] = deque()
        self._running: list[_Running] = []
        # Fewer than asked for, once no more could be begun.
        self._side_by_side = assignment.side_by_side
        # What was reported of each task, to be repeated on request.
        self._told: dict[int, TaskDone | TaskFailed] = {}
        self._known: set[int] = set()
        self._is_ready = self._is_closed = False
        self._leaves_s: float | None = None
        self._storing_s = 0.0
        self._task_s = math.nan
        self._inputs = inputs_beside(code)
        # Reason why no task can be done here; empty: tasks can be done.
        self._problem = ""
        machine.runtime.begin(self._prepare)

    @property
    def done(self) -> int:
        """Number of tasks whose results were found or stored."""
        return sum(isinstance(told, TaskDone) for told in self._told.values())

    @property
    def programs(self) -> list[Program]:
        """The programs that run, or ran a moment ago."""
        return [each.process for each in self._running if each.process is not None]

    @property
    def has_left(self) -> bool:
        """True if the runner was asked to leave and no task is under way any more."""
        return self._leaves_s is not None and not self._running

    def hand(self, order: Hand) -> None:
        """Do these tasks as well; those that are done already are reported again."""
        for number, value in zip(order.tasks, order.values, strict=False):
            told = self._told.get(number)
            if isinstance(told, TaskDone):
                self._tell(told, True)
            elif self._leaves_s is None and (told is not None or number not in self._known):
                # A task that failed is handed out again to be retried.
                self._told.pop(number, None)
                self._known.add(number)
                self._waiting.append((number, value))

    def repeat(self) -> None:
        """Report again how tasks ended."""
        for told in self._told.values():
            self._tell(told, True)

    def leave(self, now_s: float) -> None:
        """Begin no more tasks, and leave once those that run have ended."""
        if self._leaves_s is None:
            self._leaves_s = now_s
            self._waiting.clear()

    def kill(self) -> None:
        """End all that runs, now."""
        self._waiting.clear()
        for each in self._running:
            self._kill(each)

    def close(self) -> None:
        """Stop all work, and remove the folder."""
        self._is_closed = True
        self.kill()
        self._machine.end_left()
        remove_tree(self._folder)

    def tick(self, now_s: float, taken_at_s: float) -> None:
        """Begin tasks, and look at those that run.

        Args:
            now_s: The present time in monotonic seconds.
            taken_at_s: Time at which the machine is revoked; infinite: it has no notice.
        """
        kill_at_s = taken_at_s - self._margin_s - _FACTOR * self._storing_s
        for each in self._running:
            waited_s = math.inf if self._leaves_s is None else self._leaves_s + (self._leaves_s - each.began_s)
            if each.process is not None and not each.is_storing and now_s >= min(kill_at_s, waited_s):
                self._kill(each)
            self._take_output(each)
            self._look(each, now_s)
        self._running = [each for each in self._running if not each.is_over]
        if not self._is_ready or self._leaves_s is not None:
            return
        # With a notice, only what is likely to end in time is begun.
        fits = math.isinf(taken_at_s) or now_s + self._task_s < kill_at_s
        while fits and self._waiting and len(self._running) < self._side_by_side:
            self._begin(*self._waiting.popleft(), now_s)

    def _prepare(self) -> None:
        """In a thread of its own: fetch code and inputs, and look up which results there are."""
        trial_id = self.assignment.trial_id
        patience = Patience(
            self._machine.runtime, LACKS_S, lambda line: self._put(partial(self._tell, Log(trial_id, line), False))
        )
        while not self._is_closed:
            try:
                with on_own_disk():
                    if self.assignment.code:
                        unpack(self._machine.objects, self.assignment.code, self._code)
                    fetch_inputs(self._machine.objects, self.assignment.inputs, self._inputs)
                done = self._results.numbers()
            except Exception as error:
                _LOGGER.warning("tasks of %s are not begun yet: %s", self.assignment.trial_id, error)
                given_up = patience.ends_with(error)
                if given_up is not None:
                    self._put(partial(self._failed_to_prepare, given_up.problem))
                    return
                continue
            self._put(partial(self._prepared, done))
            return

    def _failed_to_prepare(self, problem: str) -> None:
        """Let every task fail with the same message, since none can be done here; other machines may do them."""
        self._problem = problem
        self._prepared(set())

    def _prepared(self, done: set[int]) -> None:
        self._is_ready = True
        for number, _ in [each for each in self._waiting if each[0] in done]:
            self._report(TaskDone(*self._about, number, self._machine.runtime.epoch_s()))
        self._waiting = deque(each for each in self._waiting if each[0] not in done)

    def _begin(self, number: int, value: str, now_s: float) -> None:
        folder = self._folder / f"task-{number}"
        remove_tree(folder)
        running = _Running(number, value, folder, now_s)
        running.output = ProgramOutput(lambda: self._put(partial(self._take_output, running)))
        self._running.append(running)
        assignment, places = self.assignment, {"{task}": value, "{result_dir}": str(running.results)}
        environment = {
            "PYTHONUNBUFFERED": "1",
            **assignment.environment,
            TASK: value,
            TASK_NUMBER: str(number),
            RESULT_DIR: str(running.results),
        }
        if assignment.inputs:
            environment[INPUTS] = str(self._inputs)
        if self._problem:
            self._over(running, TaskFailed(*self._about, number, tail=(self._problem,), of_machine=True))
            return
        try:
            running.results.mkdir(parents=True)
            place = folder / "code"
            if assignment.code:
                runs_in = PrivateFolder(place, code=self._code).path
            elif assignment.cwd:
                runs_in = PrivateFolder(place, linked=Path(assignment.cwd)).path
            else:
                runs_in = folder
            running.process = self._machine.start(
                [_filled(part, places) for part in assignment.arguments],
                environment,
                runs_in,
                running.output.put,
            )
        except (OSError, ValueError) as error:
            others = len(self._running) - 1
            if others and isinstance(error, OSError) and error.errno in CROWDED:
                _LOGGER.warning("only %d tasks are run side by side: %s", others, error)
                self._side_by_side = others
                self._waiting.appendleft((number, value))
                self._running.remove(running)
                self._over(running, None)
                return
            of_machine = is_of_machine(error)
            report = TaskFailed(
                *self._about, number, tail=(str(error),), cannot_start=not of_machine, of_machine=of_machine
            )
            self._over(running, report)

    def _take_output(self, running: _Running) -> None:
        """Read some of what a task printed; the rest waits for the next look."""
        runtime = self._machine.runtime
        until_s = runtime.monotonic_s() + READING_S / max(len(self._running), 1)
        for printed in running.output.take():
            self._read(running, printed)
            if runtime.monotonic_s() > until_s:
                return

    def _read(self, running: _Running, line: Printed) -> None:
        if line is None:
            running.output_read = True
            return
        if isinstance(line, DroppedLines):
            self._tell(Log(self.assignment.trial_id, "", line.lines), False)
            text = f"... {line.lines:,} lines were left out"
        else:
            text = line if isinstance(line, str) else json.dumps(line)
        running.printed.append(text)
        running.size += len(text) + 1
        while running.size > MOST_PRINTED and len(running.printed) > 1:
            running.size -= len(running.printed.popleft()) + 1
        if not isinstance(line, DroppedLines):
            self._tell(Log(self.assignment.trial_id, f"task {running.number}: {text[:MOST_OF_TEXT]}"), False)

    def _look(self, running: _Running, now_s: float) -> None:
        process = running.process
        if process is None or running.is_over or running.is_storing or process.exit_code is None:
            return
        if running.ended_s is None:
            running.ended_s = now_s
            # Processes that it left would hold its output open, and run beside the next task.
            process.kill()
        if not running.output_read and now_s - running.ended_s < _RETRY_S:
            return
        if running.is_killed:
            self._over(running, None)
        elif process.exit_code == 0:
            running.is_storing = True
            self._machine.runtime.begin(partial(self._store, running))
        else:
            tail = tuple(line[:MOST_OF_TEXT] for line in tuple(running.printed)[-_TAIL_LINES:])
            self._over(running, TaskFailed(*self._about, running.number, process.exit_code, tail))

    def _store(self, running: _Running) -> None:
        """Store a result, in a thread of its own, and retry until storage answers.

        A result that storage refuses while it answers counts as a failure after a while: it may be too large, or
        the machine's disk full. A store that is full is waited for longer. Each reason is told once.
        """
        runtime, refused_s, told = self._machine.runtime, math.inf, set[object]()
        began_s, duration_s = runtime.monotonic_s(), (running.ended_s or 0.0) - running.began_s
        result = TaskResult(
            running.number,
            running.value,
            self._name,
            self.assignment.attempt,
            duration_s,
            "\n".join(running.printed),
        )
        while not self._is_closed:
            try:
                kept = self._results.keep(result, running.results)
            except OSError as error:
                _LOGGER.warning("the result of task %d is not stored yet: %s", running.number, error)
                no_room = error.errno in NO_ROOM - {errno.EFBIG} and not isinstance(error, FullDiskError)
                limit_s = _NO_ROOM_S if no_room else LACKS_S
                is_refused = no_room or self._is_answered(running.number)
                refused_s = min(refused_s, runtime.monotonic_s()) if is_refused else math.inf
                # Messages name a temporary file, another one each time.
                kind = (type(error), error.errno)
                if is_refused and kind not in told:
                    told.add(kind)
                    why = f"the result of task {running.number} is not stored: {error}"
                    line = f"ebbtide: {why}; asked again for {limit_s / 60.0:.0f} min"
                    self._put(partial(self._tell, Log(self.assignment.trial_id, line), True))
                if runtime.monotonic_s() - refused_s > limit_s:
                    why = f"its result could not be stored for {limit_s:.0f} s: {error}"
                    failed = TaskFailed(
                        *self._about,
                        running.number,
                        tail=(why[:MOST_OF_TEXT],),
                        of_machine=isinstance(error, FullDiskError),
                    )
                    self._put(partial(self._over, running, failed))
                    return
                runtime.sleep(_RETRY_S)
                continue
            except RecursionError:
                why = "its folders are nested too deep to be kept"
                self._put(partial(self._over, running, TaskFailed(*self._about, running.number, tail=(why,))))
                return
            stored_s = runtime.monotonic_s() - began_s
            size_bytes = 0 if kept is None else kept.size_bytes
            self._put(partial(self._stored, running, duration_s, stored_s, size_bytes))
            return

    def _is_answered(self, number: int) -> bool:
        try:
            self._results.has(number)
        except OSError:
            return False
        return True

    def _stored(self, running: _Running, duration_s: float, stored_s: float, size_bytes: int) -> None:
        self._storing_s = max(stored_s, self._storing_s / 2)
        self._task_s = duration_s if math.isnan(self._task_s) else (self._task_s + duration_s) / 2
        told_s = self._machine.runtime.epoch_s()
        self._over(running, TaskDone(*self._about, running.number, told_s, duration_s, size_bytes))

    def _over(self, running: _Running, report: TaskDone | TaskFailed | None) -> None:
        running.is_over = True
        running.output.close()
        remove_tree(running.folder)
        if report is not None:
            self._report(report)

    def _report(self, report: TaskDone | TaskFailed) -> None:
        self._told[report.task] = report
        self._tell(report, True)

    def _kill(self, running: _Running) -> None:
        if running.process is not None and running.process.exit_code is None:
            running.is_killed = True
            running.process.kill()

    @property
    def _about(self) -> tuple[str, int]:
        return self.assignment.trial_id, self.assignment.attempt


def _filled(part: str, places: Mapping[str, str]) -> str:
    """Fill in the placeholders of an argument; values that are filled in are not searched for more."""
    found, rest = "", part
    while rest:
        place = min((name for name in places if name in rest), key=rest.index, default=None)
        if place is None:
            return found + rest
        before, _, rest = rest.partition(place)
        found += before + places[place]
    return found
