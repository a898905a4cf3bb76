"""Detection of stages of a training, such as after a drop of the learning rate (SpotTune Eq. 7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ebbtide.forecasts.learning_curves.curves import Floats


@dataclass(frozen=True)
class StageThresholds:
    """When a change of the metric begins a stage.

    Attributes:
        change: xi, the relative change of the metric above which a stage may begin.
        steady: epsilon, the relative change below which the changes before it must all have been.
        points: Number of changes before it that are checked; five in the paper.
        window: Measurements per mean. With 1, changes are between measurements, as in the paper. With more, they
            are between means of consecutive windows, which smooths the noise of small validation sets, and only
            the one change before must be below epsilon.
    """

    change: float = 0.5
    steady: float = 0.01
    points: int = 5
    window: int = 1


# What the paper sets.
PUBLISHED = StageThresholds()


def stage_starts(metric: Floats, thresholds: StageThresholds) -> list[int]:
    """Indices at which stages begin, the first at 0 (SpotTune Eq. 7).

    Each depends on the measurements before it and on the next `window` measurements.

    Args:
        metric: Metric at each measurement, finite, shape (n,).
        thresholds: xi, epsilon and the window.
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
    # Row i: the two windows before measurement i + 2 * width, and the one that begins there.
    older, before, after = means[: -2 * width], means[width:-width], means[2 * width :]
    rate = _rate(before, after)
    begins = (rate > thresholds.change) & (_rate(older, before) < thresholds.steady)
    starts = [0]
    for place in np.flatnonzero(begins):
        # A drop shows in every window across it; the stage begins where the change is largest.
        near = slice(max(place - width + 1, 0), place + width)
        if rate[place] >= rate[near].max() and place + 2 * width - starts[-1] >= width:
            starts.append(int(place) + 2 * width)
    return starts


def _rate(before: Floats, after: Floats) -> Floats:
    return np.asarray(np.abs(after - before) / np.maximum(np.abs(before), 1e-12))
