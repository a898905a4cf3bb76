"""Limits of rounds by SLOs and a budget: how late a job may move to a faster machine, or all to cheaper ones.

An allocation X spreads a job over types by shares of time; a round gives it one of them, whole. So that whole
rounds keep what X promises, a round ends by the last moment at which a job can still move to its fastest type and
be done in time, and by the last at which the rest of a budget pays for all that is left on the cheapest types.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from ebbtide.base.utc import HOUR_S
from ebbtide.market.markets import Market
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View
from ebbtide.policies.dynamic_pricing.problem import AllocationProblem, Layout, Rows, maximised
from ebbtide.policies.dynamic_pricing.rounds import steady

# Shortest round, however often prices change.
LEAST_ROUND_S = 10 * 60.0

# A move that would have to be made sooner than this is made now.
_LAST_CALL_S = 60.0

# An SLO is eased by this much more than it must be, so that rounding does not make it infeasible again.
_EASED = 1e-6


def eased(problem: AllocationProblem) -> AllocationProblem:
    """The problem with the SLOs that cannot all be kept eased, each by as little as possible; the others stay.

    The sum of what the jobs fall short, each as a share of the pace that it needs, is the least there is.
    """
    layout = Layout(problem)
    rows = Rows.joined([layout.time(), layout.quotas(), layout.slos()])
    due = np.flatnonzero(np.isfinite(problem.slo_h))
    first = rows.matrix.shape[0] - len(due)
    # A pace row is in units of the pace: `-T X / pace - slack <= -1`.
    slack = scipy.sparse.csr_array(
        (-np.ones(len(due)), (first + np.arange(len(due)), np.arange(len(due)))),
        shape=(rows.matrix.shape[0], len(due)),
    )
    loose = scipy.sparse.csr_array(scipy.sparse.hstack([rows.matrix, slack], format="csr"))
    short = maximised(np.append(np.zeros(layout.size), -np.ones(len(due))), Rows(loose, rows.limits, rows.names))
    missed = np.clip(short[layout.size :], 0.0, 1.0)
    slo_h = problem.slo_h.copy()
    for place, share in zip(due.tolist(), missed.tolist(), strict=True):
        if share > _EASED:
            kept = 1.0 - share - _EASED
            slo_h[place] = slo_h[place] / kept if kept > _EASED else math.inf
    return replace(problem, slo_h=slo_h)


@dataclass(frozen=True)
class JobPace:
    """Speed and price of a job on its type of this round, and on the type that it would move to.

    Attributes:
        steps: Steps that are left.
        steps_per_h: Its rate on its type of this round; 0: it waits.
        usd_per_h: The price of that type, USD per hour; 0: it waits.
        best_steps_per_h: Its rate on the type that it would move to.
        best_usd_per_h: The price of that type, USD per hour.
        left_h: Hours until its SLO; infinity: it has none.
        start_s: Seconds from the request of a machine until it has booted; the job trains on meanwhile.
        still_s: Seconds for which the job stands still when it moves.
    """

    steps: float
    steps_per_h: float
    usd_per_h: float
    best_steps_per_h: float
    best_usd_per_h: float
    left_h: float
    start_s: float
    still_s: float


def may_stay_h(job: JobPace) -> float:
    """Hours for which a job may stay on its type and be done in time on its fastest; infinity: to its end."""
    if math.isinf(job.left_h):
        return math.inf
    start_h, still_h = job.start_s / HOUR_S, job.still_s / HOUR_S
    if job.steps_per_h > 0.0 and job.steps / job.steps_per_h <= job.left_h:
        return math.inf
    if job.best_steps_per_h <= job.steps_per_h:
        return math.inf
    room = job.best_steps_per_h * (job.left_h - start_h - still_h) - job.steps + job.steps_per_h * start_h
    return room / (job.best_steps_per_h - job.steps_per_h)


def affordable_h(jobs: Sequence[JobPace], left_usd: float) -> float:
    """Hours for which all jobs may stay on their types, so that the rest of the budget pays for moving and for the
    rest of the work on the types of least cost; infinity: to their end."""
    if math.isinf(left_usd):
        return math.inf
    rest_usd = math.fsum(job.steps * job.best_usd_per_h / job.best_steps_per_h + moving_usd(job) for job in jobs)
    faster_usd_per_h = math.fsum(beyond_least_usd_per_h(job) for job in jobs)
    return math.inf if faster_usd_per_h <= 1e-12 else (left_usd - rest_usd) / faster_usd_per_h


def beyond_least_usd_per_h(job: JobPace) -> float:
    """Extra cost of an hour on a job's type over the same steps on the type that it would move to, USD."""
    return job.usd_per_h - job.steps_per_h * job.best_usd_per_h / job.best_steps_per_h


def moving_usd(job: JobPace) -> float:
    """Cost of a job's move, USD: its new machine's start, for which the old one trains on, and both machines while
    it stands still."""
    standing = job.best_usd_per_h * (job.start_s + job.still_s) + job.usd_per_h * job.still_s
    return (standing + max(beyond_least_usd_per_h(job), 0.0) * job.start_s) / HOUR_S


