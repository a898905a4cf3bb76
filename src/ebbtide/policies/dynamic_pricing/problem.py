"""Allocation problems (Dynamic Pricing, 4) and the sparse linear programs that solve them, by HiGHS.

Where constraints cannot all be met, the error names those in the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy

from ebbtide.errors import InputError
from ebbtide.market.price_series import Floats


@dataclass(frozen=True, eq=False)
class AllocationProblem:
    """The problem of spreading m jobs over n instance types.

    Attributes:
        jobs: Names of the jobs, for errors, m of them.
        types: Names of the instance types, n of them.
        steps_per_hour: T: rate of each job on each type, 0 where it cannot run; shape (m, n).
        usd_per_hour: c: price of each type, USD per hour; shape (n,).
        quotas: Most machines of each type at once, infinity: no limit; shape (n,).
        steps: Number of steps of each job; shape (m,).
        slo_h: Hours within which each job must be done, infinity: no limit; shape (m,).
    """

    jobs: tuple[str, ...]
    types: tuple[str, ...]
    steps_per_hour: Floats
    usd_per_hour: Floats
    quotas: Floats
    steps: Floats
    slo_h: Floats

    @classmethod
    def of(
        cls,
        steps_per_hour: Sequence[Sequence[float]] | Floats,
        usd_per_hour: Sequence[float] | Floats,
        *,
        quotas: Sequence[float] | Floats | None = None,
        steps: Sequence[float] | Floats | None = None,
        slo_h: Sequence[float] | Floats | None = None,
        jobs: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
    ) -> AllocationProblem:
        """A problem from arrays; limits that are left out do not apply.

        Raises:
            InputError: Shapes do not match, a number is negative or infinite where it must not be, or a job has no
                type to run on.
        """
        rates, prices = np.asarray(steps_per_hour, dtype=float), np.asarray(usd_per_hour, dtype=float)
        if rates.ndim != 2 or not rates.size:
            raise InputError(f"steps_per_hour has shape {rates.shape}; a row for each job is needed")
        number, kinds = rates.shape
        names = tuple(jobs or (f"job {place}" for place in range(number)))
        labels = tuple(types or (f"type {place}" for place in range(kinds)))
        problem = cls(
            names,
            labels,
            rates,
            prices,
            _limits("quotas", quotas, kinds),
            np.ones(number) if steps is None else np.asarray(steps, dtype=float),
            _limits("slo_h", slo_h, number),
        )
        problem._check()
        return problem

    @property
    def can_run(self) -> np.ndarray:
        """Mask of the types that each job can run on, shape (m, n)."""
        return self.steps_per_hour > 0

    def throughput(self, shares: Floats) -> Floats:
        """Effective steps per hour of each job: its rates weighted by its shares of time; shape (m,)."""
        return np.asarray((self.steps_per_hour * shares).sum(axis=1))

    def usd_rate(self, shares: Floats) -> Floats:
        """Effective price of each job, USD per hour; shape (m,)."""
        return np.asarray(shares @ self.usd_per_hour)

    def _check(self) -> None:
        number, kinds = self.steps_per_hour.shape
        for field, size in (("jobs", number), ("steps", number), ("usd_per_hour", kinds), ("types", kinds)):
            if len(getattr(self, field)) != size:
                raise InputError(f"{field} has {len(getattr(self, field))} entries; {size} are needed")
        if not np.isfinite(self.steps_per_hour).all() or (self.steps_per_hour < 0).any():
            raise InputError("steps_per_hour must be finite and not negative")
        if not np.isfinite(self.usd_per_hour).all() or (self.usd_per_hour <= 0).any():
            raise InputError("usd_per_hour must be finite and positive")
        if not np.isfinite(self.steps).all() or (self.steps <= 0).any():
            raise InputError("steps must be finite and positive")
        if not (self.slo_h > 0).all():
            raise InputError("slo_h must be positive")
        if not (self.quotas >= 0).all():
            raise InputError("quotas must not be negative")
        nowhere = np.flatnonzero(~self.can_run.any(axis=1))
        if len(nowhere):
            raise InputError(f"{self.jobs[nowhere[0]]} has no rate on any of {', '.join(self.types)}")


@dataclass(frozen=True, eq=False)
class Allocation:
    """A solved problem.

    Attributes:
        problem: The problem that was solved.
        shares: X: share of time of each job on each type, shape (m, n).
    """

    problem: AllocationProblem
    shares: Floats

    @property
    def duration_h(self) -> Floats:
        """Hours that each job takes at its effective rate, shape (m,); infinity: it gets no time."""
        rate = self.problem.throughput(self.shares)
        hours = np.full(len(rate), np.inf)
        np.divide(self.problem.steps, rate, out=hours, where=rate > 0.0)
        return hours

    @property
    def machine_hours(self) -> Floats:
        """Hours of each job on each type until it is done, shape (m, n)."""
        served = np.isfinite(self.duration_h)
        return np.asarray(self.shares * np.where(served, self.duration_h, 0.0)[:, None])

    @property
    def expected_usd(self) -> float:
        """Cost of all jobs if prices stay as they are, USD; a job that gets no time costs nothing."""
        return float((self.machine_hours @ self.problem.usd_per_hour).sum())


def _limits(field: str, values: Sequence[float] | Floats | None, size: int) -> Floats:
    if values is None:
        return np.full(size, np.inf)
    limits = np.asarray(values, dtype=float)
    if limits.shape != (size,):
        raise InputError(f"{field} has shape {limits.shape}; {size} entries are needed")
    return limits


_TOLERANCE = 1e-7


@dataclass(frozen=True, eq=False)
class Rows:
    """Linear constraints `matrix @ x <= limits`.

    Attributes:
        matrix: Sparse coefficients, shape (rows, variables).
        limits: Upper bound of each row, shape (rows,).
        names: Name of each row, for errors; empty: the row can always be met.
    """

    matrix: scipy.sparse.csr_array
    limits: Floats
    names: tuple[str, ...]

    @classmethod
    def joined(cls, parts: list[Rows]) -> Rows:
        """The constraints of all parts together."""
        matrix = scipy.sparse.csr_array(scipy.sparse.vstack([part.matrix for part in parts], format="csr"))
        limits = np.concatenate([part.limits for part in parts])
        return cls(matrix, limits, tuple(name for part in parts for name in part.names))


class Layout:
    """The variables of a linear program: one for each pair of job and type that can run, job after job.

    Args:
        problem: The problem to lay out.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        self.problem = problem
        self.job, self.kind = np.nonzero(problem.can_run)
        self.size = len(self.job)
        self._places = np.arange(self.size)

    @property
    def rates(self) -> Floats:
        """T: rate of each variable, steps per hour, shape (size,)."""
        return np.asarray(self.problem.steps_per_hour[self.job, self.kind])

    @property
    def prices(self) -> Floats:
        """c: price of each variable, USD per hour, shape (size,)."""
        return np.asarray(self.problem.usd_per_hour[self.kind])

    def matrix(self, values: Floats) -> Floats:
        """Values of the variables as an allocation matrix, shape (m, n)."""
        shares = np.zeros(self.problem.steps_per_hour.shape)
        shares[self.job, self.kind] = np.maximum(values, 0.0)
        return shares

    def time(self, most: float = 1.0) -> Rows:
        """Each job has at most this share of time."""
        number = len(self.problem.jobs)
        matrix = scipy.sparse.csr_array((np.ones(self.size), (self.job, self._places)), shape=(number, self.size))
        return Rows(matrix, np.full(number, most), ("",) * number)

    def quotas(self, most: float = 1.0) -> Rows:
        """Machines of a type at once stay within `most` times its quota."""
        limited = np.flatnonzero(np.isfinite(self.problem.quotas))
        place = np.full(len(self.problem.types), -1)
        place[limited] = np.arange(len(limited))
        own = place[self.kind] >= 0
        matrix = scipy.sparse.csr_array(
            (np.ones(int(own.sum())), (place[self.kind[own]], self._places[own])), shape=(len(limited), self.size)
        )
        names = tuple(f"quota of {self.problem.quotas[k]:g} {self.problem.types[k]}" for k in limited)
        return Rows(matrix, self.problem.quotas[limited] * most, names)

    def paces(self, steps_per_hour: Floats, names: tuple[str, ...]) -> Rows:
        """Jobs reach a rate: `throughput >= steps_per_hour`; rates of 0 are left out.

        Args:
            steps_per_hour: Required rate of each job, shape (m,).
            names: Name of each job's row, m of them.
        """
        asked = np.flatnonzero(steps_per_hour > 0)
        place = np.full(len(self.problem.jobs), -1)
        place[asked] = np.arange(len(asked))
        own = place[self.job] >= 0
        # In units of the required rate, so that fast and slow jobs have equal weight.
        values = -self.rates[own] / steps_per_hour[self.job[own]]
        at = place[self.job[own]], self._places[own]
        matrix = scipy.sparse.csr_array((values, at), shape=(len(asked), self.size))
        return Rows(matrix, -np.ones(len(asked)), tuple(names[job] for job in asked))

    def slos(self) -> Rows:
        """Every job with an SLO ends in time (4.3)."""
        problem = self.problem
        names = tuple(
            f"SLO of {name}: {steps:g} steps in {slo:g} h"
            for name, steps, slo in zip(problem.jobs, problem.steps, problem.slo_h, strict=True)
        )
        return self.paces(problem.steps / problem.slo_h, names)

    def spending(self, budget_usd: float) -> Rows:
        """All jobs together stay within a budget."""
        matrix = scipy.sparse.csr_array(self.prices[None, :])
        return Rows(matrix, np.array([budget_usd]), (f"budget of {budget_usd:g} USD",))


