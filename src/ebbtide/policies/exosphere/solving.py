"""The quadratic program of portfolios: the best return for the risk (ExoSphere 3.3, Equation 5).

A portfolio uses few of the markets. So the problem is solved on a few columns, checked on all, and solved again
with those columns that would improve it, until none would (column generation). The check is the Karush-Kuhn-Tucker
conditions, so the result is the optimum of the whole problem. Each solution starts from the last one.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ebbtide.errors import InputError
from ebbtide.market.price_series import Floats

# Tolerance, relative to the largest gradient: smaller gains of a column do not count.
_TOLERANCE = 1e-10
# Added to the diagonal, relative to its mean, so that singular matrices can be solved, too. Iterative refinement
# removes the error.
_RIDGE = 1e-9
_MOST_REFINEMENTS = 30
_REFINED = 1e-13
# How far below 0 an eigenvalue may be by rounding, relative to the largest element times the matrix size.
_ROUNDING = 1e-12
_FEW_ROUNDS = 24
_MOST_ROUNDS = 1000
# Weights of an interior-point solution above this may be positive at the optimum.
_NEAR = 1e-7
_BLOCK = 256
_LEAST_ROOM = 16


def solve_portfolio(returns: ArrayLike, covariance: ArrayLike, alpha: float) -> Floats:
    """The weights x that maximise returns . x - alpha x' V x; they sum to 1 and none is negative.

    Args:
        returns: Return of each market, shape (n,).
        covariance: V, symmetric and positive semidefinite, shape (n, n).
        alpha: Risk aversion; 0: only the best market.

    Returns:
        Weights, shape (n,).

    Raises:
        InputError: Shapes do not match; a value is not finite; the covariance is not symmetric or is indefinite;
            alpha is negative.
    """
    gains, risks = _checked(returns, covariance, alpha)
    if alpha == 0.0 or len(gains) == 1 or not risks.any():
        return _alone(len(gains), int(gains.argmax()))
    best = int((gains - alpha * risks.diagonal()).argmax())
    support, x, is_best = _grown(gains, risks, 2.0 * alpha, np.array([best]), np.ones(1), _FEW_ROUNDS)
    if not is_best:
        # Many interchangeable columns: restart near the optimum.
        near = _by_interior_point(gains, risks, alpha)
        support = np.flatnonzero(near > _NEAR)
        x = near[support] / near[support].sum()
        support, x, _ = _grown(gains, risks, 2.0 * alpha, support, x, _MOST_ROUNDS)
    weights = np.zeros(len(gains))
    weights[support] = x
    return np.asarray(weights / weights.sum())


def _grown(
    gains: Floats, risks: Floats, scale: float, support: np.ndarray, x: Floats, rounds: int
) -> tuple[np.ndarray, Floats, bool]:
    """Columns and weights, improved in at most `rounds` rounds, and whether they are optimal over all columns."""
    ridge, added = _RIDGE * float(risks.diagonal().mean()), len(x)
    for _ in range(rounds):
        before = len(support)
        x, support = _settled(gains, risks, scale, ridge, x, support)
        gradient = gains - scale * (x @ risks[support])
        excess = gradient - float(gradient[support] @ x)
        excess[support] = -np.inf
        allowed = _TOLERANCE * max(float(np.abs(gradient).max()), float(np.abs(gains).max()))
        better = np.flatnonzero(excess > allowed)
        if not len(better):
            return support, x, True
        # Add as many columns as there are, unless most of them were dropped the last time.
        stayed = len(support) - (before - added)
        room = max(min(2 * stayed, len(support)), _LEAST_ROOM)
        chosen = better if len(better) <= room else better[np.argpartition(-excess[better], room)[:room]]
        chosen = chosen[np.argsort(-excess[chosen])]
        added = len(chosen)
        support, x = np.concatenate([support, chosen]), np.concatenate([x, np.zeros(added)])
    return support, x, False


def _settled(
    gains: Floats, risks: Floats, scale: float, ridge: float, x: Floats, support: np.ndarray
) -> tuple[Floats, np.ndarray]:
    """The optimum on some columns, or at least an improved feasible point, without columns of weight 0.

    First all columns with a negative weight are dropped together, as long as there are any. That is mostly the
    optimum; if it does not improve the starting point, columns are dropped one by one along the way (active set).
    """
    columns, weight = support, x
    while len(columns):
        target = _unbounded(gains[columns], risks[np.ix_(columns, columns)], scale, ridge)
        if (target >= 0.0).all():
            # With all columns that had weight before, it is the optimum over a larger set.
            still = np.count_nonzero(weight) == np.count_nonzero(x)
            if still or _worth(gains, risks, scale, target, columns) > _worth(gains, risks, scale, x, support):
                return target, columns
            break
        columns, weight = columns[target > 0.0], weight[target > 0.0]
    first = len(x) - int((x == 0.0).sum())
    while True:
        target = _unbounded(gains[support], risks[np.ix_(support, support)], scale, ridge)
        if (target >= 0.0).all():
            return target, support
        # New columns whose weight would be negative at once; that of the best new column never is.
        stuck = (x == 0.0) & (target < 0.0)
        if stuck.any():
            if first < len(x) and stuck[x == 0.0].all():
                stuck[first] = False
            if stuck.any():
                x, support = x[~stuck], support[~stuck]
                continue
        falling = target < 0.0
        steps = x[falling] / (x[falling] - target[falling])
        step = float(steps.min())
        x = x + step * (target - x)
        x[np.flatnonzero(falling)[steps <= step]] = 0.0
        kept = x > 0.0
        kept[np.flatnonzero(~falling)] = True
        x, support = np.maximum(x[kept], 0.0), support[kept]
        first = len(x)


def _worth(gains: Floats, risks: Floats, scale: float, x: Floats, support: np.ndarray) -> float:
    used = support[x > 0.0]
    weights = x[x > 0.0]
    return float(gains[used] @ weights - 0.5 * scale * (weights @ (risks[np.ix_(used, used)] @ weights)))


def _unbounded(gains: Floats, risks: Floats, scale: float, ridge: float) -> Floats:
    """The optimum with weights that sum to 1 and may be negative."""
    matrix = scale * risks
    matrix[np.diag_indices_from(matrix)] += scale * ridge
    while True:
        try:
            factor = scipy.linalg.cho_factor(matrix, lower=True, check_finite=False)
            break
        except scipy.linalg.LinAlgError:
            ridge *= 100.0
            matrix[np.diag_indices_from(matrix)] += scale * ridge
    ones = scipy.linalg.cho_solve(factor, np.ones(len(gains)), check_finite=False)
    target, wanted, allowed = np.zeros(len(gains)), 1.0, _REFINED * float(np.abs(gains).max())
    for _ in range(_MOST_REFINEMENTS):
        rest = gains - scale * (risks @ target)
        rest -= rest.mean()
        if wanted == 0.0 and float(np.abs(rest).max()) <= allowed:
            break
        change = scipy.linalg.cho_solve(factor, rest, check_finite=False)
        target = target + change + ones * ((wanted - change.sum()) / ones.sum())
        wanted = 0.0
    return target


def _by_interior_point(gains: Floats, risks: Floats, alpha: float) -> Floats:
    """The whole problem at once, by cvxopt: for problems where column generation converges slowly."""
    from cvxopt import matrix, solvers, spdiag

    count = len(gains)
    found = solvers.qp(
        matrix(2.0 * alpha * risks),
        matrix(-gains),
        spdiag([-1.0] * count),
        matrix(0.0, (count, 1)),
        matrix(1.0, (1, count)),
        matrix(1.0),
        options={"show_progress": False},
    )
    weights = np.maximum(np.array(found["x"]).ravel(), 0.0)
    return np.asarray(weights / weights.sum())


def _checked(returns: ArrayLike, covariance: ArrayLike, alpha: float) -> tuple[Floats, Floats]:
    gains: Floats = np.asarray(returns, dtype=np.float64)
    risks: Floats = np.asarray(covariance, dtype=np.float64)
    if gains.ndim != 1 or not len(gains):
        raise InputError(f"returns are of shape {gains.shape}; one for each of one or more markets is needed")
    if risks.shape != (len(gains), len(gains)):
        need = f"({len(gains)}, {len(gains)})"
        raise InputError(f"covariance is of shape {risks.shape}; {len(gains)} returns need {need}")
    if not np.isfinite(alpha) or alpha < 0.0:
        raise InputError(f"alpha is {alpha}; a number from 0 on is needed")
    if not np.isfinite(gains).all():
        raise InputError(f"returns[{int(np.flatnonzero(~np.isfinite(gains))[0])}] is not finite")
    # A finite sum means finite terms, except for cancellation and overflow.
    if not np.isfinite(risks.sum()) and not np.isfinite(risks).all():
        row, column = np.argwhere(~np.isfinite(risks))[0].tolist()
        raise InputError(f"covariance[{row}, {column}] is not finite")
    _check_symmetric(risks)
    _check_semidefinite(risks)
    return gains, risks


def _check_symmetric(risks: Floats) -> None:
    """Compare block by block, so that compared values are near in memory."""
    blocks = range(0, len(risks), _BLOCK)
    for row, column in ((row, column) for row in blocks for column in blocks if row <= column):
        rows, columns = slice(row, row + _BLOCK), slice(column, column + _BLOCK)
        if not np.array_equal(risks[rows, columns], risks[columns, rows].T):
            break
    else:
        return
    apart = np.abs(risks - risks.T)
    if float(apart.max()) > 1e-9 * float(np.abs(risks).max()):
        row, column = (int(place) for place in np.unravel_index(int(apart.argmax()), apart.shape))
        raise InputError(f"covariance is not symmetric: [{row}, {column}] and [{column}, {row}] differ")


def _check_semidefinite(risks: Floats) -> None:
    raised = np.array(risks, order="F")
    largest = float(np.abs(raised.diagonal()).max())
    raised[np.diag_indices_from(raised)] += max(_ROUNDING * len(risks) * largest, 1e-300)
    _, failed = scipy.linalg.lapack.dpotrf(raised, lower=1, overwrite_a=1, clean=0)
    if failed:
        least = float(np.linalg.eigvalsh(risks)[0])
        raise InputError(
            f"covariance is indefinite: its least eigenvalue is {least:.3g}, and of covariances none is below 0"
        )


def _alone(count: int, market: int) -> Floats:
    weights = np.zeros(count)
    weights[market] = 1.0
    return weights
