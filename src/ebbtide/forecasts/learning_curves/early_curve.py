"""EarlyCurve: stages, families fitted to the last one, and an average weighted by how well each predicted so far.

SpotTune fits Eq. 4 to each stage. Which part of a stage to fit, and whether it converges sublinearly at all (V-B),
is measured on the curve itself: every candidate predicts later known measurements from earlier points. The errors
of the curves of one sweep are partially pooled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ebbtide.forecasts.learning_curves.curves import (
    Bools,
    CurvePrediction,
    Floats,
    Integers,
    ObservedCurve,
    Status,
    without_fit,
)
from ebbtide.forecasts.learning_curves.stages import (
    CANDIDATES,
    EARLY,
    MIN_POINTS,
    Prefix,
    StageThresholds,
    predict,
    stage_starts,
)

# Earlier points to predict from: last step / earlier step - 1, as a multiple of max_steps / last step - 1.
_HORIZONS = (0.25, 0.5, 1.0)

# With more than this multiple of the measured steps still ahead, earlier points are too few and too close to
# compare families: a curve in its first stage is then predicted by `EARLY` alone.
_TOO_FAR = 1.4

# Later measurements predicted from each earlier point.
_TARGETS = 3


@dataclass(frozen=True)
class EarlyCurve:
    """The EarlyCurve predictor.

    Attributes:
        thresholds: xi and epsilon of Eq. 7.
        sharpness: A candidate's weight falls with this power of its error.
        least_error: Added to errors, as a share of the metric, so that a chance hit does not decide.
        plateau_points: Number of last measurements that are checked for convergence.
        plateau: Largest range of those measurements, as a share of the metric, that counts as converged.
        pooling: Pseudo-count of the sweep's errors, in earlier points of the curve itself (partial pooling).
        band: Half the width of the band, in units of the expected error.
        name: Name of the predictor in tables.
    """

    thresholds: StageThresholds = field(default_factory=StageThresholds)
    sharpness: float = 2.0
    least_error: float = 0.003
    plateau_points: int = 10
    plateau: float = 1e-4
    pooling: float = 3.0
    band: float = 2.0
    name: str = "earlycurve"

    def ends(self, observed: Sequence[ObservedCurve]) -> list[CurvePrediction]:
        """Predict the end of each curve; see `Status` for curves to which nothing can be fitted."""
        answers = [self._without_fit(seen) for seen in observed]
        rows = [row for row, answer in enumerate(answers) if answer is None]
        fitted = self._fitted([observed[row] for row in rows])
        for row, prediction in zip(rows, fitted, strict=True):
            answers[row] = prediction
        return [answer for answer in answers if answer is not None]

    def has_converged(self, metric: Floats) -> bool:
        """Return whether the metric, shape (n,), has reached a plateau, where more training is useless (III-C)."""
        tail = metric[-self.plateau_points :]
        return len(tail) == self.plateau_points and bool(np.ptp(tail) <= self.plateau * abs(tail[-1]))

    def _without_fit(self, seen: ObservedCurve) -> CurvePrediction | None:
        answer = without_fit(seen)
        if answer:
            return answer
        last, spread = float(seen.metric[-1]), float(np.ptp(seen.metric))
        first = (float(seen.steps[0]),)
        if len(seen.metric) < MIN_POINTS:
            # Too short to extrapolate: the band allows as much change again as there has been.
            room = max(spread, 0.1 * abs(last))
            return CurvePrediction(last, last - room, last + room, first, Status.SHORT)
        if self.has_converged(seen.metric):
            room = float(np.ptp(seen.metric[-self.plateau_points :]))
            stages = tuple(float(seen.steps[place]) for place in stage_starts(seen.metric, self.thresholds))
            return CurvePrediction(last, last - room, last + room, stages, Status.CONVERGED)
        return None

    def _fitted(self, observed: Sequence[ObservedCurve]) -> list[CurvePrediction]:
        if not observed:
            return []
        starts = [stage_starts(seen.metric, self.thresholds) for seen in observed]
        now = [
            Prefix(seen.steps, seen.metric, begun[-1], np.array([seen.max_steps]))
            for seen, begun in zip(observed, starts, strict=True)
        ]
        ends = np.empty((len(observed), len(CANDIDATES)))
        moments = [_earlier_moments(seen, begun) for seen, begun in zip(observed, starts, strict=True)]
        owner = np.repeat(np.arange(len(observed)), [len(own) for own in moments])
        earlier = [prefix for own in moments for prefix, _ in own]
        truth = np.array([truth for own in moments for _, truth in own]).reshape(len(earlier), _TARGETS)
        # How much too high each candidate predicts from each earlier point, shape (points, candidates, targets).
        excess = np.zeros((len(earlier), len(CANDIDATES), truth.shape[1]))
        for place, candidate in enumerate(CANDIDATES):
            ends[:, place : place + 1] = predict(now, candidate).reshape(len(now), -1)
            if earlier:
                excess[:, place] = predict(earlier, candidate) - truth
        sizes = np.array([max(float(np.abs(seen.metric).mean()), 1e-12) for seen in observed])
        lowest = np.array([0.0 if seen.metric.min() >= 0 else -np.inf for seen in observed])
        ends = np.maximum(ends, lowest[:, None])
        # A candidate without a prediction has no weight; missing earlier predictions are left out of its error.
        silent = np.isnan(ends)
        ends = np.where(silent, 0.0, ends)
        sweeps = _sweeps(observed)
        errors = np.abs(excess).mean(axis=2) / sizes[owner][:, None]
        excess = np.nan_to_num(excess)
        wrong = expected_errors(errors, owner, len(observed), sweeps, self.pooling)
        staged = np.array([len(begun) > 1 for begun in starts])
        shares = self._shares(wrong, silent, staged)
        far = np.array([seen.max_steps > (1.0 + _TOO_FAR) * seen.steps[-1] for seen in observed]) & ~staged
        shares[far] = [float(candidate is EARLY) for candidate in CANDIDATES]
        wrong = np.where(np.isnan(wrong) & (shares == 0.0), 0.0, wrong)
        values = (shares * ends).sum(axis=1)
        # Each curve's error from the earliest point, which was about as far from its target as the end is now.
        off = np.full(len(observed), np.nan)
        for row in range(len(observed)):
            own = np.flatnonzero(owner == row)
            if len(own) and not far[row]:
                off[row] = (shares[row] @ excess[own[-1]]).mean() / sizes[row]
        last = np.array([seen.metric[-1] for seen in observed])
        values = np.maximum(shrunk(values, last, off * sizes, sweeps), lowest)
        return [
            self._answer(seen, begun, float(values[row]), ends[row], shares[row], wrong[row] * sizes[row])
            for row, (seen, begun) in enumerate(zip(observed, starts, strict=True))
        ]

    def _shares(self, wrong: Floats, silent: Bools, staged: Bools) -> Floats:
        """The weight of each candidate for each curve, shape (curves, candidates); rows sum to 1.

        Args:
            wrong: Expected relative error, NaN where unknown, shape (curves, candidates).
            silent: Whether the candidate has no prediction, shape (curves, candidates).
            staged: Whether the curve has entered a new stage, shape (curves,).
        """
        shares = np.where(
            np.isnan(wrong) | silent, 0.0, 1.0 / (np.nan_to_num(wrong) + self.least_error) ** self.sharpness
        )
        prior = np.where(
            staged[:, None],
            [candidate.new_stage_prior for candidate in CANDIDATES],
            [candidate.prior for candidate in CANDIDATES],
        )
        shares = np.where(np.isnan(wrong).all(axis=1, keepdims=True), prior, shares)
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def _answer(
        self, seen: ObservedCurve, begun: list[int], value: float, ends: Floats, shares: Floats, wrong: Floats
    ) -> CurvePrediction:
        stage = seen.metric[begun[-1] :]
        if np.isnan(wrong).any():
            wrong = np.full(len(CANDIDATES), np.ptp(stage))
        noise = float(np.median(np.abs(np.diff(stage)))) / 2.0 if len(stage) > 1 else 0.0
        expected = float(np.sqrt(shares @ (ends - value) ** 2 + (shares @ wrong) ** 2 + noise**2))
        room = self.band * expected
        return CurvePrediction(
            value,
            max(value - room, 0.0) if seen.metric.min() >= 0 else value - room,
            value + room,
            tuple(float(seen.steps[place]) for place in begun),
            Status.FITTED,
            {candidate.name: float(share) for candidate, share in zip(CANDIDATES, shares, strict=True)},
        )


def _earlier_moments(seen: ObservedCurve, begun: list[int]) -> list[tuple[Prefix, Floats]]:
    """Earlier points of the last stage with known targets as far ahead as the end is now, and the metric there."""
    steps, metric = seen.steps, seen.metric
    last = len(steps) - 1
    ahead = (seen.max_steps - steps[last]) / max(steps[last], 1e-12)
    lengths: list[int] = []
    for horizon in _HORIZONS:
        length = int(np.searchsorted(steps, steps[last] / (1.0 + horizon * ahead) * (1 + 1e-9), side="right"))
        # Points before the last stage cannot predict it.
        length = max(length, begun[-1] + MIN_POINTS + (1 if begun[-1] else 0))
        if length <= last and length not in lengths:
            lengths.append(length)
    moments = []
    for length in lengths:
        # Targets in the later part only: the next measurement is easy to predict.
        first = length + (last - length) // 3
        targets = np.linspace(first, last, _TARGETS).round().astype(int)
        stage = max(place for place in begun if place < length)
        moments.append((Prefix(steps[:length], metric[:length], stage, steps[targets]), metric[targets]))
    return moments


def _sweeps(observed: Sequence[ObservedCurve]) -> list[list[int]]:
    """Rows of the curves of each sweep."""
    sweeps: dict[str, list[int]] = {}
    for row, seen in enumerate(observed):
        if seen.sweep is not None:
            sweeps.setdefault(seen.sweep, []).append(row)
    return list(sweeps.values())


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
