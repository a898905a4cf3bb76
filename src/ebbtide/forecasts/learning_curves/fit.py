"""The public function `fit_curve`: the final metric of one curve."""

from __future__ import annotations

from collections.abc import Sequence

from ebbtide.errors import InputError
from ebbtide.forecasts.learning_curves.calibration import default_calibration
from ebbtide.forecasts.learning_curves.curves import Floats
from ebbtide.forecasts.learning_curves.predictions import CurvePrediction, CurvePredictor, observed


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
