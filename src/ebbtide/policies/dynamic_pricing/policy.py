"""Dynamic Pricing's policies (4) on machines: an allocation made real in rounds, solved again when prices change.

Instance types are what jobs are allocated to; of a type, the market that is cheapest at the moment is rented.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ebbtide._utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.actions import Action, Assign, Release, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.view import View
from ebbtide.policies.dynamic_pricing.objectives import CostObjective, max_total_throughput, min_cost, min_makespan
from ebbtide.policies.dynamic_pricing.problem import AllocationProblem
from ebbtide.policies.moving import list_price, take_over


@dataclass(frozen=True, eq=False)
class Received:
    """Time that each job has had on each type.

    Attributes:
        hours: Shape (m, n).
        elapsed_h: Since the allocation holds.
    """

    hours: Floats
    elapsed_h: float = 0.0

    @classmethod
    def nothing(cls, shape: tuple[int, int]) -> Received:
        """Before the first round."""
        return cls(np.zeros(shape))

    def after(self, chosen: NDArray[np.int64], round_h: float) -> Received:
        """With a round more; arguments as `next_round` gives them."""
        hours = self.hours.copy()
        running = np.flatnonzero(chosen >= 0)
        hours[running, chosen[running]] += round_h
        return Received(hours, self.elapsed_h + round_h)


def next_round(shares: Floats, quotas: Floats, received: Received, round_h: float) -> NDArray[np.int64]:
    """The type of each job in the next round, or -1: it waits; shape (m,).

    Pairs are served by how much time they are owed: what X gives them by the end of the round less what they had.
    A job gets one type, a type no more jobs than machines. What no pair is owed is left idle.

    Args:
        shares: X, shape (m, n).
        quotas: Machines of each type, shape (n,).
        received: So far.
        round_h: Length of a round.
    """
    owed = shares * (received.elapsed_h + round_h) - received.hours
    chosen = np.full(len(shares), -1, dtype=np.int64)
    # A machine and a half cannot be held at once: now and then two.
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


# While every market of a type is above its max price.
_RETRY_S = 5 * 60.0

# Prices that change all the time are looked at no more often.
_LEAST_ROUND_S = 10 * 60.0

# Of one type, a market is left for another that is cheaper by more than this share.
_CHEAPER = 0.05


class Goal(StrEnum):
    """What is optimised."""

    THROUGHPUT = "throughput"  # the most steps in all (4.1)
    COST = "cost"  # the most steps for the money, each job by itself (4.2), SLOs kept (4.3)
    MAKESPAN = "makespan"  # the least time for all, within a budget (4.3)


@dataclass(frozen=True)
class DynamicPricing:
    """Jobs spread over instance types, by an objective over all of them.

    Attributes:
        goal: The objective.
        round_s: How often at least it is solved again and jobs may move; oftener than daily is hardly of use (1).
        price_change: It is solved again before that if a type's price has gone up or down by this share.
        quotas: Machines of an instance type that jobs may run on at once; of types not named, any number. While a
            job goes over to a new machine, both are held.
        slo_h: Hours from the start within which a job has to be done, by its name.
        budget_usd: For `MAKESPAN`: what is spent in all.
        wakes_on: Prices.
    """

    goal: Goal = Goal.COST
    round_s: float = 6 * HOUR_S
    price_change: float = 0.1
    quotas: Mapping[str, int] = field(default_factory=dict)
    slo_h: Mapping[str, float] = field(default_factory=dict)
    budget_usd: float = math.inf
    wakes_on: frozenset[Wake] = frozenset({Wake.PRICE})

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
        # A machine that is free is given to another job at once.
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
        """Whether the allocation was solved with prices that are no longer near the true ones."""
        memory = view.memory
        changed = (event.market for event in view.events if event.market is not None)
        of_use = {
            market.instance_type
            for market in changed
            if any(view.steps_per_s(job.job, market) > 0 for job in self._unfinished(view))
        }
        far = any(self._is_far(view, kind) for kind in of_use)
        if far and view.now_s < memory["round_began_s"] + _LEAST_ROUND_S:
            # The round ends when the time has come.
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
        """Solve, and note the type of each job for the round that begins."""
        memory = view.memory
        self._account(view)
        memory["round_began_s"], memory["round_ends_s"] = view.now_s, view.now_s + self.round_s
        memory["types"] = {}
        cheapest = _cheapest(view)
        memory["prices"] = {kind: view.price(market) for kind, market in cheapest.items()}
        kinds = sorted(cheapest)
        # Who can run on nothing that is to be had now waits.
        jobs = [
            job
            for job in self._unfinished(view)
            if any(view.steps_per_s(job.job, market) > 0 for market in cheapest.values())
        ]
        if not jobs:
            return
        problem = self._problem(view, jobs, kinds, [cheapest[kind] for kind in kinds])
        try:
            shares = self._shares(view, problem)
        except InputError:
            if view.now_s == memory["started_s"]:
                raise
            # What could be met at the start no longer can: prices rose, or machines were taken. As near as may be.
            shares = self._shares(view, replace(problem, slo_h=np.full(len(jobs), np.inf)))
        had = memory.setdefault("hours", {})
        hours = [[had.get(f"{job.job_id} {kind}", 0.0) for kind in kinds] for job in jobs]
        elapsed_h = (view.now_s - memory["started_s"]) / HOUR_S
        chosen = next_round(shares, problem.quotas, Received(np.array(hours), elapsed_h), self.round_s / HOUR_S)
        memory["types"] = {
            str(job.job_id): kinds[kind] for job, kind in zip(jobs, chosen.tolist(), strict=True) if kind >= 0
        }

    def _account(self, view: View) -> None:
        """Note what each job has had of its type since the last plan."""
        memory = view.memory
        had_h = (view.now_s - memory.get("round_began_s", view.now_s)) / HOUR_S
        hours: dict[str, float] = memory.setdefault("hours", {})
        for job_id, kind in memory.get("types", {}).items():
            key = f"{job_id} {kind}"
            hours[key] = hours.get(key, 0.0) + had_h

    def _problem(
        self, view: View, jobs: Sequence[JobProgress], kinds: Sequence[str], markets: Sequence[Market]
    ) -> AllocationProblem:
        gone_h = (view.now_s - view.memory["started_s"]) / HOUR_S
        rates = [[view.steps_per_s(job.job, market) * HOUR_S for market in markets] for job in jobs]
        left_h = [max(self.slo_h.get(job.job.name, math.inf) - gone_h, 1e-3) for job in jobs]
        return AllocationProblem.of(
            rates,
            [view.price(market) for market in markets],
            quotas=[float(self.quotas.get(kind, math.inf)) for kind in kinds],
            steps=[max(job.steps_left, 1e-6) for job in jobs],
            slo_h=left_h,
            jobs=[job.job.name for job in jobs],
            types=kinds,
        )

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

    def _unfinished(self, view: View) -> Iterator[JobProgress]:
        return (job for job in view.jobs if not job.is_finished)

    def _follow(self, view: View, job: JobProgress) -> Iterator[Action]:
        """Bring a job to the cheapest market of the type that it has in this round, or let it wait."""
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
            # A move is under way.
            return
        yield Request(market, list_price(view, market), job=job.job_id)


def _steady(view: View, job: JobProgress) -> list[Lease]:
    """Machines of a job, or on their way to it, that are not about to be taken."""
    return [lease for lease in view.leases_of(job.job_id) if math.isinf(lease.revoke_at_s)]


def _cheapest(view: View, only: str | None = None) -> dict[str, Market]:
    """Of each instance type, or of one, the cheapest market that is not above its max price."""
    found: dict[str, Market] = {}
    for market in view.markets:
        kind = market.instance_type
        if only is not None and kind != only:
            continue
        price = view.price(market)
        if price <= list_price(view, market) and (kind not in found or price < view.price(found[kind])):
            found[kind] = market
    return found
