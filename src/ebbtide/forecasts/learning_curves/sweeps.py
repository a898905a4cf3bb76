"""What the curves of one sweep tell about each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ebbtide.forecasts.learning_curves.curves import Floats, Integers

# Of fewer curves, the spread tells too little.
_MIN_CURVES = 4


def expected_errors(
    errors: Floats, owner: Integers, curves: int, sweeps: Sequence[Sequence[int]], pooling: float
) -> Floats:
    """Each candidate's error to expect for each curve, shape (curves, candidates); NaN where nothing tells.

    Args:
        errors: Of each candidate from earlier moments, relative, shape (moments, candidates); NaN: not asked.
        owner: The curve of each moment, shape (moments,).
        curves: How many there are.
        sweeps: Rows of the curves that belong together; every curve counts only for itself otherwise.
        pooling: For how many of a curve's own moments the whole sweep's count, however many they are.
    """
    known = np.isfinite(errors)
    shape = curves, errors.shape[1]
    sums, counts = np.zeros(shape), np.zeros(shape)
    np.add.at(sums, owner, np.where(known, errors, 0.0) ** 2)
    np.add.at(counts, owner, known)
    for rows in sweeps:
        chosen = np.array(rows)
        told = counts[chosen].sum(axis=0)
        sums[chosen] += np.where(told > 0, pooling * sums[chosen].sum(axis=0) / np.maximum(told, 1.0), 0.0)
        counts[chosen] += np.where(told > 0, pooling, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.sqrt(sums / counts))


def shrunk(values: Floats, last: Floats, off: Floats, sweeps: Sequence[Sequence[int]]) -> Floats:
    """Predictions drawn towards what their sweep has in common, as far as their differences are noise.

    What is predicted is how much each curve will still lose, as a share of its last value. Runs that differ in
    little but their seed would be ranked by the noise of their fits; the spread of past errors over the sweep
    tells how large that is (James and Stein's shrinkage, with variances estimated).

    Args:
        values: Predicted ends, shape (curves,).
        last: The last measurement of each, shape (curves,).
        off: By how much each was predicted too high from an earlier moment; NaN where unknown; shape (curves,).
        sweeps: Rows of the curves that belong together.
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
    """From the middle half, so that one wild curve does not decide."""
    low, high = np.percentile(values, [25.0, 75.0])
    return float(((high - low) / 1.349) ** 2)
