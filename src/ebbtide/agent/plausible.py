"""Progress that cannot be right: beyond the total, backwards, or further than any machine could go."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.agent.log_formats import Reading
from ebbtide.agent.protocol import MOST_STEPS

# Largest plausible jump between two lines; a larger one needs an earlier jump of a thousandth of its size.
_FARTHEST, _TIMES_FARTHER = 1_000_000, 1_000
# A first number above this is no step. The limit is high, since some reinforcement learning counts fast.
_FARTHEST_FIRST = 100_000_000
_MOST_EPOCHS = 1_000_000


@dataclass
class Plausible:
    """Checks the readings of one counter, in order, for those that cannot be right.

    Attributes:
        began: Steps that were done when the program was started.
        most: Steps of the whole training; 0: not known.
    """

    began: int
    most: int
    _last: int | None = None
    _farthest: int = 0

    def why_not(self, reading: Reading, step: int, *, may_go_back: bool) -> str:
        """Return why a reading cannot be right; empty: it may be, and the next one is compared with it.

        Args:
            reading: The reading.
            step: Steps done according to the reading.
            may_go_back: Whether the program may have resumed from an earlier step.
        """
        number, last = reading.number, self._last
        has_end = bool(self.most) or reading.total is not None
        if reading.total is not None and number > reading.total:
            return f"{number:,} is more than its total of {reading.total:,}"
        if self.most and step > self.most:
            return f"{step:,} is more than the {self.most:,} steps of the job"
        if step > MOST_STEPS or (reading.unit == "epoch" and number > _MOST_EPOCHS):
            return f"{number:,} is more than any training has"
        if last is None:
            if number - self.began > _FARTHEST_FIRST and not has_end:
                return f"{number:,} is too far for a beginning"
        elif number < last and not may_go_back:
            return f"it went back from {last:,} to {number:,}"
        elif number - last > max(_FARTHEST, _TIMES_FARTHER * self._farthest):
            return f"no machine goes from {last:,} to {number:,} between two lines"
        else:
            self._farthest = max(self._farthest, number - last)
        self._last = number
        return ""
