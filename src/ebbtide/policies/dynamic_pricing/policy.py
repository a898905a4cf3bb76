"""Dynamic Pricing's policies (4): an allocation carried out in rounds, and solved again when prices change.

Jobs are allocated to instance types; for each type, the cheapest market at the moment is rented. In each round
every job gets the type on which it is owed most time, so that shares of time approach X (Gavel, 5).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ebbtide._utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.actions import Action, Assign, Release, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View
from ebbtide.policies.dynamic_pricing.objectives import CostObjective, max_total_throughput, min_cost, min_makespan
from ebbtide.policies.dynamic_pricing.problem import Allocation, AllocationProblem
from ebbtide.policies.field_checks import check_fields
from ebbtide.policies.moving import list_price, take_over


@dataclass(frozen=True, eq=False)
class Received:
    """The time that each job has had on each type.

    Attributes:
        hours: Hours of each job on each type, shape (m, n).
        elapsed_h: Hours since the allocation took effect.
    """

    hours: Floats
    elapsed_h: float = 0.0

    @classmethod
    def nothing(cls, shape: tuple[int, int]) -> Received:
        """No time yet, before the first round; shape (m, n)."""
        return cls(np.zeros(shape))

    def after(self, chosen: NDArray[np.int64], round_h: float) -> Received:
        """The times after one more round, with the types that `next_round` chose."""
        hours = self.hours.copy()
        running = np.flatnonzero(chosen >= 0)
        hours[running, chosen[running]] += round_h
        return Received(hours, self.elapsed_h + round_h)


def next_round(shares: Floats, quotas: Floats, received: Received, round_h: float) -> NDArray[np.int64]:
    """The index of each job's type in the next round, or -1 if it waits; shape (m,).

    Pairs are served by the time they are owed: the time X gives them by the end of the round, less what they had.
    A job gets one type, and a type no more jobs than machines. Time that no pair is owed is left idle.

    Args:
        shares: X: share of time of each job on each type, shape (m, n).
        quotas: Number of machines of each type, shape (n,).
        received: Time that the jobs have had so far.
        round_h: Length of a round, hours.
    """
    owed = shares * (received.elapsed_h + round_h) - received.hours
    chosen = np.full(len(shares), -1, dtype=np.int64)
    # With a quota of one and a half machines, some rounds have two.
    used = received.hours.sum(axis=0)
    free = np.where(np.isfinite(quotas), quotas * (received.elapsed_h + round_h) - used, np.inf)
    places = np.minimum(np.floor(free / round_h + 1e-9), np.ceil(quotas))
    for place in np.argsort(-owed, axis=None, kind="stable"):
        job, kind = divmod(int(place), shares.shape[1])
        if owed[job, kind] < round_h / 2.0 - 1e-9:
            break
        if chosen[job] < 0 and places[kind] >= 1.0:
            chosen[job] = kind
            places[kind] -= 1.0
    return chosen


# Time between retries while every market of a type is above its max price.
_RETRY_S = 5 * 60.0

# Shortest round, however often prices change.
_LEAST_ROUND_S = 10 * 60.0

# A job moves to another market of the same type if that is cheaper by more than this share.
_CHEAPER = 0.05


class Goal(StrEnum):
    """The objective of the allocation."""

    THROUGHPUT = "throughput"  # the highest total throughput (4.1)
    COST = "cost"  # the highest throughput per cost of each job (4.2), SLOs kept (4.3)
    MAKESPAN = "makespan"  # the shortest time for all jobs, within a budget (4.3)


@dataclass(frozen=True)
class DynamicPricing:
    """Spreads jobs over instance types by an objective over all jobs.

    Attributes:
        goal: The objective of the allocation.
        round_s: Longest time until it is solved again and jobs may move, seconds; less than a day hardly helps
            (1).
        price_change: Change of a type's price, as a share, that makes it solve earlier.
        quotas: Most machines in use at once, by instance type; no limit for other types. During a move the old and
            the new machine are both held.
        slo_h: Hours from the start within which a job must be done, by job name; one number: every job.
        budget_usd: Total budget for `MAKESPAN`, USD.
        wakes_on: Price changes wake the policy.
    """

    one_machine_a_job: ClassVar[bool] = True

    goal: Goal = Goal.COST
    round_s: float = 6 * HOUR_S
    price_change: float = 0.1
    quotas: Mapping[str, int] = field(default_factory=dict)
    slo_h: Mapping[str, float] | float = field(default_factory=dict)
    budget_usd: float = math.inf
    wakes_on: frozenset[Wake] = frozenset({Wake.PRICE})

    def __post_init__(self) -> None:
        check_fields(
            self,
            positive=("budget_usd",),
            not_negative=("price_change",),
            between={"round_s": (1.0, 366 * DAY_S)},
        )
        for name, most in self.quotas.items():
            if most < 0:
                raise InputError(f"is {most}; a number of machines is needed", field=f"quotas.{name}")
        for name, hours in (self.slo_h if isinstance(self.slo_h, Mapping) else {"": self.slo_h}).items():
            if not hours > 0:
                raise InputError(f"is {hours:g} h; it must be positive", field=f"slo_h.{name}".rstrip("."))

    @property
    def name(self) -> str:
        return f"dynamic-pricing-{self.goal}"

    def decide(self, view: View) -> Iterable[Action]:
        memory = view.memory
        memory.setdefault("started_s", view.now_s)
        for event in view.events:
            if event.wake is Wake.RUNNING:
                yield from take_over(view, view.lease(event.lease_id))
        finished = any(event.wake is Wake.FINISHED for event in view.events)
        ends_s = memory.get("round_ends_s", -math.inf)
        # A free machine is given to another job at once.
        if finished or view.now_s >= ends_s - 1e-6 or self._prices_have_changed(view):
            self._plan(view)
            yield WakeAt(memory["round_ends_s"])
            for job in self._unfinished(view):
                yield from self._follow(view, job)
            return
        for job in self._unfinished(view):
            if not _steady(view, job):
                yield from self._follow(view, job)
        if memory["round_ends_s"] < ends_s:
            yield WakeAt(memory["round_ends_s"])

    def _prices_have_changed(self, view: View) -> bool:
        """Whether current prices differ too much from those the allocation was solved with."""
        memory = view.memory
        changed = (event.market for event in view.events if event.market is not None)
        of_use = {
            market.instance_type
            for market in changed
            if any(view.steps_per_s(job.job, market) > 0 for job in self._unfinished(view))
        }
        far = any(self._is_far(view, kind) for kind in of_use)
        if far and view.now_s < memory["round_began_s"] + _LEAST_ROUND_S:
            # The round ends when its shortest time is over.
            memory["round_ends_s"] = min(memory["round_ends_s"], memory["round_began_s"] + _LEAST_ROUND_S)
            return False
        return far

    def _is_far(self, view: View, kind: str) -> bool:
        solved_with: float = view.memory["prices"].get(kind, math.inf)
        market = _cheapest(view, kind).get(kind)
        price = math.inf if market is None else view.price(market)
        if math.isinf(price) or math.isinf(solved_with):
            return price != solved_with
        return abs(price - solved_with) > self.price_change * solved_with

    def _plan(self, view: View) -> None:
        """Solve the problem and record the type of each job for the round that begins."""
        memory = view.memory
        self._account(view)
        memory["round_began_s"], memory["round_ends_s"] = view.now_s, view.now_s + self.round_s
        memory["types"] = {}
        cheapest = _cheapest(view)
        memory["prices"] = {kind: view.price(market) for kind, market in cheapest.items()}
        jobs = self._able(view, cheapest)
        if not jobs:
            return
        found = self._allocated(view, jobs, cheapest)
        kinds = found.problem.types
        had = memory.setdefault("hours", {})
        hours = [[had.get(f"{job.job_id} {kind}", 0.0) for kind in kinds] for job in jobs]
        elapsed_h = (view.now_s - memory["started_s"]) / HOUR_S
        chosen = next_round(
            found.shares, found.problem.quotas, Received(np.array(hours), elapsed_h), self.round_s / HOUR_S
        )
        memory["types"] = {
            str(job.job_id): kinds[kind] for job, kind in zip(jobs, chosen.tolist(), strict=True) if kind >= 0
        }

    def allocation(self, view: View) -> tuple[Allocation, dict[str, Market]]:
        """The allocation at the prices of a view, and the market of each instance type that stands for it.

        Raises:
            InputError: No job can run on any machine that can be rented now, or limits cannot all be met.
        """
        cheapest = _cheapest(view)
        jobs = self._able(view, cheapest)
        if not jobs:
            raise InputError("no job can run on a machine that costs no more than its list price now")
        return self._allocated(view, jobs, cheapest), cheapest

    def _able(self, view: View, cheapest: Mapping[str, Market]) -> list[JobView]:
        """Unfinished jobs that can run on an available machine; the others wait."""
        return [
            job
            for job in self._unfinished(view)
            if any(view.steps_per_s(job.job, market) > 0 for market in cheapest.values())
        ]

    def _allocated(self, view: View, jobs: Sequence[JobView], cheapest: Mapping[str, Market]) -> Allocation:
        kinds = sorted(cheapest)
        problem = self._problem(view, jobs, kinds, [cheapest[kind] for kind in kinds])
        try:
            return Allocation(problem, self._shares(view, problem))
        except InputError:
            if view.now_s == view.memory["started_s"]:
                raise
            # SLOs that could be met at the start no longer can, as prices rose or machines were revoked: drop
            # them.
            free = replace(problem, slo_h=np.full(len(jobs), np.inf))
            return Allocation(problem, self._shares(view, free))

    def _account(self, view: View) -> None:
        """Record the time that each job has had on its type since the last plan."""
        memory = view.memory
        had_h = (view.now_s - memory.get("round_began_s", view.now_s)) / HOUR_S
        hours: dict[str, float] = memory.setdefault("hours", {})
        for job_id, kind in memory.get("types", {}).items():
            key = f"{job_id} {kind}"
            hours[key] = hours.get(key, 0.0) + had_h

    def _problem(
        self, view: View, jobs: Sequence[JobView], kinds: Sequence[str], markets: Sequence[Market]
    ) -> AllocationProblem:
        gone_h = (view.now_s - view.memory["started_s"]) / HOUR_S
        rates = [[view.steps_per_s(job.job, market) * HOUR_S for market in markets] for job in jobs]
        left_h = [max(self._slo_h(job.job.name) - gone_h, 1e-3) for job in jobs]
        return AllocationProblem.of(
            rates,
            [view.price(market) for market in markets],
            quotas=[float(self.quotas.get(kind, math.inf)) for kind in kinds],
            steps=[max(job.steps_left, 1e-6) for job in jobs],
            slo_h=left_h,
            jobs=[job.job.name for job in jobs],
            types=kinds,
        )

    def _slo_h(self, job: str) -> float:
        return self.slo_h.get(job, math.inf) if isinstance(self.slo_h, Mapping) else self.slo_h

    def _shares(self, view: View, problem: AllocationProblem) -> Floats:
        if self.goal is Goal.THROUGHPUT:
            return max_total_throughput(problem)
        if self.goal is Goal.COST:
            return min_cost(problem, CostObjective.LINEAR)
        left_usd = self.budget_usd - view.spent_usd
        try:
            return min_makespan(problem, left_usd)[0]
        except InputError:
            if view.now_s == view.memory["started_s"]:
                raise
            return min_cost(problem, CostObjective.LINEAR)

    def _unfinished(self, view: View) -> Iterator[JobView]:
        return (job for job in view.jobs if not job.is_finished)

    def _follow(self, view: View, job: JobView) -> Iterator[Action]:
        """Move a job to the cheapest market of its type in this round, or let it wait."""
        held = _steady(view, job)
        kind = view.memory["types"].get(str(job.job_id))
        if kind is None:
            yield Assign(job.job_id, [])
            for lease in held:
                yield Release(lease.lease_id)
            return
        market = _cheapest(view).get(kind)
        refused = any(event.wake is Wake.LAUNCH_FAILED for event in view.events)
        if market is None or (refused and not held):
            yield WakeAt(view.now_s + _RETRY_S)
            return
        here = next((lease.market for lease in held), None)
        stays = here is not None and here.instance_type == kind
        if stays and view.price(market) >= (1.0 - _CHEAPER) * view.price(here):  # type: ignore[arg-type]
            return
        if any(math.isnan(lease.running_s) for lease in held):
            # A move is in progress.
            return
        yield Request(market, list_price(view, market), job=job.job_id)


def _steady(view: View, job: JobView) -> list[LeaseView]:
    """A job's machines, running or starting, without a revocation notice."""
    return [lease for lease in view.leases_of(job.job_id) if math.isinf(lease.revoke_at_s)]


def _cheapest(view: View, only: str | None = None) -> dict[str, Market]:
    """The cheapest market, not above its max price, of each instance type or of one."""
    found: dict[str, Market] = {}
    for market in view.markets:
        kind = market.instance_type
        if only is not None and kind != only:
            continue
        price = view.price(market)
        if price <= list_price(view, market) and (kind not in found or price < view.price(found[kind])):
            found[kind] = market
    return found
