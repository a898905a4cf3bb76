"""Where a training enters a new stage, such as by a lower learning rate (SpotTune Eq. 7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ebbtide.learning_curves.curves import Floats


@dataclass(frozen=True)
class StageThresholds:
    """When a change of the metric begins a stage.

    Attributes:
        change: xi: the metric's relative change from one measurement to the next is above it...
        steady: epsilon: ...after `points` changes that were all below this.
        points: How many; five in the paper.
    """

    change: float = 0.5
    steady: float = 0.01
    points: int = 5


# What the paper sets.
PUBLISHED = StageThresholds()


def stage_starts(metric: Floats, thresholds: StageThresholds) -> list[int]:
    """Places at which stages begin, the first at 0; each depends on what came before it alone.

    Args:
        metric: Shape (n,), finite.
        thresholds: xi and epsilon.
    """
    before = np.maximum(np.abs(metric[:-1]), 1e-12)
    rate = np.abs(np.diff(metric)) / before
    steady = np.concatenate([[0], np.cumsum(rate < thresholds.steady)])
    starts = [0]
    for place in np.flatnonzero(rate > thresholds.change):
        first = int(place) - thresholds.points
        if first >= 0 and steady[place] - steady[first] == thresholds.points:
            starts.append(int(place) + 1)
    return starts
