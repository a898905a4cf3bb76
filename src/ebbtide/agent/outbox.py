"""An agent's outbox: a thread writes queued reports in order, and retries each until it is written.

The queue stays small, however long storage does not answer. Of the lines that programs print, a limited number
wait, and the others are counted. Of the steps of a trial a limited number wait; if there are more, every second
step is kept, then every fourth, and always the newest.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import threading
from collections import Counter
from dataclasses import dataclass

from ebbtide.agent.messages import MessageLog
from ebbtide.agent.protocol import Envelope, Log, Message, Stepped, plain
from ebbtide.base.runtime import RUNTIME, Runtime

_LOGGER = logging.getLogger(__name__)

# Most printed lines that wait, and most steps of each trial that wait, with and without a metric counted apart.
_MOST_LINES, _MOST_STEPS = 200, 1_000
# Most characters of one object, well below a reader's limit; a single message may have more.
_MOST_OF_OBJECT = 1 << 20
_RETRY_S = 0.5
_CLOSING_S = 30.0


@dataclass(eq=False)
class _Waiting:
    """A message that waits.

    Attributes:
        message: The message.
        place: For a step, how many of its kind had come before it.
    """

    message: Message
    place: int = 0


@dataclass
class _Steps:
    """Steps of a trial that wait, all with a metric or all without.

    Attributes:
        every: One step in this many is kept.
        seen: Number of steps added so far.
        waiting: Steps that wait, the oldest first.
    """

    every: int
    seen: int
    waiting: list[_Waiting]


class ReportQueue:
    """Reports that wait to be written, in order and bounded.

    Attributes:
        has_more: Whether more waited at the last look than one object holds.
    """

    def __init__(self) -> None:
        self._waiting: dict[_Waiting, None] = {}
        self._steps: dict[tuple[str, bool], _Steps] = {}
        self._lines = 0
        self._left_out = Counter[str]()
        self.has_more = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._left_out)

    def add(self, message: Message) -> None:
        """Add a report; what a program prints is left out, and counted, while too much of it waits."""
        waiting = _Waiting(message)
        match message:
            case Log(trial, _, left_out) if left_out or self._lines >= _MOST_LINES:
                self._left_out[trial] += left_out or 1
                return
            case Log():
                self._lines += 1
            case Stepped(trial, metric=metric):
                self._add_step(waiting, self._steps.setdefault((trial, math.isfinite(metric)), _Steps(1, 0, [])))
        self._waiting[waiting] = None

    def _add_step(self, waiting: _Waiting, steps: _Steps) -> None:
        if steps.waiting and steps.waiting[-1].place % steps.every:
            # It was kept only as the newest.
            del self._waiting[steps.waiting.pop()]
        if len(steps.waiting) >= _MOST_STEPS:
            steps.every *= 2
            for each in steps.waiting:
                if each.place % steps.every:
                    del self._waiting[each]
            steps.waiting = [each for each in steps.waiting if not each.place % steps.every]
        waiting.place = steps.seen
        steps.seen += 1
        steps.waiting.append(waiting)

    def take(self) -> list[Message]:
        """Take as many reports as one object holds, the oldest first, with the number of lines left out."""
        for trial, lines in self._left_out.items():
            self._waiting[_Waiting(Log(trial, "", lines))] = None
        self._left_out.clear()
        taken, size = list[_Waiting](), 0
        for waiting in self._waiting:
            taken.append(waiting)
            size += len(json.dumps(plain(waiting.message)))
            if size > _MOST_OF_OBJECT:
                break
        for waiting in taken:
            del self._waiting[waiting]
        # Few reports remain, so the thinning of their steps begins anew.
        self._steps.clear()
        for waiting in self._waiting:
            if isinstance(message := waiting.message, Stepped):
                kind = message.trial, math.isfinite(message.metric)
                steps = self._steps.setdefault(kind, _Steps(1, 0, []))
                waiting.place, steps.seen = steps.seen, steps.seen + 1
                steps.waiting.append(waiting)
        self.has_more = bool(self._waiting)
        self._lines = sum(isinstance(waiting.message, Log) for waiting in self._waiting)
        return [waiting.message for waiting in taken]


class Outbox:
    """An agent's reports: gathered for a while, and written in order by a thread.

    Args:
        reports: The log that reports are written to.
        gather_s: Seconds for which reports that are not urgent are gathered.
        runtime: Gives the time and the thread.
    """

    def __init__(self, reports: MessageLog, gather_s: float, runtime: Runtime = RUNTIME) -> None:
        self._reports = reports
        self._gather_s = gather_s
        self._number: int | None = None
        # Readers recognise by these a message that was written twice.
        self._boot, self._count = secrets.token_hex(8), 0
        self._waiting = ReportQueue()
        # Messages being written: they have their numbers, and none of them is left out any more.
        self._writing: list[Envelope] = []
        self._lock = threading.Lock()
        self._urgent, self._idle, self._ended = runtime.flag(), runtime.flag(), runtime.flag()
        self._closing = False
        self._idle.set()
        runtime.begin(self._write)

    def put(self, message: Message, *, urgent: bool = True) -> None:
        """Report something; what a program prints is left out, and counted, while too much of it waits."""
        with self._lock:
            self._waiting.add(message)
            self._idle.clear()
        if urgent:
            self._urgent.set()

    def close(self) -> None:
        """Write what is left, and end the thread; gives up after half a minute."""
        self._urgent.set()
        self._idle.wait(_CLOSING_S)
        self._closing = True
        self._urgent.set()
        self._ended.wait(_CLOSING_S)

    def _write(self) -> None:
        while not self._closing:
            self._urgent.wait(self._gather_s)
            self._urgent.clear()
            while self._gather() and self._written():
                pass
            if self._writing:
                self._urgent.wait(_RETRY_S)
                self._urgent.set()
        self._ended.set()

    def _gather(self) -> bool:
        """Number the messages of the next object; returns whether there are any."""
        with self._lock:
            if not self._writing:
                for message in self._waiting.take():
                    self._count += 1
                    self._writing.append(Envelope(self._boot, self._count, 0, message))
            if not self._writing:
                self._idle.set()
            return bool(self._writing)

    def _written(self) -> bool:
        """Write the gathered messages; returns whether more wait that did not fit into the object."""
        try:
            if self._number is None:
                self._number = self._reports.last()
            # An object that is there already is from a write that seemed to fail, or from an earlier agent.
            while not self._reports.write(self._number + 1, self._writing):
                self._number += 1
        except Exception as error:
            _LOGGER.warning("a report is not written yet: %s", error)
            return False
        self._number += 1
        with self._lock:
            self._writing = []
            if not self._waiting:
                self._idle.set()
            return self._waiting.has_more
