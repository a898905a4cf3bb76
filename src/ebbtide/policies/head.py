"""A machine for the head of a cluster: rented on demand, beside those that any policy rents for its workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import Action, Assign, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View

# A head that could not be rented is asked for again after so long.
_RETRY_S = 60.0
_LAST, _AFTER, _ASKED_S = "head_last_lease", "head_after_lease", "head_asked_s"


@dataclass(frozen=True)
class WithHead:
    """Wraps the policy of one job whose program runs on one machine and is helped by others, as Spark's.

    Without that machine all work is lost, so the market must not take it. It is the cheapest on demand. The other
    policy sees neither it nor what happens to it.

    Attributes:
        policy: The policy that decides about the workers.
    """

    policy: Policy

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return self.policy.wakes_on

    @property
    def period_lead_s(self) -> float:
        """How long before the end of a charge period the policy is woken, seconds."""
        return float(getattr(self.policy, "period_lead_s", 0.0))

    def decide(self, view: View) -> Iterable[Action]:
        seen = [lease.lease_id for lease in view.leases]
        view.memory[_LAST] = max([view.memory.get(_LAST, -1), *seen])
        shown = _WithoutHead(view)
        is_about_head = bool(view.events) and not shown.events
        actions = iter(()) if is_about_head else iter(self.policy.decide(shown))
        # A policy that refuses the job does so before a head is rented.
        first = list(islice(actions, 1))
        if _head(view) is None and not view.jobs[0].is_finished:
            yield from self._ask(view)
        yield from self._beside(view, chain(first, actions))

    def _ask(self, view: View) -> Iterator[Action]:
        """Rent a head; one that was asked for a moment ago is waited for."""
        asked_s = view.memory.get(_ASKED_S)
        market = cheapest_on_demand(view)
        if market is None or (asked_s is not None and view.now_s < asked_s + _RETRY_S):
            yield WakeAt(view.now_s + _RETRY_S)
            return
        view.memory[_AFTER], view.memory[_ASKED_S] = view.memory[_LAST], view.now_s
        yield Request(market, on_demand=True, job=0)

    @staticmethod
    def _beside(view: View, actions: Iterable[Action]) -> Iterator[Action]:
        for action in actions:
            head = _head(view)
            if isinstance(action, Assign) and head is not None and head.is_open:
                yield replace(action, leases=[head.lease_id, *action.leases])
            else:
                yield action


def cheapest_on_demand(view: View) -> Market | None:
    """The market whose machines cost least on demand and can run the job; None: no list price is known."""
    listed = [
        (usd, str(market), market)
        for market in view.markets
        if (usd := view.on_demand_price(market)) is not None and view.steps_per_s(view.jobs[0].job, market) > 0
    ]
    return min(listed)[2] if listed else None


def _head(view: View) -> LeaseView | None:
    """The head, if there is one: the first machine on demand since it was asked for."""
    after = view.memory.get(_AFTER)
    if after is None:
        return None
    found = [lease for lease in view.leases if lease.on_demand and lease.lease_id > after]
    return min(found, key=lambda lease: lease.lease_id, default=None)


class _WithoutHead:
    """A view without the head."""

    def __init__(self, view: View) -> None:
        self._view = view

    @property
    def _head(self) -> LeaseView | None:
        return _head(self._view)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def _others(self, leases: Sequence[LeaseView]) -> tuple[LeaseView, ...]:
        head = self._head
        return tuple(lease for lease in leases if lease != head)

    @property
    def events(self) -> Sequence[Any]:
        after = self._view.memory.get(_AFTER)
        # The event of a head that has ended or was refused comes when there is none any more.
        head = self._head
        lost = None if after is None or head is not None else after + 1
        ids = {lost, None if head is None else head.lease_id} - {None}
        return tuple(event for event in self._view.events if event.lease_id not in ids)

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
