"""Partial pooling over the curves of one sweep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ebbtide.forecasts.learning_curves.curves import Floats, Integers

# The fewest curves from which a spread is estimated.
_MIN_CURVES = 4


def expected_errors(
    errors: Floats, owner: Integers, curves: int, sweeps: Sequence[Sequence[int]], pooling: float
) -> Floats:
    """Each candidate's expected error for each curve, shape (curves, candidates); NaN where unknown.

    Args:
        errors: Relative errors from earlier points, NaN without a prediction, shape (points, candidates).
        owner: Row of the curve of each earlier point, shape (points,).
        curves: Number of curves in all.
        sweeps: Rows of the curves of each sweep; other curves use their own errors only.
        pooling: Pseudo-count of the sweep's mean squared error, in points of the curve itself.
    """
    known = np.isfinite(errors)
    shape = curves, errors.shape[1]
    sums, counts = np.zeros(shape), np.zeros(shape)
    np.add.at(sums, owner, np.where(known, errors, 0.0) ** 2)
    np.add.at(counts, owner, known)
    for rows in sweeps:
        chosen = np.array(rows)
        total = counts[chosen].sum(axis=0)
        sums[chosen] += np.where(total > 0, pooling * sums[chosen].sum(axis=0) / np.maximum(total, 1.0), 0.0)
        counts[chosen] += np.where(total > 0, pooling, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.sqrt(sums / counts))


def shrunk(values: Floats, last: Floats, off: Floats, sweeps: Sequence[Sequence[int]]) -> Floats:
    """Predictions shrunk towards the median of their sweep, by the share of their spread that is noise.

    The quantity shrunk is the predicted metric as a share of the last value. Without it, runs that differ only in
    their seed would be ranked by the noise of their fits; the spread of past errors over the sweep estimates that
    noise (James-Stein shrinkage with estimated variances).

    Args:
        values: Predicted final metric of each curve, shape (curves,).
        last: The last measurement of each curve, shape (curves,).
        off: Excess of an earlier prediction over the metric, NaN where unknown, shape (curves,).
        sweeps: Rows of the curves of each sweep.

    Returns:
        Shrunk predictions, shape (curves,).
    """
    result = values.copy()
    for rows in sweeps:
        chosen = np.array(rows)
        chosen = chosen[np.isfinite(off[chosen]) & (np.abs(last[chosen]) > 0)]
        if len(chosen) < _MIN_CURVES:
            continue
        loss = values[chosen] / last[chosen]
        spread, noise = _variance(loss), _variance(off[chosen] / last[chosen])
        kept = max(1.0 - noise / spread, 0.0) if spread > 0 else 0.0
        result[chosen] = last[chosen] * (np.median(loss) + kept * (loss - np.median(loss)))
    return result


def _variance(values: Floats) -> float:
    """Variance estimated from the interquartile range, so that one outlier does not decide."""
    low, high = np.percentile(values, [25.0, 75.0])
    return float(((high - low) / 1.349) ** 2)
