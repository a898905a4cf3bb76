"""Where a training enters a new stage, such as by a lower learning rate (SpotTune Eq. 7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ebbtide.forecasts.learning_curves.curves import Floats


@dataclass(frozen=True)
class StageThresholds:
    """When a change of the metric begins a stage.

    Attributes:
        change: xi: the metric's relative change is above it...
        steady: epsilon: ...after `points` changes that were all below this.
        points: How many; five in the paper.
        window: 1: from one measurement to the next, as in the paper. More: from the mean of so many to the mean of
            the next so many, since what a validation set is too small to tell jumps up and down all the time; the
            changes before are then one, over as many measurements again.
    """

    change: float = 0.5
    steady: float = 0.01
    points: int = 5
    window: int = 1


# What the paper sets.
PUBLISHED = StageThresholds()


def stage_starts(metric: Floats, thresholds: StageThresholds) -> list[int]:
    """Places at which stages begin, the first at 0.

    Each depends on what came before it, and on `window` measurements from it on.

    Args:
        metric: Shape (n,), finite.
        thresholds: xi and epsilon.
    """
    if thresholds.window == 1:
        return _between_measurements(metric, thresholds)
    return _between_windows(metric, thresholds)


def _between_measurements(metric: Floats, thresholds: StageThresholds) -> list[int]:
    rate = _rate(metric[:-1], metric[1:])
    steady = np.concatenate([[0], np.cumsum(rate < thresholds.steady)])
    starts = [0]
    for place in np.flatnonzero(rate > thresholds.change):
        first = int(place) - thresholds.points
        if first >= 0 and steady[place] - steady[first] == thresholds.points:
            starts.append(int(place) + 1)
    return starts


def _between_windows(metric: Floats, thresholds: StageThresholds) -> list[int]:
    width = thresholds.window
    if len(metric) < 3 * width:
        return [0]
    means = np.convolve(metric, np.full(width, 1.0 / width), mode="valid")
    # Row i: the windows that end before measurement i + 2 * width, and that begin there.
    older, before, after = means[: -2 * width], means[width:-width], means[2 * width :]
    rate = _rate(before, after)
    begins = (rate > thresholds.change) & (_rate(older, before) < thresholds.steady)
    starts = [0]
    for place in np.flatnonzero(begins):
        # A drop shows in all windows across it: where it is largest, it is.
        near = slice(max(place - width + 1, 0), place + width)
        if rate[place] >= rate[near].max() and place + 2 * width - starts[-1] >= width:
            starts.append(int(place) + 2 * width)
    return starts


def _rate(before: Floats, after: Floats) -> Floats:
    return np.asarray(np.abs(after - before) / np.maximum(np.abs(before), 1e-12))
