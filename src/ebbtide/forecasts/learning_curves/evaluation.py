"""Scores of predictors: error of the final metric, choice of the best run of a sweep (SpotTune IV-B, IV-E)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebbtide.forecasts.learning_curves.curves import Curve, CurvePredictor, Floats, ObservedCurve, observed

THETAS = tuple(round(0.1 * tenth, 1) for tenth in range(1, 11))

# With fewer runs than this, choosing the best three is too easy to count.
MIN_RUNS = 5


@dataclass(frozen=True, eq=False)
class Ends:
    """A predictor's predictions of the final metric of some curves.

    Attributes:
        workloads: Workload of each curve, shape (c,).
        truth: Final metric of each curve, shape (c,).
        values: Predicted final metric, shape (c, thetas).
        lower: Lower end of the band, shape (c, thetas).
        upper: Upper end of the band, shape (c, thetas).
    """

    workloads: tuple[str, ...]
    truth: Floats
    values: Floats
    lower: Floats
    upper: Floats

    def scores(self, thetas: Sequence[float] = THETAS) -> dict[str, Any]:
        """Scores by theta, over all and by workload."""
        rows = np.arange(len(self.truth))
        groups = {name: rows[np.array(self.workloads) == name] for name in dict.fromkeys(self.workloads)}
        by_workload = {
            name: {f"{theta:g}": self._of(its, place) for place, theta in enumerate(thetas)}
            for name, its in groups.items()
        }
        by_theta = {}
        for place, theta in enumerate(thetas):
            pooled = self._of(rows, place)
            # A choice is among the runs of one workload, so the score is the mean over workloads.
            chosen = [found[f"{theta:g}"] for found in by_workload.values()]
            for top in ("top1", "top3"):
                values = [found[top] for found in chosen if found[top] is not None]
                pooled[top] = float(np.mean(values)) if values else None
            pooled["selections"] = sum(found["top1"] is not None for found in chosen)
            by_theta[f"{theta:g}"] = pooled
        return {"by_theta": by_theta, "workloads": by_workload}

    def errors(self) -> Floats:
        """Relative errors, shape (c, thetas); NaN where the final metric is not finite."""
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.abs(self.values - self.truth[:, None]) / np.abs(self.truth[:, None])
        return np.where(np.isfinite(self.truth)[:, None], error, np.nan)

    def _of(self, rows: np.ndarray, place: int) -> dict[str, Any]:
        errors = self.errors()[rows, place]
        known = errors[np.isfinite(errors)]
        inside = (self.lower[rows, place] <= self.truth[rows]) & (self.truth[rows] <= self.upper[rows, place])
        scores: dict[str, Any] = {
            "relative_error_mean": float(known.mean()) if len(known) else None,
            "relative_error_median": float(np.median(known)) if len(known) else None,
            "band_coverage": float(inside.mean()),
            "curves": len(rows),
            "top1": None,
            "top3": None,
        }
        if len(rows) >= MIN_RUNS:
            ranked = rows[np.argsort(self.values[rows, place], kind="stable")]
            best = np.min(self.truth[rows])
            scores["top1"] = float(self.truth[ranked[0]] <= best)
            scores["top3"] = float((self.truth[ranked[:3]] <= best).any())
        return scores


def ends_of(
    curves: Sequence[Curve],
    predictor: CurvePredictor | Callable[[str], CurvePredictor],
    thetas: Sequence[float] = THETAS,
) -> Ends:
    """Predict every curve's final metric from its first part, for every theta.

    Args:
        curves: Complete curves, c of them.
        predictor: One predictor for all, or a function from workload to predictor.
        thetas: Shares of the whole run that the predictor sees.
    """
    values = np.empty((len(curves), len(thetas)))
    lower, upper = np.empty(values.shape), np.empty(values.shape)
    truth = np.array([curve.final for curve in curves])
    by_workload: dict[str, list[int]] = {}
    for row, curve in enumerate(curves):
        by_workload.setdefault(curve.workload if callable(predictor) else "", []).append(row)
    for workload, rows in by_workload.items():
        own = predictor(workload) if callable(predictor) else predictor
        seen = [_shown(curves[row], theta) for row in rows for theta in thetas]
        for number, prediction in enumerate(own.ends(seen)):
            row, place = rows[number // len(thetas)], number % len(thetas)
            values[row, place] = prediction.value
            lower[row, place], upper[row, place] = prediction.lower, prediction.upper
    return Ends(tuple(curve.workload for curve in curves), truth, values, lower, upper)


def scores_of(ends: Mapping[str, Ends], thetas: Sequence[float] = THETAS) -> dict[str, Any]:
    """Scores of several methods, by name."""
    return {"methods": {name: found.scores(thetas) for name, found in ends.items()}}


def _shown(curve: Curve, theta: float) -> ObservedCurve:
    steps, metric = curve.until(theta)
    return observed(steps, metric, curve.max_steps, f"{curve.workload} {theta:g}")
