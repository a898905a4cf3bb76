"""Dynamic Pricing's policies (4): an allocation carried out in rounds, and solved again when prices change.

Jobs are allocated to instance types; for each type, the cheapest market at the moment is rented. In each round
every job gets the type on which it is owed most time (`rounds`), unless it is better off where it is: a move is
weighed against egress, a start and what is left (`moves`). Machines go from job to job by rounds.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.hazard.model import Hazard, default_hazard
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.actions import Action, Assign, Release, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.api.reasons import Alternative, Reason
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View, run_started_s
from ebbtide.policies.dynamic_pricing.limits import LEAST_ROUND_S, RoundLimits, eased
from ebbtide.policies.dynamic_pricing.moves import move
from ebbtide.policies.dynamic_pricing.objectives import CostObjective, max_total_throughput, min_cost, min_makespan
from ebbtide.policies.dynamic_pricing.problem import Allocation, AllocationProblem
from ebbtide.policies.dynamic_pricing.rounds import Held, Received, hand_over, next_round, rented_by_others, steady
from ebbtide.policies.dynamic_pricing.timing import timed_types, timing_ends_s
from ebbtide.policies.field_checks import check_fields, is_number
from ebbtide.policies.migration import list_price
from ebbtide.policies.risk import MarketRisk

_LOGGER = logging.getLogger(__name__)

# Time between retries while every market of a type is above its max price.
_RETRY_S = 5 * 60.0

# Time to spare before an SLO, seconds: moves take whole seconds, and notices some.
_SPARE_S = 45.0

# Beside the share that is kept for revocations: hours that one of them takes.
_RECOVERY_H = 10.0 / 60.0

# What is saved by a move is counted for so long at most: prices say little about later.
_HORIZON_S = DAY_S


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
        quotas: Most machines in use at once, by instance type; no limit for other types. During a move to another
            market of its type a job has both machines.
        slo_h: Hours from the start within which a job must be done, by job name; one number: every job.
        reserve: Share of the time until an SLO that is kept for revocations, as far as the fastest type allows.
        budget_usd: Total budget for `MAKESPAN`, USD.
        start_s: Seconds for which a new machine is paid before it can restore.
        timing_s: Seconds that a job trains on each type that it was not seen on, before it is allocated; 0: rates
            are taken as they are known. Of a sweep's trials, whose names end in numbers from 0 on, one is timed on
            each type. Rates of replays are known.
        hazard: Chances of losing machines for capacity, which count beside prices.
        capacity: Whether they count; else prices alone, as published.
        wakes_on: Price changes wake the policy.
    """

    one_machine_a_job: ClassVar[bool] = True

    goal: Goal = Goal.COST
    round_s: float = 6 * HOUR_S
    price_change: float = 0.1
    quotas: Mapping[str, int] = field(default_factory=dict)
    slo_h: Mapping[str, float] | float = field(default_factory=dict)
    reserve: float = 0.1
    budget_usd: float = math.inf
    start_s: float = 120.0
    timing_s: float = 0.0
    hazard: Hazard = field(default_factory=default_hazard, repr=False)
    capacity: bool = True
    wakes_on: frozenset[Wake] = frozenset({Wake.PRICE})

    def __post_init__(self) -> None:
        check_fields(
            self,
            positive=("budget_usd",),
            not_negative=("price_change", "start_s", "timing_s"),
            shares=("reserve",),
            finite=("start_s", "timing_s"),
            between={"round_s": (1.0, 366 * DAY_S)},
        )
        for name, most in self.quotas.items():
            if not is_number(most) or not most >= 0:
                raise InputError(f"is {most}; a number of machines is needed", field=f"quotas.{name}")
        for name, hours in (self.slo_h if isinstance(self.slo_h, Mapping) else {"": self.slo_h}).items():
            where = f"slo_h.{name}".rstrip(".")
            if not is_number(hours):
                raise InputError(f"is {hours!r:.80}; a number of hours is needed", field=where)
            if not hours > 0:
                raise InputError(f"is {hours:g} h; it must be positive", field=where)

    @property
    def name(self) -> str:
        return f"dynamic-pricing-{self.goal}"

    def for_goals(self, goals: Goals) -> DynamicPricing:
        """Return this policy with deadlines as SLOs, and the budget of its shortest makespan."""
        own = goals.given(budget_usd="budget_usd")
        if goals.deadlines_s:
            own["slo_h"] = {name: seconds / HOUR_S for name, seconds in goals.deadlines_s.items()}
        elif math.isfinite(goals.deadline_s):
            own["slo_h"] = goals.deadline_s / HOUR_S
        return replace(self, **own)

    def decide(self, view: View) -> Iterable[Action]:
        memory = view.memory
        run_started_s(view)
        self._risk(view)
        memory.setdefault("allocating_s", view.now_s)
        for event in view.events:
            if event.wake is Wake.RUNNING:
                yield from self._take_over(view, view.lease(event.lease_id))
        finished = any(event.wake is Wake.FINISHED for event in view.events)
        ends_s = memory.get("round_ends_s", -math.inf)
        # A free machine is given to another job at once.
        is_over = finished or view.now_s >= ends_s - 1e-6
        elsewhere = self._is_refused_a_type(view)
        if is_over or elsewhere or self._prices_have_changed(view) or self._has_fallen_behind(view):
            self._plan(view)
            yield WakeAt(memory["round_ends_s"])
            yield from self._share_out(view)
            for job in self._unfinished(view):
                yield from self._follow(view, job, is_new=elsewhere)
            return
        refused = any(event.wake is Wake.LAUNCH_FAILED for event in view.events)
        again = memory.get("retry_s", math.inf) <= view.now_s
        if again:
            del memory["retry_s"]
        # A machine that a job had just moved to is taken: it is back on the one before, and tries again.
        again = again or any(event.wake in (Wake.NOTICE, Wake.ENDED) for event in view.events)
        for job in self._unfinished(view):
            if again or not steady(view, job):
                yield from self._follow(view, job)
            elif refused:
                yield from self._last_call(view, job)
        if refused and "retry_s" not in memory:
            # Jobs that were to move, and stay where they are meanwhile, try again, too.
            memory["retry_s"] = view.now_s + _RETRY_S
            yield WakeAt(view.now_s + _RETRY_S)
        if memory["round_ends_s"] < ends_s:
            yield WakeAt(memory["round_ends_s"])

    def _is_refused_a_type(self, view: View) -> bool:
        """Return whether a job without a machine is to have a type that no market offers now, while others exist.

        Markets that have just refused are hidden for a while (`BacksOff`).
        """
        if not any(event.wake is Wake.LAUNCH_FAILED for event in view.events):
            return False
        kinds, given = self._kinds(view), self._cheapest(view)
        without = (job for job in self._unfinished(view) if job.job_id in kinds and not steady(view, job))
        return bool(given) and any(kinds[job.job_id] not in given for job in without)

    def _has_fallen_behind(self, view: View) -> bool:
        """Return whether a job without a machine is now too late for its SLO on its type, and no round is due."""
        memory = view.memory
        began_s, ends_s = memory["round_began_s"] + LEAST_ROUND_S, memory["round_ends_s"] - LEAST_ROUND_S
        if not self.slo_h or not began_s <= view.now_s < ends_s:
            return False
        without = [job for job in self._unfinished(view) if not steady(view, job)]
        kinds, cheapest = (self._kinds(view), self._cheapest(view)) if without else ({}, {})
        for job in without:
            market = cheapest.get(kinds.get(job.job_id, ""))
            if market is None or math.isinf(self._slo_h(job.job.name)):
                continue
            if job.steps_left / view.steps_per_s(job.job, market) > self._left_h(view, job) * HOUR_S:
                return True
        return False

    def _prices_have_changed(self, view: View) -> bool:
        """Return whether prices differ too much from the allocation's; a young round is shortened instead."""
        memory = view.memory
        changed = (event.market for event in view.events if event.market is not None)
        of_use = {
            market.instance_type
            for market in changed
            if any(view.steps_per_s(job.job, market) > 0 for job in self._unfinished(view))
        }
        far = any(self._is_far(view, kind) for kind in of_use)
        if far and view.now_s < memory["round_began_s"] + LEAST_ROUND_S:
            # The round ends when its shortest time is over.
            memory["round_ends_s"] = min(memory["round_ends_s"], memory["round_began_s"] + LEAST_ROUND_S)
            return False
        return far

    def _is_far(self, view: View, kind: str) -> bool:
        solved_with: float = view.memory["prices"].get(kind, math.inf)
        market = self._cheapest(view, kind).get(kind)
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
        cheapest = self._cheapest(view)
        memory["prices"] = {kind: view.price(market) for kind, market in cheapest.items()}
        timed = timed_types(view, cheapest, self.quotas, self.start_s, self.timing_s)
        jobs = [job for job in self._able(view, cheapest) if job.job_id not in timed]
        types = dict(timed)
        if jobs:
            used = rented_by_others(view) + Counter(timed.values())
            found = self._allocated(view, jobs, cheapest, used)
            kinds = found.problem.types
            had = memory.setdefault("hours", {})
            hours = [[had.get(f"{job.job_id} {kind}", 0.0) for kind in kinds] for job in jobs]
            elapsed_h = (view.now_s - memory["allocating_s"]) / HOUR_S
            chosen = next_round(
                found.shares, found.problem.quotas, Received(np.array(hours), elapsed_h), self.round_s / HOUR_S
            )
            own = {job.job_id: kinds[kind] for job, kind in zip(jobs, chosen.tolist(), strict=True) if kind >= 0}
            limits = self._limits(view, cheapest)
            own, ends_s = limits.kept(jobs, self._weighed(view, jobs, own, cheapest, used), used)
            types |= own
            memory["round_ends_s"] = min(memory["round_ends_s"], ends_s)
            if any(used[kind] for kind in self.quotas):
                # Another's machines are given back at some time, which it is not told of.
                memory["round_ends_s"] = min(memory["round_ends_s"], view.now_s + LEAST_ROUND_S)
        if timed:
            memory["round_ends_s"] = min(memory["round_ends_s"], timing_ends_s(view))
        memory["types"] = {str(job_id): kind for job_id, kind in types.items()}

    def _limits(self, view: View, cheapest: Mapping[str, Market]) -> RoundLimits:
        budget_usd = self.budget_usd if self.goal is Goal.MAKESPAN else math.inf
        left_h = partial(self._left_h, view)
        return RoundLimits(view, cheapest, self.quotas, self.start_s, left_h, budget_usd)

    def _weighed(
        self,
        view: View,
        jobs: Sequence[JobView],
        types: Mapping[int, str],
        cheapest: Mapping[str, Market],
        others: Counter[str],
    ) -> dict[int, str]:
        """The types, but jobs that are better off where they are stay there, if nobody else needs their place."""
        found = dict(types)
        used = Counter(found.values()) + others
        for job in jobs:
            lease = next((lease for lease in steady(view, job) if lease.is_booted), None)
            wanted = found.get(job.job_id)
            if lease is None or wanted is None or wanted == lease.market.instance_type:
                continue
            here = lease.market.instance_type
            most = self.quotas.get(here)
            has_room = most is None or used[here] < math.floor(most + 1e-9)
            pays = self._pays(view, job, lease, cheapest[wanted])
            if has_room and not pays and self._is_in_time(view, job, lease.market):
                used[wanted] -= 1
                used[here] += 1
                found[job.job_id] = here
        return found

    def _is_in_time(self, view: View, job: JobView, market: Market) -> bool:
        """Return whether a job keeps its SLO in a market."""
        return job.steps_left / view.steps_per_s(job.job, market) <= self._left_h(view, job) * HOUR_S

    def _pays(self, view: View, job: JobView, lease: LeaseView, market: Market) -> bool:
        """Return whether a move saves money or, if the goal is not cost and the type changes, time."""
        saved = move(view, job, lease, market, self.start_s, _HORIZON_S)
        if self.goal is Goal.COST or market.instance_type == lease.market.instance_type:
            return saved.saved_usd > 0.0
        return saved.saved_s > 0.0 or saved.saved_usd > 0.0

    def allocation(self, view: View) -> tuple[Allocation, dict[str, Market]]:
        """The allocation at the prices of a view, and the market of each instance type that stands for it.

        Raises:
            InputError: No job can run on any machine that can be rented now, or limits cannot all be met.
        """
        cheapest = self._cheapest(view)
        jobs = self._able(view, cheapest)
        if not jobs:
            raise InputError("no job can run on a machine that costs no more than its list price now")
        return self._allocated(view, jobs, cheapest), cheapest

    def _risk(self, view: View) -> MarketRisk:
        return MarketRisk.now(view, self.hazard if self.capacity else None)

    def _usd_per_hour(self, view: View, risk: MarketRisk, market: Market) -> float:
        """Price of an hour that trains: losses of machines take time, too."""
        # The job that takes longest to restore stands for all.
        jobs = (each.job for each in self._unfinished(view)) if risk.counts(market) else iter(())
        longest = max(jobs, key=lambda job: job.restore_s(), default=None)
        lost = 0.0 if longest is None else risk.overhead(longest, market, self.start_s)
        return view.price(market) * (1.0 + lost)

    def _cheapest(self, view: View, only: str | None = None) -> dict[str, Market]:
        """The cheapest market, not above its max price, of each instance type or of one."""
        found: dict[str, tuple[float, Market]] = {}
        risk = self._risk(view)
        for market in view.markets:
            kind = market.instance_type
            if only is not None and kind != only:
                continue
            if view.price(market) <= list_price(view, market):
                usd = self._usd_per_hour(view, risk, market)
                if kind not in found or usd < found[kind][0]:
                    found[kind] = usd, market
        return {kind: market for kind, (_, market) in found.items()}

    def _able(self, view: View, cheapest: Mapping[str, Market]) -> list[JobView]:
        """Unfinished jobs that can run on an available machine; the others wait."""
        return [
            job
            for job in self._unfinished(view)
            if any(view.steps_per_s(job.job, market) > 0 for market in cheapest.values())
        ]

    def _allocated(
        self,
        view: View,
        jobs: Sequence[JobView],
        cheapest: Mapping[str, Market],
        others: Mapping[str, int] = MappingProxyType({}),
    ) -> Allocation:
        kinds = sorted(cheapest)
        problem = self._problem(view, jobs, kinds, [cheapest[kind] for kind in kinds], others)
        try:
            return Allocation(problem, self._shares(view, problem))
        except InputError:
            if view.now_s == run_started_s(view):
                raise
            # SLOs that could be met at the start no longer can, as prices rose or machines were revoked.
            kept = eased(problem)
            late = [problem.jobs[place] for place in np.flatnonzero(kept.slo_h > problem.slo_h * 1.01)]
            told: list[str] = view.memory.setdefault("eased_slos", [])
            if set(late) - set(told):
                told += sorted(set(late) - set(told))
                _LOGGER.warning("SLOs that cannot be kept any more: %s; done as soon as they can", ", ".join(late))
            return Allocation(problem, self._shares(view, kept))

    def _account(self, view: View) -> None:
        """Record the time that each job has had on its type since the last plan."""
        memory = view.memory
        had_h = (view.now_s - memory.get("round_began_s", view.now_s)) / HOUR_S
        hours: dict[str, float] = memory.setdefault("hours", {})
        for job_id, kind in memory.get("types", {}).items():
            key = f"{job_id} {kind}"
            hours[key] = hours.get(key, 0.0) + had_h

    def _problem(
        self,
        view: View,
        jobs: Sequence[JobView],
        kinds: Sequence[str],
        markets: Sequence[Market],
        others: Mapping[str, int],
    ) -> AllocationProblem:
        rates = [[view.steps_per_s(job.job, market) * HOUR_S for market in markets] for job in jobs]
        left_h = [max(self._left_h(view, job), 1e-3) for job in jobs]
        risk = self._risk(view)
        return AllocationProblem.of(
            rates,
            [self._usd_per_hour(view, risk, market) for market in markets],
            quotas=[max(float(self.quotas.get(kind, math.inf)) - others.get(kind, 0), 0.0) for kind in kinds],
            steps=[max(job.steps_left, 1e-6) for job in jobs],
            slo_h=left_h,
            jobs=[job.job.name for job in jobs],
            types=kinds,
        )

    def _left_h(self, view: View, job: JobView) -> float:
        """Hours that a job has for its steps: until its SLO, less a start, the last save and the reserve."""
        slo_h = self._slo_h(job.job.name)
        if math.isinf(slo_h):
            return math.inf
        left_h = self._until_slo_h(view, job, slo_h)
        # Types that others cannot have taken: on the fastest of these the job can be at any time.
        free = [market for kind, market in self._cheapest(view).items() if kind not in self.quotas]
        fastest = max((view.steps_per_s(job.job, market) for market in free), default=0.0)
        if not self.reserve or fastest <= 0.0:
            return left_h
        least_h = job.steps_left / fastest / HOUR_S
        return max(min(left_h, least_h), (1.0 - self.reserve) * left_h - _RECOVERY_H)

    def _until_slo_h(self, view: View, job: JobView, slo_h: float) -> float:
        """Hours until an SLO, less a start and the last save: nothing is kept in reserve."""
        held = [lease for lease in steady(view, job) if lease.is_booted]
        vcpus = view.machine(held[0].market).vcpus if held else 1
        kept_s = job.job.save_s(vcpus) + (0.0 if held else self.start_s + job.job.restore_s(vcpus))
        return slo_h - (view.now_s - run_started_s(view) + kept_s + _SPARE_S) / HOUR_S

    def _slo_h(self, job: str) -> float:
        return self.slo_h.get(job, math.inf) if isinstance(self.slo_h, Mapping) else self.slo_h

    def _shares(self, view: View, problem: AllocationProblem) -> Floats:
        if self.goal is Goal.THROUGHPUT:
            return max_total_throughput(problem)
        if self.goal is Goal.COST:
            return min_cost(problem, CostObjective.LINEAR)
        left_usd = self.budget_usd - view.spent_usd
        if math.isfinite(left_usd):
            left_usd -= self._limits(view, self._cheapest(view)).ending_usd(list(self._unfinished(view)))
        try:
            return min_makespan(problem, left_usd)[0]
        except InputError:
            if view.now_s == run_started_s(view):
                raise
            return min_cost(problem, CostObjective.LINEAR)

    def _unfinished(self, view: View) -> Iterator[JobView]:
        return (job for job in view.jobs if not job.is_finished)

    def _share_out(self, view: View) -> Iterator[Action]:
        """Give machines to the jobs that have their types in this round, and give back those that nobody needs."""
        kinds = self._kinds(view)
        changes = hand_over(_held(view), kinds, _coming(view), self._full(view))
        for job_id in sorted({*changes.paused, *changes.given}):
            if view.jobs[job_id].leases:
                yield Assign(job_id, [])
        for job_id, lease_id in changes.given.items():
            yield Assign(job_id, [lease_id])
        for lease_id in changes.left:
            yield Release(lease_id, because=Reason("no job is given this machine in the round that begins"))
        # A machine that was to come for a job that has ended since.
        for job in view.jobs:
            if job.is_finished:
                done = Reason("its job is done")
                coming = [lease for lease in view.leases_of(job.job_id) if not lease.is_booted]
                yield from (Release(lease.lease_id, because=done) for lease in coming)

    def _take_over(self, view: View, new: LeaseView) -> Iterator[Action]:
        """A machine is up: its job moves there, and what it leaves goes to a job that needs it, or back."""
        if math.isfinite(new.revoke_at_s):
            return
        job = next((job for job in self._unfinished(view) if new in job.leases), None)
        others = [] if job is None else [lease for lease in job.leases if lease is not new]
        if job is not None:
            yield Assign(job.job_id, [new.lease_id])
        if job is None or others:
            yield from self._share_out(view)

    def _kinds(self, view: View) -> dict[int, str]:
        """The type of each unfinished job in this round; those that wait are missing."""
        types = view.memory.get("types", {})
        own = ((job.job_id, types.get(str(job.job_id))) for job in self._unfinished(view))
        return {job_id: kind for job_id, kind in own if kind is not None}

    def _full(self, view: View) -> set[str]:
        """Types of which as many machines are rented as may be."""
        own = (lease.market.instance_type for lease in view.leases if math.isinf(lease.revoke_at_s))
        rented = Counter(own) + rented_by_others(view)
        return {kind for kind, most in self.quotas.items() if rented[kind] >= math.ceil(most)}

    def _follow(self, view: View, job: JobView, *, is_new: bool = False) -> Iterator[Action]:
        """Rent a machine of a job's type in this round, or one in a cheaper market; without a type it waits.

        A refusal is waited out, unless the type `is_new` since.
        """
        held = steady(view, job)
        kind = view.memory["types"].get(str(job.job_id))
        if kind is None:
            return
        market = self._cheapest(view).get(kind)
        refused = any(event.wake is Wake.LAUNCH_FAILED for event in view.events)
        if market is None or (refused and not held and not is_new):
            yield from self._last_call(view, job)
            yield WakeAt(view.now_s + _RETRY_S)
            return
        if any(not lease.is_booted for lease in held):
            # A move is in progress.
            return
        here = held[0] if held else None
        if here is not None and here.market.instance_type == kind:
            if here.market == market or not self._pays(view, job, here, market):
                return
        elif kind in self._full(view):
            # One of those that are rented comes to it when its job leaves it; of others' it is not told.
            if rented_by_others(view)[kind]:
                yield WakeAt(view.now_s + _RETRY_S)
            return
        because = partial(_by_type, view, self._cheapest(view), job, kind, market, self._risk(view))
        yield Request(market, list_price(view, market), job=job.job_id, keep=True, because=because)

    def _last_call(self, view: View, job: JobView) -> Iterator[Action]:
        """An on-demand machine for a job that was refused a spot machine and would miss its SLO by waiting on."""
        slo_h = self._slo_h(job.job.name)
        coming = [lease for lease in view.leases_of(job.job_id) if not lease.is_booted]
        if math.isinf(slo_h) or coming:
            return
        left_s = self._until_slo_h(view, job, slo_h) * HOUR_S
        here = max((view.steps_per_s(job.job, lease.market) for lease in steady(view, job)), default=0.0)
        full = self._full(view)
        work_s = {
            market: job.steps_left / rate
            for market in view.markets
            if view.on_demand_price(market) is not None
            and market.instance_type not in full
            and (rate := view.steps_per_s(job.job, market)) > here
        }
        in_time_here = here > 0.0 and job.steps_left / here <= left_s
        if in_time_here or not work_s or min(work_s.values()) + _RETRY_S + _SPARE_S <= left_s:
            return
        least_s = min(work_s.values())
        able = [market for market, duration_s in work_s.items() if duration_s <= max(left_s, least_s)]
        best = min(able, key=lambda market: ((view.on_demand_price(market) or 0.0) * work_s[market], market))
        late = Reason("it was refused a spot machine, and would miss its SLO by waiting on")
        yield Request(best, on_demand=True, job=job.job_id, keep=True, because=late)


