"""The objectives of Dynamic Pricing's section 4, each solved exactly where possible.

The paper's 4.2 maximises the sum over jobs of throughput over cost. Under quotas that is a sum of ratios, which is
not convex. Three readings can be solved: the ratio of the sums (linear-fractional, exact), the sum of the ratios
where no quota binds (each job's best type, exact), and the linear `(T / c) X` of the authors' scheduler.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum

import numpy as np
import scipy

from ebbtide.errors import InputError
from ebbtide.market.price_series import Floats
from ebbtide.policies.dynamic_pricing.problem import AllocationProblem, Layout, Rows, in_the_way, maximised

# Relative tolerance of the makespan, at which the bisection ends.
_MAKESPAN_TOLERANCE = 1e-4
# Share of its work in an hour that counts as none.
_LEAST_SHARE = 1e-9


class CostObjective(StrEnum):
    """The reading of the objective in 4.2."""

    TOTAL = "total"  # total throughput over total cost
    PER_JOB = "per-job"  # the sum of each job's ratio; exact where no quota or SLO binds
    LINEAR = "linear"  # sum of (T / c) X, as in the authors' scheduler


def max_total_throughput(problem: AllocationProblem) -> Floats:
    """The allocation with the highest total effective throughput (4.1), in steps, SLOs kept.

    As published, steps of all jobs count alike; jobs with short steps get the fast machines.

    Returns:
        X, shape (m, n).

    Raises:
        InputError: SLOs and quotas cannot all be met.
    """
    layout = Layout(problem)
    rows = Rows.joined([layout.time(), layout.quotas(), layout.slos()])
    return layout.matrix(maximised(layout.rates, rows))


def min_cost(problem: AllocationProblem, objective: CostObjective = CostObjective.TOTAL) -> Floats:
    """The allocation with the highest throughput per cost (4.2), SLOs kept (4.3).

    Throughput is counted in jobs: steps as a share of the job's steps.

    Returns:
        X, shape (m, n).

    Raises:
        InputError: SLOs and quotas cannot all be met; or `PER_JOB` was asked for and a quota or SLO binds.
    """
    if objective is CostObjective.PER_JOB:
        return _best_type_of_each(problem)
    layout = Layout(problem)
    rows = Rows.joined([layout.time(), layout.quotas(), layout.slos()])
    if objective is CostObjective.LINEAR:
        return layout.matrix(maximised(_relative(layout) / layout.prices, rows))
    return layout.matrix(_most_per_usd(layout, rows))


def min_makespan(problem: AllocationProblem, budget_usd: float = math.inf) -> tuple[Floats, float]:
    """The shortest makespan of all jobs within a budget (4.3), SLOs kept, by bisection over feasibility programs.

    Returns:
        X, shape (m, n), and the makespan in hours; infinity where jobs with SLOs leave nothing to some other,
        which waits for their end.

    Raises:
        InputError: The budget does not pay for the work in any time, or SLOs and quotas cannot be met.
    """
    layout = Layout(problem)
    high_h = _long_enough_h(problem)
    spent = _least_usd(layout, high_h)
    if spent is None:
        # SLOs and quotas that are in each other's way are named, whatever the makespan.
        shares, makespan_h = _soonest(layout)
        without = replace(problem, slo_h=np.full(len(problem.jobs), math.inf))
        if math.isfinite(makespan_h):
            # Jobs without SLOs get what those with SLOs leave.
            high_h = 2.0 * max(makespan_h, high_h)
            spent = _least_usd(layout, high_h)
        elif math.isinf(budget_usd) and _least_usd(Layout(without), high_h) is not None:
            return layout.matrix(shares), math.inf
    if spent is None:
        raise InputError(f"jobs cannot all be done; in the way: {'; '.join(in_the_way(_within(layout, high_h)))}")
    hours, usd = spent
    if usd > budget_usd * (1 + 1e-9):
        raise InputError(f"the budget of {budget_usd:g} USD is too small: the work costs {usd:.2f} USD at least")
    low_h = float((problem.steps / problem.steps_per_hour.max(axis=1)).max())
    made_h = high_h
    while made_h - low_h > _MAKESPAN_TOLERANCE * made_h:
        # The range spans orders of magnitude: halved by its logarithm.
        middle_h = math.sqrt(low_h * made_h)
        spent = _least_usd(layout, middle_h)
        if spent is not None and spent[1] <= budget_usd * (1 + 1e-9):
            made_h, hours = middle_h, spent[0]
        else:
            low_h = middle_h
    return layout.matrix(hours / made_h), made_h


def min_makespan_at_once(problem: AllocationProblem, budget_usd: float = math.inf) -> tuple[Floats, float]:
    """The shortest makespan by one linear program: in hours on each type, `Z = M X`, all constraints are linear.

    It needs no bisection; `min_makespan` is tested against it. SLOs are not for it: with the makespan as a
    variable they are not linear.
    """
    layout = Layout(problem)
    parts = [layout.time(0.0), layout.quotas(0.0), _work(layout)]
    if math.isfinite(budget_usd):
        parts.append(layout.spending(budget_usd))
    rows = Rows.joined(parts)
    # One more variable, M, is on the right-hand side of time and quotas.
    column = np.zeros(rows.matrix.shape[0])
    number = len(problem.jobs)
    column[:number] = -1.0
    limited = problem.quotas[np.isfinite(problem.quotas)]
    column[number : number + len(limited)] = -limited
    matrix = scipy.sparse.csr_array(
        scipy.sparse.hstack([rows.matrix, scipy.sparse.csr_array(column[:, None])], format="csr")
    )
    gain = np.append(np.zeros(layout.size), -1.0)
    found = maximised(gain, Rows(matrix, rows.limits, rows.names))
    return layout.matrix(found[:-1] / found[-1]), float(found[-1])


def _relative(layout: Layout) -> Floats:
    """Rates as shares of each job's steps, so that jobs with fast steps do not count more; shape (size,)."""
    return np.asarray(layout.rates / layout.problem.steps[layout.job])


