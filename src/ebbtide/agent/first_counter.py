"""Counters that come before those of the training: settings, phases of the set-up, sanity checks, downloads."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.agent.log_formats import Reading

# A counter with a loss was of a sanity check if it is this short, and the next one is this many times as long.
_SHORT, _TIMES_LONGER = 20, 10


@dataclass
class FirstCounter:
    """Says whether a counter that is alone on its line is a setting, and whether a better one has taken over.

    Attributes:
        began: Steps that were done when the program was started.
        most: Steps of the whole training; 0: not known.
    """

    began: int
    most: int
    _setting: Reading | None = None
    _first: Reading | None = None
    _last: Reading | None = None
    _is_measured: bool = False

    def note(self, reading: Reading, *, is_measured: bool) -> None:
        """Note a reading of the counter that is used, and whether a loss or metric stands beside it."""
        if self._first is None or self._first.unit != reading.unit:
            self._first, self._is_measured = reading, False
        self._last = reading
        self._is_measured = self._is_measured or is_measured

    def forget(self) -> None:
        """Forget the counter that was used: another is, from now on."""
        self._first = self._last = None
        self._is_measured = False

    def is_setting(self, reading: Reading) -> bool:
        """Return whether a line such as `epoch: 100` is a setting, the number of epochs, and not a count."""
        if not reading.is_bare:
            return False
        last = self._last
        if last is not None and last.unit == reading.unit:
            return not last.is_bare and reading.number > last.number + 1
        if reading.number in (0, 1, self.began, self.began + 1):
            return False
        before, self._setting = self._setting, reading
        return before is None or before.unit != reading.unit or reading.number <= before.number

    def is_phase(self, reading: Reading) -> bool:
        """Return whether `Step 2/4: downloading data` is a phase of the set-up: its total is not the job's."""
        if not reading.is_phase or (self.most and reading.total == self.most):
            return False
        return self._last is None or self._last.is_phase or self._last.total != reading.total

    def is_beside(self, reading: Reading) -> bool:
        """Return whether a counter of the same name with another total is of an evaluation, or the like."""
        last = self._last
        if last is None or None in (last.total, reading.total) or last.total == reading.total:
            return False
        return reading.number < last.number or (bool(self.most) and last.total == self.most)

    def is_taken_over(self, reading: Reading, *, is_measured: bool) -> bool:
        """Return whether a counter is the training's, and the one used so far counted something before it."""
        first, last = self._first, self._last
        if first is None or last is None or reading.total is None or reading.number >= reading.total:
            return False
        if (reading.unit, reading.total) == (last.unit, last.total) or (self.most and last.total == self.most):
            return False
        is_longer = reading.total > (last.total or 0)
        has_ended = last.total is not None and last.number >= last.total - 1
        if self._is_measured:
            length = last.total or _SHORT + 1
            is_short = length <= _SHORT and length * _TIMES_LONGER <= reading.total
            return has_ended and is_short and last.unit != "epoch"
        if last.total is None and last.unit == reading.unit and reading.number < last.number:
            return first.number == last.number
        is_still = first.number == last.number and last.total is not None and reading.unit == last.unit
        return (has_ended or (is_still and reading.number < last.number)) and (
            is_longer and (is_measured or last.unit != "epoch")
        )
