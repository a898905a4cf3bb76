"""Stages of a training, such as after a drop of the learning rate (SpotTune Eq. 7), and candidates for their end.

A candidate continues a curve: a family fitted to its last stage, to the end of that stage, or to the whole curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide.forecasts.learning_curves.curves import Floats
from ebbtide.forecasts.learning_curves.families import (
    Fits,
    Pieces,
    exponential,
    level,
    power_law,
    straight,
    sublinear,
)


@dataclass(frozen=True)
class StageThresholds:
    """Thresholds by which a change of the metric begins a stage.

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


# The fewest points to which a family is fitted.
MIN_POINTS = 4

# Half-life of the weights of points, as a share of the piece, where recent points weigh more.
RECENT = 0.2


@dataclass(frozen=True)
class Candidate:
    """A family on a part of the last stage.

    Attributes:
        name: Name of the candidate in tables.
        family: Function that fits the family.
        share: The last share of the stage's points that is fitted.
        whole: Whether all stages are fitted together, with steps counted from the beginning.
        half_life: Half-life of the points' weights, as a share of the piece; None gives equal weights.
        reach: How far ahead it predicts, as a multiple of the piece's length; None is any distance.
        prior: Weight where the curve is too short to measure errors.
        new_stage_prior: Weight where only the last stage is too short to measure errors.
    """

    name: str
    family: Callable[[Pieces], Fits]
    share: float = 1.0
    whole: bool = False
    half_life: float | None = None
    reach: float | None = None
    prior: float = 0.0
    new_stage_prior: float = 0.0


# The candidate for curves of which little has been measured: SLAQ's single stage.
EARLY = Candidate("sublinear, all, recent most", sublinear, whole=True, half_life=RECENT)

CANDIDATES = (
    Candidate("sublinear, stage", sublinear),
    Candidate("sublinear, last half", sublinear, 0.5),
    Candidate("sublinear, last third", sublinear, 1 / 3),
    Candidate("linear convergence, stage", exponential),
    Candidate("linear convergence, last half", exponential, 0.5),
    Candidate("power law, all", power_law, whole=True, prior=1.0),
    EARLY,
    Candidate("straight, last half", straight, 0.5, reach=1.0),
    Candidate("last value", level, 0.0, prior=1.0, new_stage_prior=1.0),
)


@dataclass(frozen=True)
class Prefix:
    """The first part of a curve, and where to predict.

    Attributes:
        steps: Step of each measurement, rising, shape (n,).
        metric: Metric at each step, finite, shape (n,).
        stage: Index at which the last stage begins.
        targets: Steps to predict at, shape (m,), the same m for all that are fitted together.
    """

    steps: Floats
    metric: Floats
    stage: int
    targets: Floats


def predict(prefixes: Sequence[Prefix], candidate: Candidate) -> Floats:
    """A candidate's prediction for each prefix and target, shape (prefixes, m); NaN beyond its reach."""
    if not prefixes:
        return np.empty((0, 0))
    pieces = _pieces(prefixes, candidate)
    values = candidate.family(pieces).values
    if candidate.reach is None:
        return values
    last = pieces.steps.max(axis=1)
    first = np.where(pieces.weights > 0, pieces.steps, np.inf).min(axis=1)
    beyond = (pieces.targets - last[:, None]) > candidate.reach * (last - first)[:, None]
    return np.where(beyond, np.nan, values)


def _pieces(prefixes: Sequence[Prefix], candidate: Candidate) -> Pieces:
    """The part of each prefix that the candidate uses, padded."""
    starts = []
    for prefix in prefixes:
        length = len(prefix.steps)
        stage = 0 if candidate.whole else prefix.stage
        least = 1 if candidate.share == 0.0 else MIN_POINTS
        starts.append(max(length - max(round((length - stage) * candidate.share), least), 0))
    longest = max(len(prefix.steps) - start for prefix, start in zip(prefixes, starts, strict=True))
    shape = len(prefixes), longest
    steps, metric, weights = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    targets = np.stack([prefix.targets for prefix in prefixes])
    for row, (prefix, start) in enumerate(zip(prefixes, starts, strict=True)):
        number = len(prefix.steps) - start
        # Steps of a stage are counted from the measurement before it: its first one comes after some steps.
        zero = 0.0 if candidate.whole or start == 0 else float(prefix.steps[start - 1])
        steps[row, :number] = prefix.steps[start:] - zero
        metric[row, :number] = prefix.metric[start:]
        weights[row, :number] = 1.0
        if candidate.half_life and number > 1:
            back = (prefix.steps[-1] - prefix.steps[start:]) / (prefix.steps[-1] - prefix.steps[start])
            weights[row, :number] = 0.5 ** (back / candidate.half_life)
        targets[row] -= zero
    return Pieces(steps, metric, weights, targets)