def _soonest(layout: Layout) -> tuple[Floats, float]:
    """The allocation with the shortest makespan whatever it costs, SLOs kept, and that makespan, hours.

    One linear program: the highest share of their work that all jobs can do in an hour. The makespan is infinite
    where jobs with SLOs leave nothing to some other; the allocation has the highest throughput then.

    Raises:
        InputError: SLOs and quotas cannot all be met.
    """
    problem = layout.problem
    kept = Rows.joined([layout.time(), layout.quotas(), layout.slos()])
    shares = maximised(_relative(layout), kept)
    alike = layout.paces(problem.steps, ("",) * len(problem.jobs))
    # One more variable, the share of all work in an hour, is on the right-hand side of the paces.
    column = np.concatenate([np.zeros(len(kept.limits)), np.ones(len(alike.limits))])
    rows = Rows.joined([kept, replace(alike, limits=np.zeros(len(alike.limits)))])
    matrix = scipy.sparse.csr_array(
        scipy.sparse.hstack([rows.matrix, scipy.sparse.csr_array(column[:, None])], format="csr")
    )
    found = maximised(np.append(np.zeros(layout.size), 1.0), replace(rows, matrix=matrix))
    if found[-1] > _LEAST_SHARE:
        return found[:-1], 1.0 / float(found[-1])
    return shares, math.inf


def _best_type_of_each(problem: AllocationProblem) -> Floats:
    per_usd = problem.steps_per_hour / problem.usd_per_hour
    shares = np.zeros(per_usd.shape)
    shares[np.arange(len(per_usd)), per_usd.argmax(axis=1)] = 1.0
    over = np.flatnonzero(shares.sum(axis=0) > problem.quotas * (1 + 1e-9))
    if len(over):
        kind = over[0]
        raise InputError(
            f"the quota of {problem.quotas[kind]:g} {problem.types[kind]} binds: {shares[:, kind].sum():g} jobs "
            "would have them; the sum of ratios is exact only where none does: take objective total or linear"
        )
    late = np.flatnonzero(problem.throughput(shares) * problem.slo_h < problem.steps * (1 - 1e-9))
    if len(late):
        raise InputError(f"the SLO of {problem.jobs[late[0]]} binds; take objective total or linear")
    return shares


