"""Machines for the heads of clusters: rented on demand, beside those that any policy rents for workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import Action, Assign, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.api.reasons import Reason
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View

# A head that could not be rented is asked for again after so long.
_RETRY_S = 60.0
# In the policy's memory: heads by job, all heads there have been, and the last lease that was seen.
_HEADS, _ALL, _LAST, _ASKED_S = "heads", "all_heads", "head_last_lease", "head_asked_s"


@dataclass(frozen=True)
class WithHead:
    """Wraps the policy of jobs some of whose programs run on one machine and are helped by others, as Spark's.

    Without that machine all work is lost, so the market must not take it. It is the cheapest on demand. The other
    policy sees neither it nor what happens to it.

    Attributes:
        policy: The policy that decides about the workers.
        jobs: Ids of the jobs that are clusters.
    """

    policy: Policy
    jobs: tuple[int, ...] = (0,)

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return self.policy.wakes_on

    @property
    def period_lead_s(self) -> float:
        """Seconds before the end of a charge period at which the policy is woken."""
        return float(getattr(self.policy, "period_lead_s", 0.0))

    def decide(self, view: View) -> Iterable[Action]:
        _see(view)
        shown = _WithoutHeads(view)
        is_about_heads = bool(view.events) and not shown.events
        actions = iter(()) if is_about_heads else iter(self.policy.decide(shown))
        # A policy that refuses a job does so before a head is rented.
        first = list(islice(actions, 1))
        for job_id in self.jobs:
            if _head(view, job_id) is None and not view.jobs[job_id].is_finished:
                yield from self._ask(view, view.jobs[job_id])
        yield from self._beside(view, chain(first, actions))

    @staticmethod
    def _ask(view: View, job: JobView) -> Iterator[Action]:
        """Rent a head; one that was asked for a moment ago is waited for."""
        asked: dict[str, float] = view.memory.setdefault(_ASKED_S, {})
        asked_s = asked.get(str(job.job_id))
        market = cheapest_on_demand(view, job)
        if market is None or (asked_s is not None and view.now_s < asked_s + _RETRY_S):
            yield WakeAt(view.now_s + _RETRY_S)
            return
        asked[str(job.job_id)] = view.now_s
        before = view.memory[_LAST]
        head = Reason("the head of a cluster is cheapest there on demand: it must not be taken")
        yield Request(market, on_demand=True, job=job.job_id, because=head)
        # Another policy around this one may have refused it.
        rented = [lease.lease_id for lease in view.leases if lease.lease_id > before]
        if rented:
            view.memory.setdefault(_HEADS, {})[str(job.job_id)] = rented[0]
            view.memory.setdefault(_ALL, []).append(rented[0])
        _see(view)

    def _beside(self, view: View, actions: Iterable[Action]) -> Iterator[Action]:
        for action in actions:
            head = _head(view, action.job) if isinstance(action, Assign) and action.job in self.jobs else None
            if isinstance(action, Assign) and head is not None:
                yield replace(action, leases=[head.lease_id, *action.leases])
            else:
                yield action
            if isinstance(action, Request):
                _see(view)


def cheapest_on_demand(view: View, job: JobView) -> Market | None:
    """The market whose machines cost least on demand and can run a job; None: no list price is known."""
    listed = [
        (usd, str(market), market)
        for market in view.markets
        if (usd := view.on_demand_price(market)) is not None and view.steps_per_s(job.job, market) > 0
    ]
    return min(listed)[2] if listed else None


def _see(view: View) -> None:
    """Note the last lease that there has been."""
    view.memory[_LAST] = max([view.memory.get(_LAST, -1), *(lease.lease_id for lease in view.leases)])


def _head(view: View, job_id: int) -> LeaseView | None:
    """The head of a job, if there is one."""
    lease_id = view.memory.get(_HEADS, {}).get(str(job_id))
    return next((lease for lease in view.leases if lease.lease_id == lease_id), None)


class _WithoutHeads:
    """A view without the heads."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def _others(self, leases: Sequence[LeaseView]) -> tuple[LeaseView, ...]:
        heads = self._view.memory.get(_ALL, ())
        return tuple(lease for lease in leases if lease.lease_id not in heads)

    @property
    def events(self) -> Sequence[Any]:
        heads = self._view.memory.get(_ALL, ())
        return tuple(event for event in self._view.events if event.lease_id not in heads)

    @property
    def leases(self) -> Sequence[LeaseView]:
        return self._others(self._view.leases)

    def leases_of(self, job_id: int) -> Sequence[LeaseView]:
        return self._others(self._view.leases_of(job_id))

    @property
    def jobs(self) -> Sequence[Any]:
        return tuple(_JobWithoutHead(job, self._others(job.leases)) for job in self._view.jobs)


class _JobWithoutHead:
    """A job without the head among its machines."""

    def __init__(self, job: JobView, leases: tuple[LeaseView, ...]) -> None:
        self._job, self.leases = job, leases

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)
