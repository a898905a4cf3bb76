"""Baselines for EarlyCurve: SLAQ's single stage, a power law, the last value, EarlyCurve as printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ebbtide.forecasts.learning_curves.candidates import MIN_POINTS, RECENT
from ebbtide.forecasts.learning_curves.curves import Floats
from ebbtide.forecasts.learning_curves.families import Fits, Pieces, power_law, sublinear
from ebbtide.forecasts.learning_curves.predictions import CurvePrediction, Observed, Status, without_fit
from ebbtide.forecasts.learning_curves.stages import PUBLISHED, StageThresholds, stage_starts


@dataclass(frozen=True)
class SingleStage:
    """One family fitted to all measurements.

    Attributes:
        name: Name of the predictor in tables.
        family: Function that fits the family.
        half_life: Half-life of the points' weights, as a share of the history; None gives equal weights.
    """

    name: str
    family: Callable[[Pieces], Fits]
    half_life: float | None = None

    def ends(self, observed: Sequence[Observed]) -> list[CurvePrediction]:
        weights = []
        for seen in observed:
            back = (
                (seen.steps[-1] - seen.steps) / max(float(np.ptp(seen.steps)), 1e-12)
                if len(seen.steps)
                else seen.steps
            )
            weights.append(0.5 ** (back / self.half_life) if self.half_life else np.ones(len(seen.steps)))
        return _fit_each(observed, self.family, weights, [0] * len(observed))


@dataclass(frozen=True)
class PublishedEarlyCurve:
    """SpotTune's EarlyCurve as printed: Eq. 7 with its thresholds, Eq. 4 on the last stage, nothing else."""

    thresholds: StageThresholds = field(default_factory=lambda: PUBLISHED)
    name: str = "earlycurve-published"

    def ends(self, observed: Sequence[Observed]) -> list[CurvePrediction]:
        starts = [stage_starts(seen.metric, self.thresholds)[-1] if len(seen.metric) else 0 for seen in observed]
        weights = []
        for seen, start in zip(observed, starts, strict=True):
            weights.append((np.arange(len(seen.steps)) >= start).astype(float))
        return _fit_each(observed, sublinear, weights, starts)


@dataclass(frozen=True)
class LastValue:
    """The last measurement, as if nothing changed."""

    name: str = "last-value"

    def ends(self, observed: Sequence[Observed]) -> list[CurvePrediction]:
        return [without_fit(seen) or _last(seen) for seen in observed]


def slaq() -> SingleStage:
    """SLAQ (Zhang et al., 2017) for algorithms that converge sublinearly, SpotTune's baseline (IV-E).

    It weighs recent losses exponentially more; the paper does not give the rate.
    """
    return SingleStage("slaq", sublinear, RECENT)


def power_law_rival() -> SingleStage:
    """A power law fitted to all measurements."""
    return SingleStage("power-law", power_law)


def _fit_each(
    observed: Sequence[Observed],
    family: Callable[[Pieces], Fits],
    weights: Sequence[Floats],
    starts: Sequence[int],
) -> list[CurvePrediction]:
    answers = [
        without_fit(seen) or (_last(seen) if len(seen.steps) - start < MIN_POINTS else None)
        for seen, start in zip(observed, starts, strict=True)
    ]
    rows = [row for row, answer in enumerate(answers) if answer is None]
    if rows:
        shape = len(rows), max(len(observed[row].steps) for row in rows)
        steps, metric, weight = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        for place, row in enumerate(rows):
            number = len(observed[row].steps)
            steps[place, :number] = observed[row].steps
            metric[place, :number] = observed[row].metric
            weight[place, :number] = weights[row]
        targets = np.array([[observed[row].max_steps] for row in rows])
        fits = family(Pieces(steps, metric, weight, targets))
        for place, row in enumerate(rows):
            value, room = float(fits.values[place, 0]), 2.0 * float(np.sqrt(fits.error[place]))
            stage = (float(observed[row].steps[starts[row]]),)
            answers[row] = CurvePrediction(value, value - room, value + room, stage, Status.FITTED)
    return [answer for answer in answers if answer is not None]


def _last(seen: Observed) -> CurvePrediction:
    last, room = float(seen.metric[-1]), float(np.ptp(seen.metric))
    return CurvePrediction(last, last - room, last + room, (float(seen.steps[0]),), Status.SHORT)
