"""When to save: as late as a notice allows, and every so often where there may be none."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

# Of the last few savings the slowest counts; of steps, of which some evaluate and most do not, of many.
_REMEMBERED = 3
_STEPS_REMEMBERED = 300


@dataclass
class SavingTimes:
    """How long saving took lately.

    Attributes:
        first_s: Taken for what is not known yet.
        factor: So much longer than the slowest of the last ones may the next one take.
        margin_s: And so much beside.
    """

    first_s: float = 30.0
    factor: float = 1.5
    margin_s: float = 2.0
    _saves_s: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _uploads_s: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=_STEPS_REMEMBERED))

    def saved(self, seconds: float) -> None:
        """The program wrote a checkpoint."""
        self._saves_s.append(seconds)

    def uploaded(self, seconds: float) -> None:
        """It was moved to storage."""
        self._uploads_s.append(seconds)

    def stepped(self, seconds: float) -> None:
        """The program may first have to end a step, which takes so long."""
        self._steps_s.append(seconds)

    @property
    def is_known(self) -> bool:
        """Whether a checkpoint was moved yet."""
        return bool(self._uploads_s)

    @property
    def needed_s(self) -> float:
        """What is to be left of a notice for saving."""
        step_s = max(self._steps_s, default=0.0)
        if not self.is_known:
            return self.first_s + self.factor * step_s + self.margin_s
        slowest = max(self._saves_s, default=0.0) + max(self._uploads_s) + step_s
        return self.factor * slowest + self.margin_s

    def interval_s(self, mttr_s: float) -> float:
        """How often to save where nothing may be told: `sqrt(2 x save x MTTR)`, upload not counted, since training
        goes on meanwhile; but no more often than uploads end."""
        if not self._saves_s:
            # Soon: then it is known.
            return 4.0 * self.first_s
        save_s = max(self._saves_s)
        return max(math.sqrt(2.0 * save_s * mttr_s), 2.0 * max(self._uploads_s, default=0.0), 4.0 * save_s)
