"""Families of curves, fitted to many pieces of curves at once.

Pieces are rows of arrays, padded with points of zero weight. In every family the non-linear parameter runs over a
grid and the others follow in closed form, so that every fit converges and thousands of fits are a few array
operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

from ebbtide.forecasts.learning_curves.curves import Floats

# Asymptotes to try, as shares of the range below the lowest value; rates and powers to try, per length of piece.
_DEPTHS = np.concatenate([np.geomspace(1e-3, 1.0, 14), np.geomspace(1.6, 30.0, 7)])
_RATES = np.geomspace(0.15, 60.0, 26)
_POWERS = np.geomspace(0.05, 3.0, 20)

# Values of the finer grid between the neighbours of the best value.
_FINER = 9

# Elements of one temporary array, to limit memory.
_CHUNK = 4_000_000

# Subsets of the coefficients of (k**2, k, 1) that are not zero; at least one is not.
_SUBSETS = [subset for size in (1, 2, 3) for subset in combinations(range(3), size)]


@dataclass(frozen=True)
class Pieces:
    """Pieces of curves to fit, and where to predict.

    Attributes:
        steps: Step of each point, in any unit, not negative, shape (b, n).
        metric: Metric at each point, shape (b, n).
        weights: Weight of each point, 0 for padding, shape (b, n); each row has a point.
        targets: Steps to predict at, shape (b, m).
    """

    steps: Floats
    metric: Floats
    weights: Floats
    targets: Floats

    def __len__(self) -> int:
        return len(self.steps)

    def rows(self, chosen: slice) -> Pieces:
        """The pieces of some rows."""
        return Pieces(self.steps[chosen], self.metric[chosen], self.weights[chosen], self.targets[chosen])


@dataclass(frozen=True)
class Fits:
    """A family's fit to each piece.

    Attributes:
        values: Predicted metric at the targets, shape (b, m).
        error: Weighted mean squared error on the piece, shape (b,).
    """

    values: Floats
    error: Floats


def sublinear(pieces: Pieces) -> Fits:
    """SpotTune Eq. 4 on one stage: `1 / (a0 k**2 + a1 k + a2) + a3`, coefficients not negative.

    Given the asymptote a3, `1 / (metric - a3)` is linear in the other coefficients; weights of `(metric - a3)**4`
    make its squared errors those of the metric, to first order.
    """
    return _in_parts(pieces, len(_DEPTHS), _sublinear)


def exponential(pieces: Pieces) -> Fits:
    """Linear and superlinear convergence (V-B): `c + a mu**(k**p)`, p of 1, 1.5 or 2; a and c not negative."""
    fits = []
    for power in (1.0, 1.5, 2.0):

        def basis(share: Floats, rates: Floats, power: float = power) -> Floats:
            return np.asarray(np.exp(-rates[..., None] * share[:, None, :] ** power))

        fits.append(_in_parts(pieces, len(_RATES), partial(_two_parameters, basis=basis, grid=_RATES)))
    best = np.argmin([fit.error for fit in fits], axis=0)
    row = np.arange(len(pieces))
    values, errors = np.stack([fit.values for fit in fits]), np.stack([fit.error for fit in fits])
    return Fits(values[best, row], errors[best, row])


def power_law(pieces: Pieces) -> Fits:
    """`c + a k**-b`; a and c not negative."""

    def basis(share: Floats, powers: Floats) -> Floats:
        # The first measurement comes after some steps; step 0 itself would be infinite.
        return np.asarray(np.maximum(share[:, None, :], 1e-3) ** -powers[..., None])

    return _in_parts(pieces, len(_POWERS), partial(_two_parameters, basis=basis, grid=_POWERS))


def straight(pieces: Pieces) -> Fits:
    """`c - a k`, a not negative: the end of a curve whose learning rate falls linearly to zero."""

    def basis(share: Floats, ones: Floats) -> Floats:
        return np.asarray(-share[:, None, :] * ones[..., None])

    return _in_parts(pieces, 1, partial(_two_parameters, basis=basis, grid=np.ones(1), free_constant=True))


def level(pieces: Pieces) -> Fits:
    """The weighted mean: a curve that has stopped falling."""
    total = pieces.weights.sum(axis=1)
    mean = (pieces.weights * pieces.metric).sum(axis=1) / total
    error = (pieces.weights * (pieces.metric - mean[:, None]) ** 2).sum(axis=1) / total
    return Fits(np.repeat(mean[:, None], pieces.targets.shape[1], axis=1), error)


def _in_parts(pieces: Pieces, grid: int, fit: Callable[[Pieces], Fits]) -> Fits:
    number = max(_CHUNK // (grid * max(pieces.steps.shape[1], pieces.targets.shape[1])), 1)
    parts = [fit(pieces.rows(slice(at, at + number))) for at in range(0, len(pieces), number)]
    if not parts:
        return Fits(np.empty(pieces.targets.shape), np.empty(0))
    return Fits(np.concatenate([part.values for part in parts]), np.concatenate([part.error for part in parts]))


def _range(pieces: Pieces) -> tuple[Floats, Floats]:
    """Lowest value of each piece and its range, shape (b, 1)."""
    there = pieces.weights > 0
    low = np.where(there, pieces.metric, np.inf).min(axis=1, keepdims=True)
    high = np.where(there, pieces.metric, -np.inf).max(axis=1, keepdims=True)
    return low, np.maximum(high - low, 1e-9 * np.maximum(np.abs(low), 1e-9))


def _sublinear(pieces: Pieces) -> Fits:
    there = pieces.weights > 0
    low, spread = _range(pieces)
    # A negative asymptote is allowed only where the metric itself is negative.
    asymptote = np.maximum(low - spread * _DEPTHS, np.where(low >= 0.0, 0.0, -np.inf))
    span = np.where(there, pieces.steps, 0.0).max(axis=1, keepdims=True)
    unit = np.where(span > 0, span, 1.0)
    step = np.where(there, pieces.steps, 0.0) / unit
    above = np.where(there[:, None, :], pieces.metric[:, None, :] - asymptote[:, :, None], 1.0)
    above = np.maximum(above, 1e-6 * spread[:, :, None])
    scale = spread[:, :, None]
    inverse = scale / above
    weights = pieces.weights[:, None, :] * (above / scale) ** 4
    powers = np.stack([np.ones_like(step), step, step**2, step**3, step**4], axis=-1)
    moments = np.matmul(weights, powers)
    right = np.matmul(weights * inverse, powers[..., :3])[..., ::-1]
    coefficients = _non_negative(moments, right)
    columns = powers[..., 2::-1]
    fitted = 1.0 / np.maximum(np.matmul(coefficients, np.swapaxes(columns, 1, 2)), 1e-12)
    residual = scale * fitted + asymptote[:, :, None] - pieces.metric[:, None, :]
    error = np.matmul(residual**2, pieces.weights[:, :, None])[..., 0]
    best = np.argmin(error, axis=1)
    row = np.arange(len(pieces))
    at = pieces.targets / unit
    bottom = np.stack([at**2, at, np.ones_like(at)], axis=-1)
    curve = np.maximum(np.matmul(bottom, coefficients[row, best][:, :, None])[..., 0], 1e-12)
    values = spread / curve + asymptote[row, best][:, None]
    return Fits(values, error[row, best] / pieces.weights.sum(axis=1))


def _non_negative(moments: Floats, right: Floats) -> Floats:
    """Non-negative least squares on (k**2, k, 1): every subset is solved and the best feasible one kept.

    Args:
        moments: Weighted sums of powers 0 to 4 of k, shape (..., 5).
        right: Weighted sums of the right-hand side times (k**2, k, 1), shape (..., 3).
    """
    # The product of columns i and j of (k**2, k, 1) is k to the power of 4 - i - j.
    matrix = np.stack([np.stack([moments[..., 4 - i - j] for j in range(3)], axis=-1) for i in range(3)], axis=-2)
    best_value = np.full(right.shape[:-1], np.inf)
    best = np.zeros(right.shape)
    ridge = 1e-12 * np.trace(matrix, axis1=-2, axis2=-1)[..., None, None] + 1e-300
    for subset in _SUBSETS:
        chosen = list(subset)
        part = matrix[..., chosen, :][..., chosen]
        solved = np.linalg.solve(part + ridge * np.eye(len(chosen)), right[..., chosen][..., None])[..., 0]
        full = np.zeros(right.shape)
        full[..., chosen] = np.maximum(solved, 0.0)
        value = ((full[..., None, :] @ matrix @ full[..., None])[..., 0, 0]) - 2.0 * (full * right).sum(axis=-1)
        better = (solved >= 0.0).all(axis=-1) & (value < best_value)
        best_value = np.where(better, value, best_value)
        best = np.where(better[..., None], full, best)
    return best


def _two_parameters(
    pieces: Pieces, basis: Callable[[Floats, Floats], Floats], grid: Floats, *, free_constant: bool = False
) -> Fits:
    """`c + a f(k)` for the best f of a grid, then of a finer one; a not negative, nor c unless `free_constant`.

    Args:
        pieces: The pieces to fit.
        basis: f of (steps as shares of the piece, shape (b, n)) and (parameters, shape (b or 1, s)), with values
            of shape (b, s, n).
        grid: Values of f's parameter to try, in geometric order.
        free_constant: Whether c may be negative.
    """
    there = pieces.weights > 0
    span = np.where(there, pieces.steps, 0.0).max(axis=1, keepdims=True)
    unit = np.where(span > 0, span, 1.0)
    share = np.where(there, pieces.steps, 0.0) / unit
    row = np.arange(len(pieces))
    shapes = np.broadcast_to(grid, (len(pieces), len(grid)))
    constant, slope, error = _linear_part(pieces, basis(share, grid[None]), free_constant=free_constant)
    best = np.argmin(error, axis=1)
    if len(grid) > 1:
        step = grid[1] / grid[0]
        shapes = shapes[row, best][:, None] * step ** np.linspace(-1.0, 1.0, _FINER)
        constant, slope, error = _linear_part(pieces, basis(share, shapes), free_constant=free_constant)
        best = np.argmin(error, axis=1)
    at = basis(pieces.targets / unit, shapes[row, best][:, None])[:, 0]
    values = constant[row, best][:, None] + slope[row, best][:, None] * at
    return Fits(values, error[row, best] / pieces.weights.sum(axis=1))


def _linear_part(pieces: Pieces, shape: Floats, *, free_constant: bool) -> tuple[Floats, Floats, Floats]:
    """c, a and the weighted squared error of `c + a f` for each f, shape (b, s) each; `shape` is (b, s, n)."""
    there = pieces.weights > 0
    weights, metric = pieces.weights[:, :, None], pieces.metric[:, None, :]
    total = pieces.weights.sum(axis=1)[:, None]
    mean_shape = np.matmul(shape, weights)[..., 0] / total
    mean = (pieces.weights * pieces.metric).sum(axis=1)[:, None] / total
    centred = shape - mean_shape[..., None]
    variance = np.matmul(centred**2, weights)[..., 0]
    covariance = np.matmul(centred * (metric - mean[:, :, None]), weights)[..., 0]
    slope = np.maximum(covariance / np.maximum(variance, 1e-300), 0.0)
    constant = mean - slope * mean_shape
    if not free_constant:
        # Through zero where the constant would be negative, unless the metric is.
        squares = np.maximum(np.matmul(shape**2, weights)[..., 0], 1e-300)
        through = np.maximum(np.matmul(shape * metric, weights)[..., 0] / squares, 0.0)
        positive = np.where(there, pieces.metric, np.inf).min(axis=1, keepdims=True) >= 0
        negative = (constant < 0) & positive
        slope, constant = np.where(negative, through, slope), np.where(negative, 0.0, constant)
    residual = constant[..., None] + slope[..., None] * shape - metric
    return constant, slope, np.matmul(residual**2, weights)[..., 0]
