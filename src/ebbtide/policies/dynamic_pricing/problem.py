"""Allocation problems (Dynamic Pricing, 4) and the sparse linear programs that solve them, by HiGHS.

Where constraints cannot all be met, the error names those in the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from ebbtide.errors import InputError
from ebbtide.market.price_series import Floats


@dataclass(frozen=True, eq=False)
class AllocationProblem:
    """Jobs to be spread over instance types; m jobs, n types.

    Attributes:
        jobs: Their names, for errors, shape (m,).
        types: Names of the instance types, shape (n,).
        steps_per_hour: T: of each job on each type, 0 where it cannot run; shape (m, n).
        usd_per_hour: c: of each type, shape (n,).
        quotas: How many machines of each type may be held at once, infinity: any number; shape (n,).
        steps: Of each job; shape (m,).
        slo_h: Each job has to be done within so many hours, infinity: it need not; shape (m,).
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
        """A problem from arrays; what is left out is not limited.

        Raises:
            InputError: Shapes do not fit, a number is negative or not finite where it has to be, or a job can run
                nowhere.
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
        """Where each job has a rate, shape (m, n)."""
        return self.steps_per_hour > 0

    def throughput(self, shares: Floats) -> Floats:
        """Effective steps an hour of each job: the mean of its rates, weighted by its time; shape (m,)."""
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
    """Constraints `matrix @ x <= limits`.

    Attributes:
        matrix: Sparse, shape (rows, variables).
        limits: Shape (rows,).
        names: Of each row, for errors; empty: it can always be met and needs none.
    """

    matrix: sparse.csr_array
    limits: Floats
    names: tuple[str, ...]

    @classmethod
    def joined(cls, parts: list[Rows]) -> Rows:
        """All of them together."""
        matrix = sparse.csr_array(sparse.vstack([part.matrix for part in parts], format="csr"))
        limits = np.concatenate([part.limits for part in parts])
        return cls(matrix, limits, tuple(name for part in parts for name in part.names))


class Layout:
    """Variables of a problem: one for each job and type that go together, job after job.

    Args:
        problem: The problem.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        self.problem = problem
        self.job, self.kind = np.nonzero(problem.can_run)
        self.size = len(self.job)
        self._places = np.arange(self.size)

    @property
    def rates(self) -> Floats:
        """T of each variable, shape (size,)."""
        return np.asarray(self.problem.steps_per_hour[self.job, self.kind])

    @property
    def prices(self) -> Floats:
        """c of each variable, shape (size,)."""
        return np.asarray(self.problem.usd_per_hour[self.kind])

    def matrix(self, values: Floats) -> Floats:
        """Values of the variables as an allocation matrix, shape (m, n)."""
        shares = np.zeros(self.problem.steps_per_hour.shape)
        shares[self.job, self.kind] = np.maximum(values, 0.0)
        return shares

    def time(self, most: float = 1.0) -> Rows:
        """A job has so much time."""
        number = len(self.problem.jobs)
        matrix = sparse.csr_array((np.ones(self.size), (self.job, self._places)), shape=(number, self.size))
        return Rows(matrix, np.full(number, most), ("",) * number)

    def quotas(self, most: float = 1.0) -> Rows:
        """No more machines of a type at once than its quota."""
        limited = np.flatnonzero(np.isfinite(self.problem.quotas))
        place = np.full(len(self.problem.types), -1)
        place[limited] = np.arange(len(limited))
        own = place[self.kind] >= 0
        matrix = sparse.csr_array(
            (np.ones(int(own.sum())), (place[self.kind[own]], self._places[own])), shape=(len(limited), self.size)
        )
        names = tuple(f"quota of {self.problem.quotas[k]:g} {self.problem.types[k]}" for k in limited)
        return Rows(matrix, self.problem.quotas[limited] * most, names)

    def paces(self, steps_per_hour: Floats, names: tuple[str, ...]) -> Rows:
        """Jobs reach a pace: `throughput >= steps_per_hour`; where that is 0, it is left out.

        Args:
            steps_per_hour: Of each job, shape (m,).
            names: Of each job's row.
        """
        asked = np.flatnonzero(steps_per_hour > 0)
        place = np.full(len(self.problem.jobs), -1)
        place[asked] = np.arange(len(asked))
        own = place[self.job] >= 0
        # In units of the pace itself, so that fast and slow jobs weigh alike.
        values = -self.rates[own] / steps_per_hour[self.job[own]]
        at = place[self.job[own]], self._places[own]
        matrix = sparse.csr_array((values, at), shape=(len(asked), self.size))
        return Rows(matrix, -np.ones(len(asked)), tuple(names[job] for job in asked))

    def slos(self) -> Rows:
        """Every job with an SLO is done in time (4.3)."""
        problem = self.problem
        names = tuple(
            f"SLO of {name}: {steps:g} steps in {slo:g} h"
            for name, steps, slo in zip(problem.jobs, problem.steps, problem.slo_h, strict=True)
        )
        return self.paces(problem.steps / problem.slo_h, names)

    def spending(self, budget_usd: float) -> Rows:
        """All together cost no more."""
        matrix = sparse.csr_array(self.prices[None, :])
        return Rows(matrix, np.array([budget_usd]), (f"budget of {budget_usd:g} USD",))


def maximised(gain: Floats, rows: Rows, equal: Rows | None = None, *, interior: bool = False) -> Floats:
    """The variables, none negative, that gain most.

    Args:
        gain: Of each variable, shape (variables,).
        rows: Constraints.
        equal: More of them, with equality.
        interior: By the interior point method, which is the quicker one where a row joins all variables.

    Raises:
        InputError: They cannot all be met; it names those in the way.
    """
    scale = float(np.abs(gain).max()) or 1.0
    found = _solved(-gain / scale, rows, equal, "highs-ipm" if interior else "highs")
    if interior and found.status != 0:
        # The simplex method tells better why.
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
    return linprog(cost, A_ub=matrix, b_ub=rows.limits, A_eq=same, b_eq=limits, method=method)


def in_the_way(rows: Rows, most: int = 5) -> list[str]:
    """Names of the constraints that have to give way, those by most first.

    All named ones may be broken at a price, and the least breaking is found; where another of the same price would
    do, one of them is named.
    """
    named = np.flatnonzero([bool(name) for name in rows.names])
    size = rows.matrix.shape[1]
    units = np.maximum(np.abs(rows.limits[named]), 1e-12)
    slack = sparse.csr_array((-units, (named, np.arange(len(named)))), shape=(rows.matrix.shape[0], len(named)))
    loose = sparse.csr_array(sparse.hstack([rows.matrix, slack], format="csr"))
    cost = np.concatenate([np.zeros(size), np.ones(len(named))])
    found = _solved(cost, Rows(loose, rows.limits, rows.names), None, "highs")
    if found.status != 0:
        return ["constraints that contradict each other"]
    broken = found.x[size:]
    order = np.argsort(-broken, kind="stable")
    names = [f"{rows.names[named[k]]} (missed by {broken[k]:.0%})" for k in order if broken[k] > _TOLERANCE]
    rest = [f"and {len(names) - most} more"] if len(names) > most else []
    return names[:most] + rest
