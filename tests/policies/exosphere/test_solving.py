"""Portfolios against cvxopt on the whole problem, and against the conditions that hold at an optimum alone."""

from __future__ import annotations

import numpy as np
import pytest
from cvxopt import matrix, solvers
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import InputError
from ebbtide.policies.exosphere import solve_portfolio


def objective(returns: np.ndarray, covariance: np.ndarray, alpha: float, x: np.ndarray) -> float:
    return float(returns @ x - alpha * x @ covariance @ x)


def by_cvxopt(returns: np.ndarray, covariance: np.ndarray, alpha: float) -> np.ndarray:
    count = len(returns)
    options = {"show_progress": False, "abstol": 1e-12, "reltol": 1e-11, "feastol": 1e-11}
    found = solvers.qp(
        matrix(2.0 * alpha * covariance),
        matrix(-returns),
        matrix(-np.eye(count)),
        matrix(np.zeros(count)),
        matrix(np.ones((1, count))),
        matrix(1.0),
        options=options,
    )
    return np.array(found["x"]).ravel()


def kkt_residual(returns: np.ndarray, covariance: np.ndarray, alpha: float, x: np.ndarray) -> float:
    """How far the gradient is from equal where there is weight, and from no more elsewhere."""
    gradient = returns - 2.0 * alpha * covariance @ x
    multiplier = gradient @ x
    return float(max((gradient - multiplier).max(), np.abs((gradient - multiplier)[x > 1e-9]).max()))


def random_problem(seed: int, count: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    returns = draws.uniform(0.5, 0.9, count)
    if kind == "factors":
        loads = draws.normal(size=(count, 5))
        covariance = loads @ loads.T / 5 + np.diag(draws.uniform(0.01, 1.0, count))
    elif kind == "few days":
        samples = draws.lognormal(sigma=1.0, size=(max(count // 3, 2), count))
        covariance = np.cov(samples, rowvar=False).reshape(count, count)
    elif kind == "independent":
        covariance = np.diag(draws.uniform(0.0, 1.0, count))
    else:
        half = draws.normal(size=(50, (count + 1) // 2))
        samples = np.repeat(half, 2, axis=1)[:, :count]
        covariance = np.cov(samples, rowvar=False).reshape(count, count)
        returns = np.repeat(returns[: (count + 1) // 2], 2)[:count]
    return returns, (covariance + covariance.T) / 2


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(2, 60),
    st.sampled_from(["factors", "few days", "independent", "twins"]),
    st.sampled_from([1e-3, 0.1, 1.0, 30.0, 1e4]),
)
def test_no_portfolio_is_better(seed: int, count: int, kind: str, alpha: float) -> None:
    returns, covariance = random_problem(seed, count, kind)
    x = solve_portfolio(returns, covariance, alpha)
    assert (x >= 0.0).all()
    assert x.sum() == pytest.approx(1.0, abs=1e-12)
    scale = max(1.0, float(np.abs(2.0 * alpha * covariance @ x).max()))
    assert kkt_residual(returns, covariance, alpha, x) < 1e-6 * scale
    best = objective(returns, covariance, alpha, by_cvxopt(returns, covariance, alpha))
    assert objective(returns, covariance, alpha, x) >= best - 1e-6 * max(abs(best), 1e-3)


@pytest.mark.parametrize("alpha", [0.1, 5.0, 1000.0])
def test_many_markets(alpha: float) -> None:
    returns, covariance = random_problem(7, 400, "factors")
    x = solve_portfolio(returns, covariance, alpha)
    assert kkt_residual(returns, covariance, alpha, x) < 1e-6
    best = objective(returns, covariance, alpha, by_cvxopt(returns, covariance, alpha))
    assert objective(returns, covariance, alpha, x) == pytest.approx(best, rel=1e-6)


def test_by_hand() -> None:
    # Without risk aversion the best market alone; with all of it, by the inverse of the variance.
    returns, covariance = np.array([0.8, 0.9, 0.7]), np.diag([1.0, 2.0, 4.0])
    assert solve_portfolio(returns, covariance, 0.0).tolist() == [0.0, 1.0, 0.0]
    assert solve_portfolio(np.full(3, 0.8), covariance, 3.0) == pytest.approx(np.array([4, 2, 1]) / 7)
    # 2 alpha (V_1 x_1 - V_2 (1 - x_1)) = c_1 - c_2.
    pair = solve_portfolio(returns[:2], covariance[:2, :2], 0.5)
    assert pair == pytest.approx([(0.8 - 0.9 + 2.0) / 3.0, 1 - (0.8 - 0.9 + 2.0) / 3.0])
    assert solve_portfolio([0.3], [[0.0]], 2.0).tolist() == [1.0]
    # No risk at all: the best alone, whatever the aversion.
    assert solve_portfolio(returns, np.zeros((3, 3)), 2.0) == pytest.approx([0.0, 1.0, 0.0])


@pytest.mark.parametrize(
    ("returns", "covariance", "alpha", "problem"),
    [
        ([], np.zeros((0, 0)), 1.0, "one for each of one or more markets"),
        ([0.1, 0.2], np.eye(3), 1.0, r"covariance is of shape \(3, 3\); 2 returns need \(2, 2\)"),
        ([0.1, np.nan], np.eye(2), 1.0, r"returns\[1\] is not finite"),
        ([0.1, 0.2], [[1.0, np.nan], [np.nan, 1.0]], 1.0, r"covariance\[0, 1\] is not finite"),
        ([0.1, 0.2], [[1.0, 0.5], [0.4, 1.0]], 1.0, "covariance is not symmetric"),
        ([0.1, 0.2], [[1.0, 2.0], [2.0, 1.0]], 1.0, "covariance is indefinite: its least eigenvalue is -1"),
        ([0.1, 0.2], [[1.0, 0.0], [0.0, -1e-3]], 1.0, "covariance is indefinite"),
        ([0.1, 0.2], np.eye(2), -1.0, "alpha is -1.0"),
        ([0.1, 0.2], np.eye(2), np.nan, "alpha is nan"),
    ],
)
def test_what_is_no_problem_is_refused(returns: object, covariance: object, alpha: float, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        solve_portfolio(returns, covariance, alpha)  # type: ignore[arg-type]
