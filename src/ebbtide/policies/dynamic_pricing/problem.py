"""What an allocation is asked for: jobs, instance types, how fast each is on each, prices, quotas and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
