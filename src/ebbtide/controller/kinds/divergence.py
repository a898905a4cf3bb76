"""Divergence of a training: its metric has stopped being a finite number.

Programs report NaN or infinity for three reasons: the training has diverged; a single evaluation failed; or they
report at every step, and evaluate at some of them. Which of them it is shows in the steps between finite values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from typing_extensions import TypedDict

NEVER = -1


class DivergenceRecord(TypedDict):
    """A `Divergence` as plain values, by the names of its fields."""

    finite_at: int
    not_finite_at: int
    gap: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """The finite values of a training's metric, and those after them that are not.

    Attributes:
        finite_at: Step of the last finite value; `NEVER`: there was none.
        not_finite_at: Step of the last value, if it is not finite; `NEVER`: it is finite.
        gap: Most steps from one finite value (or the start) to the next, with others between them.
    """

    finite_at: int = NEVER
    not_finite_at: int = NEVER
    gap: int = 0

    @property
    def at(self) -> int:
        """Step of the last value of a training that has diverged; 0: it has not, or was never finite."""
        if self.finite_at == NEVER or self.not_finite_at == NEVER:
            return 0
        return self.not_finite_at if self.not_finite_at - self.finite_at >= self.gap else 0

    def after(self, step: int, value: float) -> Divergence:
        """Return the state after a report: infinity is a value that is not finite, and NaN is no value."""
        if math.isnan(value) or step <= max(self.finite_at, self.not_finite_at):
            return self
        if math.isinf(value):
            return replace(self, not_finite_at=step)
        passed = self.not_finite_at != NEVER
        return Divergence(step, NEVER, max(self.gap, step - max(self.finite_at, 0)) if passed else self.gap)

    def resumed(self, step: int) -> Divergence:
        """Return the state of a training that goes on from a step: what it reported after it is lost."""
        kept = self.not_finite_at if self.not_finite_at <= step else NEVER
        return replace(self, finite_at=min(self.finite_at, step), not_finite_at=kept)