def maximised(gain: Floats, rows: Rows, equal: Rows | None = None, *, interior: bool = False) -> Floats:
    """The variables, none negative, with the highest gain.

    Args:
        gain: Gain per unit of each variable, shape (variables,).
        rows: The constraints to meet.
        equal: Further constraints, with equality.
        interior: Use the interior-point method, which is faster where a row contains all variables.

    Raises:
        InputError: The constraints cannot all be met; the message names those in the way.
    """
    scale = float(np.abs(gain).max()) or 1.0
    found = _solved(-gain / scale, rows, equal, "highs-ipm" if interior else "highs")
    if interior and found.status != 0:
        # The simplex method gives a better reason.
        found = _solved(-gain / scale, rows, equal, "highs")
    if found.status == 2:
        raise InputError(f"no allocation meets all constraints; in the way: {'; '.join(in_the_way(rows))}")
    if found.status != 0:
        raise InputError(f"the linear program was not solved: {found.message}")
    return np.asarray(found.x)


def _solved(cost: Floats, rows: Rows, equal: Rows | None, method: Literal["highs", "highs-ipm"]) -> Any:
    # SciPy's type stubs know only dense constraints.
    matrix: Any = rows.matrix
    same: Any = None if equal is None else equal.matrix
    limits = None if equal is None else equal.limits
    return scipy.optimize.linprog(cost, A_ub=matrix, b_ub=rows.limits, A_eq=same, b_eq=limits, method=method)


def in_the_way(rows: Rows, most: int = 5) -> list[str]:
    """Names of the constraints that must be relaxed, those by most first.

    All named constraints may be violated at a cost, and the smallest violation is found; among several of equal
    cost, one is named.
    """
    named = np.flatnonzero([bool(name) for name in rows.names])
    size = rows.matrix.shape[1]
    units = np.maximum(np.abs(rows.limits[named]), 1e-12)
    slack = scipy.sparse.csr_array(
        (-units, (named, np.arange(len(named)))), shape=(rows.matrix.shape[0], len(named))
    )
    loose = scipy.sparse.csr_array(scipy.sparse.hstack([rows.matrix, slack], format="csr"))
    cost = np.concatenate([np.zeros(size), np.ones(len(named))])
    found = _solved(cost, Rows(loose, rows.limits, rows.names), None, "highs")
    if found.status != 0:
        return ["constraints that contradict each other"]
    broken = found.x[size:]
    order = np.argsort(-broken, kind="stable")
    names = [f"{rows.names[named[k]]} (missed by {broken[k]:.0%})" for k in order if broken[k] > _TOLERANCE]
    rest = [f"and {len(names) - most} more"] if len(names) > most else []
    return names[:most] + rest