def _held(view: View) -> list[Held]:
    """All machines that are up and stay, with the unfinished job that has each."""
    owner = {lease.lease_id: job.job_id for job in view.jobs if not job.is_finished for lease in job.leases}
    return [
        Held(lease.lease_id, lease.market.instance_type, owner.get(lease.lease_id))
        for lease in view.leases
        if lease.is_booted and math.isinf(lease.revoke_at_s)
    ]


def _coming(view: View) -> dict[int, list[str]]:
    """Types of the machines that are on their way to each job."""
    return {
        job.job_id: [lease.market.instance_type for lease in view.leases_of(job.job_id) if not lease.is_booted]
        for job in view.jobs
    }


def _by_type(
    view: View, cheapest: Mapping[str, Market], job: JobView, kind: str, market: Market, risk: MarketRisk
) -> Reason:
    """Reason for a machine of a type: the round's allocation, and the cheapest market of the type."""
    alternatives = []
    for other, where in cheapest.items():
        rate, price = view.steps_per_s(job.job, where), view.price(where)
        if rate > 0.0:
            work_h = job.steps_left / rate / HOUR_S
            how = f"{price:.6f} USD/h x {work_h:.6f} h; a type's cheapest market{risk.text(where)}"
            alternatives.append(Alternative("spot", price * work_h, how, where, other == kind and where == market))
    why = f"the round's allocation, solved over all jobs, gives the job a {kind}; this is its cheapest market"
    return Reason(why, alternatives)
