"""Cookbooks by backward induction (Cümülön-D 5.1, 5.2), with expectation and variance.

Lemma 1 takes the charge of a step as known from the price at its beginning. Charges by the second are not: they
vary, and are correlated with the next price. Here the variance includes both.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from ebbtide.base.compiled_records import FEASIBLE_USD, INFEASIBLE_USD, CostsToCome, Moves, StepSolution
from ebbtide.base.compiling import compiled
from ebbtide.errors import InputError
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.cookbook.problem import CookbookProblem, Holdings

# Of actions whose expected costs differ by no more than this share, the one with most machines is taken: where it
# costs nothing to be done early, that is worth something.
_TIE = 1e-9

# Less work in a step than this, in combinations of a state and an action, is done in one thread.
_LITTLE = 1_000_000


def solve(problem: CookbookProblem, *, workers: int = 2) -> Cookbook:
    """The best action for every state (5.2).

    Args:
        problem: The workflow, market and deadline.
        workers: Number of threads to use.

    Raises:
        InputError: The deadline cannot be met from the start, whatever is done.
    """
    market, levels_h = problem.market, problem.levels_h
    holdings = Holdings.of(problem.most, problem.charge_steps)
    moves = Moves(*_progress(problem, levels_h), holdings.held, holdings.sizes, holdings.leads_to)
    steps, states = market.steps, (len(levels_h), len(holdings.held), len(market.prices))
    actions = np.zeros((steps, *states), dtype=np.uint8 if problem.most < 256 else np.uint16)
    means = np.empty((steps, *states), dtype=np.float32)
    deviations = np.empty((steps, *states), dtype=np.float32)
    mean = np.full(states, INFEASIBLE_USD)
    mean[0] = 0.0
    variance = np.zeros(states)
    # Threads take longer to begin than little work does.
    threads = workers if np.prod(states) * len(holdings.sizes) >= _LITTLE else 1
    with ThreadPoolExecutor(threads) as pool:
        for step in reversed(range(steps)):
            transition = market.transition[step]
            charge = market.mean_charge[step]
            after = _expected(mean, transition)
            square = _expected(variance + mean**2, transition)
            # For the covariance of the charge and the cost to come: E[charge x cost to come].
            joint = _expected(mean, transition * market.charge[step])
            best_mean, best_variance = np.empty(states), np.empty(states)
            given = (
                moves,
                CostsToCome(after, square, joint, charge, market.charge_variance[step]),
                float(problem.risk_aversion),
                StepSolution(actions[step], best_mean, best_variance),
            )
            if threads == 1:
                _induce(0, len(levels_h), *given)
            else:
                parts = _parts(len(levels_h), 4 * threads)
                for done in [pool.submit(_induce, part.start, part.stop, *given) for part in parts]:
                    done.result()
            mean, variance = best_mean, best_variance
            means[step] = np.where(mean < FEASIBLE_USD, mean, np.inf)
            deviations[step] = np.sqrt(variance)
    if not np.isfinite(means[0, -1, 0]).any():
        raise InputError(
            f"{problem.workflow.name}: {problem.workflow.work_h:g} machine-hours cannot be done in "
            f"{steps * problem.step_h:g} h with {problem.most} machines; give it more time or more machines"
        )
    return Cookbook(problem, actions, means, deviations)


def _progress(problem: CookbookProblem, levels_h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Level below the work left after a step from each level, and the share of the way to the next level.

    Both are of shape (levels, machines before, machines now).
    """
    sizes = np.arange(problem.most + 1)
    left = problem.workflow.progress(
        levels_h[:, None, None], sizes[None, :, None], sizes[None, None, :], problem.step_h
    )
    left = np.minimum(left, levels_h[-1])
    low = np.clip(np.searchsorted(levels_h, left + 1e-9, side="right") - 1, 0, max(len(levels_h) - 2, 0))
    width = np.diff(levels_h)[low]
    share = np.clip((left - levels_h[low]) / width, 0.0, 1.0)
    share[share < 1e-9] = 0.0
    return low.astype(np.int32), share.astype(np.float32)


def _expected(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted sums over the next price, of values (levels, holdings, P) with weights (P, P)."""
    shape = values.shape
    return np.asarray((values.reshape(-1, shape[2]) @ weights.T).reshape(shape))


def _parts(levels: int, count: int) -> list[range]:
    edges = np.linspace(0, levels, count + 1).astype(int)
    return [range(low, high) for low, high in pairwise(edges.tolist()) if high > low]


@compiled
def _induce(
    first: int,
    last: int,
    moves: Moves,
    coming: CostsToCome,
    risk_aversion: float,
    found: StepSolution,
) -> None:
    """Solve one step, for the levels from `first` to before `last`; prices are innermost."""
    low, share, held, sizes, leads_to = moves.low, moves.share, moves.held, moves.sizes, moves.leads_to
    after, square, joint = coming.mean, coming.square, coming.joint
    charge, charge_variance = coming.charge, coming.charge_variance
    actions, means, variances = found.actions, found.means, found.variances
    prices = len(charge)
    best = np.empty(prices)
    for level in range(first, last):
        for holding in range(len(held)):
            best[:] = 1e300
            for charged in range(sizes.shape[1]):
                size = sizes[holding, charged]
                if size < 0:
                    continue
                below = low[level, held[holding], size]
                part = share[level, held[holding], size]
                then = leads_to[holding, charged]
                for price in range(prices):
                    mean = after[below, then, price]
                    if part > 0.0:
                        mean += part * (after[below + 1, then, price] - mean)
                    total = mean + charged * charge[price]
                    if risk_aversion == 0.0:
                        if total <= best[price] * (1.0 + _TIE):
                            best[price] = min(total, best[price])
                            actions[level, holding, price] = charged
                    elif total <= best[price] * (1.0 + _TIE):
                        second, cross = square[below, then, price], joint[below, then, price]
                        if part > 0.0:
                            second += part * (square[below + 1, then, price] - second)
                            cross += part * (joint[below + 1, then, price] - cross)
                        variance = second - mean * mean + 2.0 * charged * (cross - charge[price] * mean)
                        variance += charged * charged * charge_variance[price]
                        worth = total + risk_aversion * np.sqrt(max(variance, 0.0))
                        if worth <= best[price] * (1.0 + _TIE):
                            best[price] = min(worth, best[price])
                            actions[level, holding, price] = charged
            for price in range(prices):
                charged = actions[level, holding, price]
                size = sizes[holding, charged]
                below = low[level, held[holding], size]
                part = share[level, held[holding], size]
                then = leads_to[holding, charged]
                mean, second = after[below, then, price], square[below, then, price]
                cross = joint[below, then, price]
                if part > 0.0:
                    mean += part * (after[below + 1, then, price] - mean)
                    second += part * (square[below + 1, then, price] - second)
                    cross += part * (joint[below + 1, then, price] - cross)
                variance = second - mean * mean + 2.0 * charged * (cross - charge[price] * mean)
                variance += charged * charged * charge_variance[price]
                means[level, holding, price] = mean + charged * charge[price]
                variances[level, holding, price] = max(variance, 0.0) if mean < FEASIBLE_USD else 0.0
