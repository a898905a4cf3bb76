"""The public verb: where will this curve end?"""

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

    Never fails on what training can produce: a curve whose last measurement is not finite is infinitely bad
    (`diverged`), one with fewer than four measurements stays where it is with a wide band (`short`), so does one
    that has stopped changing (`converged`); single measurements that are not finite are left out.

    Args:
        steps: Of each measurement, shape (n,), n >= 1; not negative.
        metric: Lower is better, shape (n,).
        max_steps: Where to predict.
        theta: Use no more than this share of the run, in (0, 1]; at least the first measurement is used.
        predictor: How; None: EarlyCurve as calibrated on the curves of Table II.

    Raises:
        InputError: Shapes differ, there is no measurement, or a number is out of its range.
    """
    if not 0 < theta <= 1:
        raise InputError(f"theta is {theta}; it must be above 0 and at most 1")
    seen = observed(steps, metric, max_steps).until(theta)
    return (predictor or default_calibration().everywhere).ends([seen])[0]
