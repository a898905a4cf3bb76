"""Inputs and outputs of predictors of learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np

from ebbtide.errors import InputError
from ebbtide.forecasts.learning_curves.curves import Floats


class Status(StrEnum):
    """What a prediction is based on."""

    FITTED = "fitted"  # curves fitted to the measurements
    CONVERGED = "converged"  # the metric has stopped changing: the last value, and more training is useless
    FINISHED = "finished"  # the last step itself was measured
    SHORT = "short"  # too few measurements to fit: the last one, with a wide band
    DIVERGED = "diverged"  # the last measurement is not a number or infinite: infinity


@dataclass(frozen=True)
class CurvePrediction:
    """The predicted end of a curve.

    Attributes:
        value: Predicted metric at the last step.
        lower: Lower end of a band meant to cover 90 % of final metrics.
        upper: Upper end of the same band.
        stages: The step at which each stage begins.
        status: What the prediction is based on.
        shares: Weight of each candidate, by name.
    """

    value: float
    lower: float
    upper: float
    stages: tuple[float, ...]
    status: Status
    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Observed:
    """The first part of a curve, checked: finite measurements in the order of steps.

    Attributes:
        steps: Step of each measurement, rising, shape (n,), n >= 1 unless it diverged at once.
        metric: Metric at each step, lower is better, shape (n,).
        max_steps: The step at which to predict.
        diverged: Whether the last measurement was not finite.
        sweep: Name of the sweep; errors of curves of one sweep are partially pooled. None: no sweep.
    """

    steps: Floats
    metric: Floats
    max_steps: float
    diverged: bool = False
    sweep: str | None = None

    def until(self, theta: float) -> Observed:
        """The part up to a share of the whole run; at least one measurement."""
        seen = max(int(np.searchsorted(self.steps, theta * self.max_steps * (1 + 1e-9), side="right")), 1)
        if seen >= len(self.steps):
            return self
        return Observed(self.steps[:seen], self.metric[:seen], self.max_steps, False, self.sweep)

    @property
    def finished(self) -> bool:
        """Whether the last step itself was measured."""
        return bool(len(self.steps)) and self.steps[-1] >= self.max_steps * (1 - 1e-9)


class CurvePredictor(Protocol):
    """Predicts where curves end from their first parts."""

    @property
    def name(self) -> str:
        """Name of the predictor in tables."""
        ...

    def ends(self, observed: Sequence[Observed]) -> list[CurvePrediction]:
        """One prediction for each curve; never raises."""
        ...


def observed(
    steps: Sequence[float] | Floats, metric: Sequence[float] | Floats, max_steps: float, sweep: str | None = None
) -> Observed:
    """Check the first part of a curve.

    Single measurements that are not finite are left out. Steps may come in any order; of two measurements at one
    step the later in the sequence is used.

    Raises:
        InputError: Lengths differ, there is no measurement, steps are negative or not finite, or `max_steps` is
            not positive or lies before the last step.
    """
    at, values = np.asarray(steps, dtype=float), np.asarray(metric, dtype=float)
    if at.ndim != 1 or at.shape != values.shape:
        raise InputError(f"steps have shape {at.shape}, metric {values.shape}; both need the same one axis")
    if not len(at):
        raise InputError("a curve needs at least one measurement")
    if not np.isfinite(at).all() or at.min() < 0:
        raise InputError("steps must be finite and not negative")
    if not max_steps > 0 or not np.isfinite(max_steps):
        raise InputError(f"max_steps is {max_steps}; it must be positive and finite")
    if at.max() > max_steps * (1 + 1e-9):
        raise InputError(f"step {at.max():g} lies beyond max_steps {max_steps:g}")
    order = np.argsort(at, kind="stable")
    at, values = at[order], values[order]
    last_of_step = np.append(at[1:] != at[:-1], True)
    at, values = at[last_of_step], values[last_of_step]
    finite = np.isfinite(values)
    return Observed(at[finite], values[finite], float(max_steps), not finite[-1], sweep)


def without_fit(seen: Observed) -> CurvePrediction | None:
    """The prediction where no fit is needed: the curve diverged, or its end was measured. None elsewhere."""
    if seen.diverged or not len(seen.metric):
        return CurvePrediction(np.inf, np.inf, np.inf, (), Status.DIVERGED)
    if seen.finished:
        end = float(seen.metric[-1])
        return CurvePrediction(end, end, end, (float(seen.steps[0]),), Status.FINISHED)
    return None
