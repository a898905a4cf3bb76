"""What of a training's machine time was kept: one stretch for each time that it was on a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Stretch:
    """A training on one machine, from the order to train until it left, was taken or ended.

    Attributes:
        lease_id: Of the machine.
        duration_s: How long, by the cloud's clock.
        number_from: Number of the checkpoint that it resumed from; 0: it began from nothing.
        step_from: The resume step.
        step_done: Reached, as the program reported.
        step_kept: Of those, in a checkpoint that was resumed from later, or still can be.
        has_saved: Whether a checkpoint was stored in it.
        is_final: The training was at its end then.
    """

    lease_id: int
    duration_s: float
    number_from: int
    step_from: float
    step_done: float
    step_kept: float
    has_saved: bool
    is_final: bool = False

    @property
    def kept_share(self) -> float:
        """Of its time: what need not be trained again. A program that reports no steps keeps all or nothing."""
        if self.is_final:
            return 1.0
        done = self.step_done - self.step_from
        if done <= 0:
            return 1.0 if self.has_saved else 0.0
        return min(max((self.step_kept - self.step_from) / done, 0.0), 1.0)

    @property
    def kept_s(self) -> float:
        """Seconds whose work was kept."""
        return self.kept_share * self.duration_s

    @property
    def lost_s(self) -> float:
        """Seconds whose work was thrown away."""
        return self.duration_s - self.kept_s


def resumed(before: Sequence[Stretch], step: float, number: int) -> list[Stretch]:
    """The same stretches, now that the training resumed: what it resumed from shows what was kept.

    Args:
        before: All of the training so far.
        step: The resume step.
        number: Of the checkpoint; 0: it begins from nothing, so that all before is lost.
    """
    if number == 0:
        return [replace(stretch, step_kept=stretch.step_from, has_saved=False) for stretch in before]
    found = [replace(stretch, step_kept=min(stretch.step_kept, step)) for stretch in before[:-1]]
    return [
        *found,
        *(
            # Stored, and perhaps not told of before its machine went.
            replace(
                last, step_kept=min(step, max(last.step_done, last.step_kept)), has_saved=number > last.number_from
            )
            for last in before[-1:]
        ),
    ]


def encode_stretches(stretches: Sequence[Stretch]) -> list[dict[str, Any]]:
    """As plain values."""
    return [asdict(stretch) for stretch in stretches]


def decode_stretches(values: Sequence[dict[str, Any]]) -> list[Stretch]:
    """From what `encode_stretches` gave."""
    return [Stretch(**one) for one in values]
