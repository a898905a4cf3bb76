"""Portfolios of 2,500 markets beside one plain call of cvxopt; covariances beside the bare product."""

from __future__ import annotations

import resource
import time

import numpy as np
import pytest
from cvxopt import matrix, solvers
from scipy.linalg.blas import dsyrk
from tests.benchmarks.floors import tell

import ebbtide as eb
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.exosphere import solve_portfolio
from ebbtide.policies.exosphere.candidates import Candidates, Windows, hybrid_covariance

MARKETS, DAYS = 2_500, 90


def problem() -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(0)
    loads = draws.normal(size=(MARKETS, 20))
    covariance = loads @ loads.T / 20 + np.diag(draws.uniform(0.01, 1.0, MARKETS))
    return draws.uniform(0.5, 0.9, MARKETS), covariance


def test_solving(benchmark) -> None:
    returns, covariance = problem()
    for alpha in (0.1, 5.0, 100.0):
        began = time.perf_counter()
        x = solve_portfolio(returns, covariance, alpha)
        ours_s = time.perf_counter() - began
        count = len(returns)
        began = time.perf_counter()
        found = solvers.qp(
            matrix(2.0 * alpha * covariance),
            matrix(-returns),
            matrix(-np.eye(count)),
            matrix(np.zeros(count)),
            matrix(np.ones((1, count))),
            matrix(1.0),
            options={"show_progress": False},
        )
        plain_s = time.perf_counter() - began
        y = np.array(found["x"]).ravel()
        better = (returns @ x - alpha * x @ covariance @ x) - (returns @ y - alpha * y @ covariance @ y)
        told = f"target 1 s and a twentieth of cvxopt's {plain_s:.2f} s: {plain_s / ours_s:.0f} times faster"
        tell(f"alpha {alpha:g}, {(x > 1e-6).sum()} markets, better by {better:.1e}", told, ours_s, plain_s)
    benchmark.pedantic(lambda: solve_portfolio(returns, covariance, 5.0), rounds=3)


@pytest.mark.parametrize("count", [MARKETS])
def test_covariance(benchmark, count: int) -> None:
    draws = np.random.default_rng(0)
    end_s = DAYS * 86_400.0
    markets = tuple(eb.Market("aws", "us-east-1", f"z{number}", "c3.xlarge") for number in range(count))
    series = {
        market: PriceSeries(np.append(0.0, np.sort(draws.uniform(1, end_s, 200))), draws.lognormal(-2, 0.5, 201))
        for market in markets
    }
    prices = eb.PriceHistory(series, start_s=0.0, end_s=end_s)
    ones = np.ones(count)
    candidates = Candidates(markets, 0.21 * ones, ones > 0, ones, ones, ones, ones, np.zeros(count, int))
    windows = Windows.within(0.0, end_s)
    block = draws.normal(size=(2048, count))
    began = time.perf_counter()
    dsyrk(1.0, block, trans=1, lower=1)
    floor_s = (time.perf_counter() - began) * windows.count / 2048
    benchmark.pedantic(lambda: hybrid_covariance(prices, candidates, windows), rounds=1)
    used_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    told = f"{count} markets, {windows.count} windows, {used_gb:.1f} GB; target 30 s and 4 GiB; floor: the product"
    tell("covariance", told, benchmark.stats.stats.median, floor_s)