def _most_per_usd(layout: Layout, rows: Rows) -> Floats:
    """Maximise `T x / c x` (Charnes and Cooper 1962): with `y = t x` and `c y = 1` it is linear in y and t."""
    matrix = scipy.sparse.csr_array(
        scipy.sparse.hstack([rows.matrix, scipy.sparse.csr_array(-rows.limits[:, None])], format="csr")
    )
    homogeneous = Rows(matrix, np.zeros(len(rows.limits)), rows.names)
    equal = Rows(scipy.sparse.csr_array(np.append(layout.prices, 0.0)[None, :]), np.ones(1), ("",))
    try:
        found = maximised(np.append(_relative(layout), 0.0), homogeneous, equal, interior=True)
    except InputError:
        # Constraints that y and t cannot meet, x cannot meet either, and there they have names.
        maximised(np.zeros(layout.size), rows)
        raise
    if found[-1] > 1e-12:
        return np.asarray(found[:-1] / found[-1])
    # Any multiple is as good: use the largest that fits.
    x = found[:-1]
    used = rows.matrix @ x
    room = np.divide(rows.limits, used, out=np.full(len(used), np.inf), where=used > 1e-12)
    return np.asarray(x * float(room[room > 0].min(initial=np.inf)))


def _work(layout: Layout) -> Rows:
    """All steps are done; the variables are hours."""
    steps = layout.problem.steps
    return layout.paces(steps, tuple(f"work of {name}" for name in layout.problem.jobs))


def _within(layout: Layout, makespan_h: float) -> Rows:
    """All is done in a makespan, each job with an SLO at the pace that keeps it; the variables are hours.

    A job that is to be done sooner than all others has its pace for the whole makespan on paper, and ends early.
    """
    problem = layout.problem
    steps = problem.steps * np.maximum(makespan_h / problem.slo_h, 1.0)
    names = tuple(
        f"work of {name}" if math.isinf(slo) else f"SLO of {name}: {work:g} steps in {slo:g} h"
        for name, work, slo in zip(problem.jobs, problem.steps, problem.slo_h, strict=True)
    )
    return Rows.joined([layout.time(makespan_h), layout.quotas(makespan_h), layout.paces(steps, names)])


def _prices_until_done(layout: Layout, makespan_h: float) -> Floats:
    """Price of each hour of a makespan, for jobs that end before it the part that they have; shape (size,)."""
    share = np.minimum(layout.problem.slo_h / makespan_h, 1.0)
    return np.asarray(layout.prices * share[layout.job])


def _least_usd(layout: Layout, makespan_h: float) -> tuple[Floats, float] | None:
    """Hours on each type for all work in a makespan at the lowest cost, and that cost, USD; None: impossible."""
    prices = _prices_until_done(layout, makespan_h)
    try:
        hours = maximised(-prices, _within(layout, makespan_h))
    except InputError:
        return None
    return hours, float(prices @ hours)


def _long_enough_h(problem: AllocationProblem) -> float:
    """A makespan, hours, long enough for every job to wait for its cheapest type, whatever the quotas."""
    cheapest = (problem.steps_per_hour / problem.usd_per_hour).argmax(axis=1)
    alone_h = problem.steps / problem.steps_per_hour[np.arange(len(cheapest)), cheapest]
    machines = np.maximum(np.where(np.isfinite(problem.quotas), problem.quotas, len(cheapest)), 1e-3)
    slowest = problem.steps / np.where(problem.can_run, problem.steps_per_hour, np.inf).min(axis=1)
    queued_h = np.bincount(cheapest, weights=alone_h, minlength=len(machines)) / machines
    return float(max(alone_h.max(), queued_h.max(), slowest.max()) + slowest.sum())
