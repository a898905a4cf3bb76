"""The ways in which a curve may go on: families fitted to its last stage, to the end of it, or to all of it."""

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

# Fewer points than this tell no family from another.
MIN_POINTS = 4

# "Recent" points weigh half for each such share of the piece that they lie back.
RECENT = 0.2


@dataclass(frozen=True)
class Candidate:
    """A family on a part of the last stage.

    Attributes:
        name: For tables.
        family: Fitted to it.
        share: The last part of the stage that is used, of its points.
        whole: All stages together, steps counted from the beginning.
        half_life: Points weigh half for each such share of the piece that they lie back; None: all alike.
        reach: How far ahead it may be asked, by the length of the piece it was fitted to; None: any distance.
        prior: Its say where the curve is too short to tell.
        new_stage_prior: The same where only its last stage is too short.
    """

    name: str
    family: Callable[[Pieces], Fits]
    share: float = 1.0
    whole: bool = False
    half_life: float | None = None
    reach: float | None = None
    prior: float = 0.0
    new_stage_prior: float = 0.0


# What is believed of a curve of which little is known: SLAQ's single stage.
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
    """What a candidate says of each prefix, shape (prefixes, m); NaN for what is out of its reach."""
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
        # A stage is counted from just before it: its first measurement already had some steps.
        zero = 0.0 if candidate.whole or start == 0 else float(prefix.steps[start - 1])
        steps[row, :number] = prefix.steps[start:] - zero
        metric[row, :number] = prefix.metric[start:]
        weights[row, :number] = 1.0
        if candidate.half_life and number > 1:
            back = (prefix.steps[-1] - prefix.steps[start:]) / (prefix.steps[-1] - prefix.steps[start])
            weights[row, :number] = 0.5 ** (back / candidate.half_life)
        targets[row] -= zero
    return Pieces(steps, metric, weights, targets)
