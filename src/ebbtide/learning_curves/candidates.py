"""The ways in which a curve may go on: families fitted to its last stage, to the end of it, or to all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide.learning_curves.curves import Floats
from ebbtide.learning_curves.families import Fits, Pieces, exponential, level, power_law, straight, sublinear

# Fewer points than this tell no family from another.
MIN_POINTS = 4


@dataclass(frozen=True)
class Candidate:
    """A family on a part of the last stage.

    Attributes:
        name: For tables.
        family: Fitted to it.
        share: The last part of the stage that is used, of its points.
        whole: All stages together, steps counted from the beginning.
        prior: Its say where the curve is too short to tell.
    """

    name: str
    family: Callable[[Pieces], Fits]
    share: float = 1.0
    whole: bool = False
    prior: float = 0.0


CANDIDATES = (
    Candidate("sublinear, stage", sublinear),
    Candidate("sublinear, last half", sublinear, 0.5),
    Candidate("sublinear, last third", sublinear, 1 / 3),
    Candidate("linear convergence, stage", exponential),
    Candidate("linear convergence, last half", exponential, 0.5),
    Candidate("power law, all", power_law, whole=True, prior=1.0),
    Candidate("power law, stage", power_law),
    Candidate("straight, last half", straight, 0.5),
    Candidate("last value", level, 0.0, prior=1.0),
)


@dataclass(frozen=True)
class Prefix:
    """The first part of a curve, and where to predict.

    Attributes:
        steps: Shape (n,).
        metric: Shape (n,), finite.
        stage: Place at which its last stage begins.
        targets: Steps to predict at, shape (m,), the same m for all that are fitted together.
    """

    steps: Floats
    metric: Floats
    stage: int
    targets: Floats


def predict(prefixes: Sequence[Prefix], candidate: Candidate) -> Floats:
    """What a candidate says of each prefix, shape (prefixes, m)."""
    if not prefixes:
        return np.empty((0, 0))
    return candidate.family(_pieces(prefixes, candidate)).values


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
        # A stage is counted from just before it: its first measurement already had some steps.
        zero = 0.0 if candidate.whole or start == 0 else float(prefix.steps[start - 1])
        steps[row, :number] = prefix.steps[start:] - zero
        metric[row, :number] = prefix.metric[start:]
        weights[row, :number] = 1.0
        targets[row] -= zero
    return Pieces(steps, metric, weights, targets)
