"""The predictors by name, as they are compared: EarlyCurve, the baselines, and the public function `fit_curve`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ebbtide.errors import InputError, unknown_name
from ebbtide.forecasts.learning_curves.calibration import StageCalibration, default_calibration
from ebbtide.forecasts.learning_curves.curves import (
    Curve,
    CurvePrediction,
    CurvePredictor,
    Floats,
    ObservedCurve,
    Status,
    observed,
    read_curves,
    without_fit,
)
from ebbtide.forecasts.learning_curves.evaluation import Ends, ends_of, scores_of
from ebbtide.forecasts.learning_curves.families import Fits, Pieces, power_law, sublinear
from ebbtide.forecasts.learning_curves.stages import MIN_POINTS, PUBLISHED, RECENT, StageThresholds, stage_starts


def fit_curve(
    steps: Sequence[float] | Floats,
    metric: Sequence[float] | Floats,
    max_steps: float,
    theta: float = 1.0,
    *,
    predictor: CurvePredictor | None = None,
) -> CurvePrediction:
    """Predict the metric at `max_steps` from what was measured up to `theta * max_steps` (SpotTune III-C).

    It gives a prediction for every curve that training can produce: infinity where the last measurement is not
    finite (`diverged`); the last value with a wide band where there are fewer than four measurements (`short`);
    the last value where the metric has stopped changing (`converged`). Single measurements that are not finite are
    left out.

    Args:
        steps: Step of each measurement, not negative, shape (n,), n >= 1.
        metric: Metric at each step, lower is better, shape (n,).
        max_steps: The step at which to predict.
        theta: Use only this first share of the run, in (0, 1]; at least the first measurement is used.
        predictor: The predictor to use; by default EarlyCurve as calibrated on the curves of Table II.

    Raises:
        InputError: Shapes differ, there is no measurement, or a number is out of its range.
    """
    if not 0 < theta <= 1:
        raise InputError(f"theta is {theta}; it must be above 0 and at most 1")
    seen = observed(steps, metric, max_steps).until(theta)
    return (predictor or default_calibration().everywhere).ends([seen])[0]


@dataclass(frozen=True)
class SingleStage:
    """Predictor that fits one family to all measurements.

    Attributes:
        name: Name of the predictor in tables.
        family: Function that fits the family.
        half_life: Half-life of the points' weights, as a share of the history; None gives equal weights.
    """

    name: str
    family: Callable[[Pieces], Fits]
    half_life: float | None = None

    def ends(self, observed: Sequence[ObservedCurve]) -> list[CurvePrediction]:
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

    def ends(self, observed: Sequence[ObservedCurve]) -> list[CurvePrediction]:
        starts = [stage_starts(seen.metric, self.thresholds)[-1] if len(seen.metric) else 0 for seen in observed]
        weights = []
        for seen, start in zip(observed, starts, strict=True):
            weights.append((np.arange(len(seen.steps)) >= start).astype(float))
        return _fit_each(observed, sublinear, weights, starts)


@dataclass(frozen=True)
class LastValue:
    """The last measurement, as if nothing changed."""

    name: str = "last-value"

    def ends(self, observed: Sequence[ObservedCurve]) -> list[CurvePrediction]:
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
    observed: Sequence[ObservedCurve],
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


def _last(seen: ObservedCurve) -> CurvePrediction:
    last, room = float(seen.metric[-1]), float(np.ptp(seen.metric))
    return CurvePrediction(last, last - room, last + room, (float(seen.steps[0]),), Status.SHORT)


Predictors = CurvePredictor | Callable[[str], CurvePredictor]

_RIVALS: dict[str, Callable[[], CurvePredictor]] = {
    "earlycurve-published": PublishedEarlyCurve,
    "slaq": slaq,
    "power-law": power_law_rival,
    "last-value": LastValue,
}
METHODS = ("earlycurve", *_RIVALS)


def method(name: str, calibration: StageCalibration) -> Predictors:
    """A method by name; EarlyCurve uses on each workload the thresholds chosen on the others.

    Raises:
        InputError: The method is unknown.
    """
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return calibration.for_workload if name == "earlycurve" else _RIVALS[name]()


def evaluate_methods(
    curves: Sequence[Curve],
    calibration: StageCalibration,
    names: Sequence[str] = METHODS,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Scores of methods on the same curves and thetas: `{"methods": {name: {"by_theta", "workloads"}}}`.

    Raises:
        InputError: A method is unknown.
    """
    chosen = {name: method(name, calibration) for name in names}
    ends: dict[str, Ends] = {}
    for name, predictor in chosen.items():
        if on_progress:
            on_progress(name)
        ends[name] = ends_of(curves, predictor)
    return scores_of(ends)


@lru_cache(maxsize=1)
def table_two_curves() -> list[Curve]:
    """The 96 curves of SpotTune's Table II in the package, measured with `ebbtide curves measure`."""
    return read_curves(Path(str(files("ebbtide.forecasts.learning_curves") / "data" / "table-two.parquet")))
