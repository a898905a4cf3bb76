"""Bounded buffer for the output of a program on its way to the agent's loop.

A program may print faster than its lines can be read. Then, of lines that differ in their numbers alone, the
newest is kept, so that progress is still read, and the others are counted. Everything that matters of Ebbtide's
own protocol is kept.
"""

from __future__ import annotations

import codecs
import io
import locale
import re
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

# Longer lines are cut, to so many characters: the first before JSON is looked for, the second for text.
MOST_OF_JSON, MOST_OF_TEXT = 1 << 16, 4096

# Longest time spent reading output at once, in monotonic seconds: orders and notices must not wait for it.
READING_S = 0.02

# Most lines and characters that wait for the agent's loop, and extra lines if they may be progress.
_MOST_LINES, _MOST_CHARACTERS, _MOST_PROGRESS = 2_000, 1 << 20, 50
# Above this rate, after a burst of this many lines, only the newest line of each shape passes.
_MOST_PER_S, _MOST_IN_BURST = 2_000.0, 4_000.0
# A line with one of these names says what no later line repeats.
_OURS = frozenset({"api", "started", "saved", "finished", "left"})
_NUMBERS = b"0123456789.+-"
_PROGRESS = re.compile(
    r"(?:step|epoch|iter|update|episode|round|loss|acc)[a-z]*\W{0,4}\d|\d\s*(?:/|of)\s*\d|\d\s*%", re.IGNORECASE
)

# Common shape of lines that may be progress, once too many of them wait.
_OTHER_PROGRESS = "other progress"


@dataclass(frozen=True)
class DroppedLines:
    """Lines that a program printed and that are not kept.

    Attributes:
        lines: Number of the lines.
    """

    lines: int


# A line of JSON as a mapping, or any other as text.
Line = Union[Mapping[str, Any], str]  # noqa: UP007 (evaluated by Python 3.10 on machines)
# What is printed: lines, how many were left out, and None at the end.
Printed = Union[Line, DroppedLines, None]  # noqa: UP007


class LineReader:
    """Cuts a program's output into lines, as a terminal would: a carriage return ends one, too."""

    def __init__(self) -> None:
        decoder = codecs.getincrementaldecoder(locale.getpreferredencoding(False))("replace")
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)
        self._rest = ""

    def lines(self, chunk: bytes) -> list[str]:
        """Lines that are complete now, without their ends.

        Args:
            chunk: Output since the last call; empty: the output has ended, and with it the last line.
        """
        found = (self._rest + self._decoder.decode(chunk, final=not chunk)).split("\n")
        self._rest = found.pop()[:MOST_OF_JSON]
        if not chunk and self._rest:
            found.append(self._rest)
        return found


class Thinning:
    """Passes a program's lines on, but of a flood only the newest line of each shape."""

    def __init__(self) -> None:
        self._may_pass, self._at_s = _MOST_IN_BURST, 0.0

    def passing(self, lines: Sequence[str], now_s: float) -> Sequence[str]:
        """Lines to pass on, in order: in a flood, the newest of those that differ in their numbers alone.

        Args:
            lines: Lines that were read at once.
            now_s: The present time in monotonic seconds.
        """
        self._may_pass = min(self._may_pass + (now_s - self._at_s) * _MOST_PER_S, _MOST_IN_BURST)
        self._at_s = now_s
        if len(lines) > self._may_pass:
            shapes = "\n".join(lines).encode(errors="replace").translate(None, _NUMBERS).split(b"\n")
            newest = dict(zip(shapes, range(len(lines)), strict=True))
            lines = [lines[place] for place in sorted(newest.values())]
        self._may_pass = max(self._may_pass - len(lines), 0.0)
        return lines


class ProgramOutput:
    """Lines of one program that wait for the agent's loop.

    Args:
        wake: Called, from the thread that reads, when there is something to take.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        # Waiting lines with their shapes and sizes, by number; the newest of each shape.
        self._waiting: dict[int, tuple[Line, Hashable, int]] = {}
        self._newest: dict[Hashable, int] = {}
        self._count = self._characters = self._left_out = 0
        self._is_woken = self._has_ended = self._is_closed = False

    def __len__(self) -> int:
        """Number of lines that wait."""
        return len(self._waiting)

    def put(self, printed: Printed) -> None:
        """Take what a program printed; called from the thread that reads it."""
        with self._lock:
            if self._is_closed:
                return
            if printed is None:
                self._has_ended = True
            elif isinstance(printed, DroppedLines):
                self._left_out += printed.lines
            else:
                self._add(printed)
            is_first, self._is_woken = not self._is_woken or printed is None, True
        if is_first:
            self._wake()

    def take(self) -> Iterator[Printed]:
        """Take lines that wait, the oldest first; then the number of lines left out; None once all is taken."""
        while True:
            with self._lock:
                if self._waiting:
                    found: Printed = self._remove(next(iter(self._waiting)))
                elif self._left_out:
                    found, self._left_out = DroppedLines(self._left_out), 0
                elif self._has_ended and not self._is_closed:
                    found, self._is_closed = None, True
                else:
                    self._is_woken = False
                    return
            yield found

    def close(self) -> None:
        """Accept no more lines, and discard those that wait."""
        with self._lock:
            self._is_closed = True
            self._left_out = self._characters = 0
            self._waiting.clear()
            self._newest.clear()

    def _add(self, line: Line) -> None:
        shape, size = _shape_of(line), len(line) if isinstance(line, str) else len(str(line))
        waiting = len(self._waiting)
        if waiting >= _MOST_LINES or self._characters + size > _MOST_CHARACTERS:
            if shape not in self._newest and not isinstance(shape, frozenset):
                if isinstance(line, str) and not _PROGRESS.search(line):
                    self._left_out += 1
                    return
                if waiting >= _MOST_LINES + _MOST_PROGRESS:
                    shape = _OTHER_PROGRESS
            if shape in self._newest:
                self._remove(self._newest[shape])
                self._left_out += 1
        self._count += 1
        self._waiting[self._count] = line, shape, size
        self._newest[shape] = self._count
        self._characters += size

    def _remove(self, number: int) -> Line:
        line, shape, size = self._waiting.pop(number)
        if self._newest.get(shape) == number:
            del self._newest[shape]
        self._characters -= size
        return line


def _shape_of(line: Line) -> Hashable:
    """Shape of a line: the newest line of a shape makes earlier ones needless."""
    if isinstance(line, str):
        return line.encode(errors="replace").translate(None, _NUMBERS)
    return _OURS.intersection(line) or tuple(line)
