"""Log formats that need several lines: headers with a bar below them, tables, bars that restart."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from ebbtide.agent.log_formats import CounterMeaning, Reading
from ebbtide.agent.log_readings import message_of

_HEADER = re.compile(r"^Epoch:? (?P<epoch>\d{1,6})(?:\s*/\s*(?P<total>\d+))?:?$", re.IGNORECASE)
_SETTING = re.compile(r"^epoch: ", re.IGNORECASE)
_KERAS = re.compile(
    r"^(?P<inner>\d+)/(?P<inner_total>\d+|Unknown)\s*(?:\[[=>.]+\]|[━╸╺ ]{3,}|- \d+m?s\b|-? ?\d+s \d)"
)
_BAR = re.compile(r"\d%\s?\|[^|]*\|\s*(?P<inner>\d+)/(?P<inner_total>\d+)\s*\[")
# Lines of a loop, in the way of PyTorch's tutorials: `loss: 2.30  [   64/60000]`.
_LOOP = re.compile(r"loss\D{1,4}[\d.].*\[\s*(?P<inner>\d+)/(?P<inner_total>\d+)\]$", re.IGNORECASE)
_RULE = re.compile(r"[-=*_\s]*$")
_COUNTERS = {"epoch": "epoch", "iter": "iteration", "iteration": "iteration", "step": "step", "round": "round"}
_BETWEEN_CELLS = str.maketrans(',|"', "   ")
_CELL = re.compile(r"[-+]?[\d.]|nan|inf|None|-")


@dataclass
class Headers:
    """Lines such as `Epoch 3/10`, by which Keras and others announce an epoch, and the bars below them.

    Without bars, such a line is read like other lines: it states what has been done.
    """

    _header: Reading | None = None
    _running: dict[int, int] = field(default_factory=dict)
    _has_bars: bool | None = None
    _length: int = 0
    _is_over: bool = False
    _is_below: bool = False

    def reading_of(self, text: str) -> tuple[bool, Reading | None]:
        """Return whether a line is of this layout, and the progress that it states with the header above."""
        match = _HEADER.match(message_of(text))
        if match is not None:
            total = int(match["total"]) if match["total"] else None
            header = Reading("words", "epoch", int(match["epoch"]), total)
            if total is None and _SETTING.match(match[0]):
                header = replace(header, is_bare=True)
            if self._has_bars is None and self._header not in (None, header):
                # There was no bar between the two headers.
                self._has_bars = False
            if self._has_bars is False:
                return True, header
            self._header, self._is_over, self._is_below = header, False, False
            if self._has_bars:
                return True, replace(header, format="Keras", counts=CounterMeaning.BEGUN)
            return True, header if total is None else None
        bar = _BAR.search(text)
        if bar is not None and self._goes_on(int(bar["inner"]), int(bar["inner_total"])):
            # A bar over all epochs, which only happens to be below the header.
            self._header = None
        if self._header is None:
            return False, None
        if (keras := _KERAS.match(text)) is not None:
            return self._of_bar(keras, "Keras")
        if bar is not None:
            return self._of_bar(bar, "tqdm")
        if (loop := _LOOP.search(text)) is not None:
            self._has_bars, self._length = True, int(loop["inner_total"])
            return True, replace(self._header, inner=(int(loop["inner"]), self._length))
        if self._has_bars or _RULE.match(text):
            return False, None
        self._has_bars, header, self._header = False, self._header, None
        return (False, None) if header.total is None else (True, header)

    def _goes_on(self, done: int, length: int) -> bool:
        """Return whether a bar began before the header above it, and does not restart below it."""
        before = self._running.get(length)
        self._running[length] = done
        if self._header is None or self._is_below:
            return False
        self._is_below = True
        return before is not None and before <= done and before < length

    def _of_bar(self, bar: re.Match[str], form: str) -> tuple[bool, Reading | None]:
        assert self._header is not None
        done, length = int(bar["inner"]), int(bar["inner_total"]) if bar["inner_total"].isdecimal() else 0
        if self._has_bars and length != self._length:
            return True, None  # of another length: an evaluation
        self._has_bars, self._length = True, length
        # Keras prints the last bar again, with the metrics of the validation.
        self._is_over = self._is_over or 0 < length <= done
        counts = CounterMeaning.ORDINAL if self._is_over else CounterMeaning.BEGUN
        return True, replace(self._header, format=form, counts=counts, first=1 if form == "Keras" else None)


@dataclass
class Tables:
    """Rows of a table whose first column is a counter: fastai, spaCy, scikit-learn, CSV."""

    _name: str = ""

    def reading_of(self, text: str) -> Reading | None:
        """Return the progress that a row states; None: it states none. A line of column names is remembered."""
        cells = text.lstrip("#").translate(_BETWEEN_CELLS).split()
        if len(cells) < 2:
            return None
        if not any(cell[:1].isdecimal() for cell in cells):
            if cells[:2] == ["E", "#"]:
                self._name = "spaCy"
            elif cells[0].lower() in _COUNTERS and not any("%" in cell for cell in cells):
                self._name = cells[0].lower()
            return None
        if not self._name or not all(map(_CELL.match, cells)):
            return None
        number = cells[1] if self._name == "spaCy" else cells[0]
        if not number.isdecimal():
            return None
        if self._name == "spaCy":
            return Reading("spaCy", "step", int(number), counts=CounterMeaning.DONE, is_global=True)
        return Reading("table", _COUNTERS[self._name], int(number))


@dataclass
class Bars:
    """Bars without an epoch: a bar that runs to its end counts steps, one that restarts does not.

    Attributes:
        newest: The bar that was printed last; None: there was none.
    """

    newest: Reading | None = None
    _last: dict[str, int] = field(default_factory=dict)
    _anew: set[str] = field(default_factory=set)

    def is_anew(self, bar: Reading, *, may_go_back: bool) -> bool:
        """Return whether a bar of this unit has ever restarted, and so counts something within epochs."""
        last = self._last.get(bar.unit, bar.number)
        if bar.number < last and not may_go_back:
            self._anew.add(bar.unit)
        self._last[bar.unit] = bar.number
        if bar.unit not in self._anew:
            self.newest = bar
        return bar.unit in self._anew


@dataclass
class EpochEnds:
    """Tells the last line of an epoch from those within it, where lines come every so many batches.

    If an epoch's length is not stated, it is taken from the epoch before. A single line in an epoch is its last.
    """

    _every: int = 0
    _before: tuple[int, int] = (-1, 0)
    _start: int = 0
    _learned: int = 0
    _lines: int = 0
    _is_line_an_epoch: bool = False

    def is_open(self, reading: Reading) -> bool:
        """Return whether the epoch of a reading has begun and is not done."""
        if reading.counts is CounterMeaning.BEGUN:
            return True
        if reading.inner is None:
            return False
        done, length = reading.inner
        number, before = self._before
        if not length:
            return self._is_open_by_former(reading.number, done)
        if number == reading.number and done > before and not reading.is_exact:
            self._every = done - before
        self._before = reading.number, done
        return done < length and done + self._every <= length

    def _is_open_by_former(self, epoch: int, done: int) -> bool:
        number, before = self._before
        if epoch != number:
            if number >= 0:
                self._is_line_an_epoch = self._lines == 1
                self._learned = before - self._start
                # The inner counter may continue across epochs.
                self._start = 0 if done < before else before
            self._lines = 0
        elif self._is_line_an_epoch:
            self._is_line_an_epoch = False
        self._lines += 1
        self._before = epoch, done
        return not self._is_line_an_epoch and not 0 < self._learned <= done - self._start
