"""Linear programs over allocation matrices, sparse, by HiGHS; what cannot be met is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from ebbtide.errors import InputError
from ebbtide.market.price_series import Floats
from ebbtide.policies.dynamic_pricing.problem import AllocationProblem

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