@dataclass(frozen=True)
class RoundLimits:
    """Limits of the round that begins: the jobs' SLOs, and a budget.

    Attributes:
        view: Prices and speeds of the moment.
        cheapest: The market that stands for each instance type.
        quotas: Most machines of a type at once.
        start_s: Seconds from the request of a machine until it has booted.
        left_h: Hours that a job has for its steps; infinity: it has no SLO.
        budget_usd: The most that the run may cost, USD; infinity: there is no limit.
    """

    view: View
    cheapest: Mapping[str, Market]
    quotas: Mapping[str, int]
    start_s: float
    left_h: Callable[[JobView], float]
    budget_usd: float

    def kept(
        self, jobs: Sequence[JobView], types: Mapping[int, str], others: Counter[str]
    ) -> tuple[dict[int, str], float]:
        """Types, and an end of the round, with which SLOs and the budget can still be kept after it.

        Args:
            jobs: The jobs that are allocated.
            types: The type of each in the round, as the allocation has it; those that wait are missing.
            others: Machines of each type that are not for these jobs.

        Returns:
            The types, and when the round ends at the latest, seconds since 1970.
        """
        found = dict(types)
        used = Counter(found.values()) + others
        ends_s = math.inf
        for job in jobs:
            kind = self._fastest(job)
            pace = self._pace(job, found.get(job.job_id), kind)
            if self._is_new(job, found):
                # The move of this round: it is not on its new type at once, and stands still once more.
                pace = replace(pace, left_h=pace.left_h - (pace.start_s + pace.still_s) / HOUR_S)
            may_stay_s = may_stay_h(pace) * HOUR_S
            if may_stay_s >= _LAST_CALL_S:
                ends_s = min(ends_s, may_stay_s)
            elif found.get(job.job_id) != kind and used[kind] + 1 <= self.quotas.get(kind, math.inf):
                used[found.get(job.job_id, "")] -= 1
                used[kind] += 1
                found[job.job_id] = kind
        if math.isfinite(self.budget_usd):
            least = {job.job_id: self._least_cost(job) for job in jobs}
            paces = [self._pace(job, found.get(job.job_id), least[job.job_id]) for job in jobs]
            moving = {job.job_id: pace for job, pace in zip(jobs, paces, strict=True) if self._is_new(job, found)}
            # A machine that is begun now is paid for while it boots and its job stands still; so is the one left.
            kept_usd = self.ending_usd(jobs)
            for job_id, pace in moving.items():
                both = pace.usd_per_h + math.fsum(
                    self.view.price(lease.market) for lease in steady(self.view, self.view.jobs[job_id])
                )
                kept_usd += both * (pace.start_s + 2.0 * pace.still_s) / HOUR_S
            left_s = affordable_h(paces, self.budget_usd - self.view.spent_usd - kept_usd) * HOUR_S
            if left_s >= (LEAST_ROUND_S if moving else _LAST_CALL_S):
                ends_s = min(ends_s, left_s)
            else:
                found = least
        return found, self.view.now_s + max(ends_s, _LAST_CALL_S)

    def ending_usd(self, jobs: Sequence[JobView]) -> float:
        """Reserve of a budget beyond the work, USD: last saves, starts, and periods that are paid whole."""
        usd, view, markets = 0.0, self.view, list(self.cheapest.values())
        for job in jobs if markets else ():
            price = max(view.price(market) for market in markets)
            saves_s = max(job.job.save_s(view.machine(market).vcpus) for market in markets)
            starts_s = 0.0 if steady(view, job) else self.start_s + job.job.restore_s()
            usd += price * (saves_s + starts_s + view.billing.period_s) / HOUR_S
        return usd

    def _is_new(self, job: JobView, types: Mapping[int, str]) -> bool:
        """Return whether a job is to have a type of which it has no machine yet."""
        has = {lease.market.instance_type for lease in steady(self.view, job)}
        return job.job_id in types and types[job.job_id] not in has

    def _pace(self, job: JobView, kind: str | None, best: str) -> JobPace:
        """A job on a type, and another that it would move to."""
        view = self.view
        here, there = (None if kind is None else self._market(job, kind)), self.cheapest[best]
        vcpus = view.machine(there).vcpus
        return JobPace(
            job.steps_left,
            0.0 if here is None else view.steps_per_s(job.job, here) * HOUR_S,
            0.0 if here is None else view.price(here),
            view.steps_per_s(job.job, there) * HOUR_S,
            view.price(there),
            self.left_h(job),
            self.start_s,
            job.job.restore_s(vcpus) + job.job.save_s(vcpus),
        )

    def _market(self, job: JobView, kind: str) -> Market:
        """The market of a type; that of the job's own machine where none gives others now."""
        own = (lease.market for lease in steady(self.view, job) if lease.market.instance_type == kind)
        return self.cheapest[kind] if kind in self.cheapest else next(own)

    def _able(self, job: JobView) -> list[str]:
        """The types that a job can run on, and of which there are some."""
        rate = self.view.steps_per_s
        runs = [kind for kind, market in self.cheapest.items() if rate(job.job, market) > 0]
        return [kind for kind in runs if self.quotas.get(kind, 1) > 0] or runs

    def _fastest(self, job: JobView) -> str:
        """The fastest type for a job, of those that others cannot have taken."""
        able = self._able(job)
        free = [kind for kind in able if kind not in self.quotas] or able
        return max(free, key=lambda kind: (self.view.steps_per_s(job.job, self.cheapest[kind]), kind))

    def _least_cost(self, job: JobView) -> str:
        """The type whose steps cost least for a job."""

        def usd(kind: str) -> float:
            return self.view.price(self.cheapest[kind]) / self.view.steps_per_s(job.job, self.cheapest[kind])

        return min(self._able(job), key=lambda kind: (usd(kind), kind))
