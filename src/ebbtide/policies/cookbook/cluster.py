"""A cluster run by a cookbook where machines are charged by whole periods and start after a delay (Cümülön-D 5.3,
5.4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import Action, Release, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.reasons import Reason
from ebbtide.policies.api.records import LeaseView
from ebbtide.policies.api.view import View, run_started_s
from ebbtide.policies.cookbook.bids import Bids
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.cookbook.reasons import by_book

# Times closer than this are equal, seconds.
_CLOCK_S = 1e-3
# Shorter charge periods are taken to be so long, seconds: the tick of a price chain.
_LEAST_PERIOD_S = 300.0


@dataclass(frozen=True, eq=False)
class RunCluster:
    """Holds as many machines as a cookbook says, or a fixed number, each to the end of a period that is paid.

    A period may be several steps of the cookbook long (its `charge_steps`, the paper's kappa).

    It decides the delay ahead: when the price has changed, when a machine is about to be charged again, when half
    a step has passed. A bid is infinite where another try would come too late for the deadline. After the deadline
    it holds as many machines as it may until the work is done.

    Attributes:
        book: The cookbook, solved for decisions the delay ahead; its first step begins when the policy is first
            asked. For a fixed size, only its workflow and deadline are used.
        market: The market in which machines are rented.
        bids: Bids for spot machines by step and work left.
        delay_s: Seconds from the request for a machine to its start.
        on_demand: Whether to rent on demand while spot costs more, and where another try for spot would come too
            late (6.8).
        fixed_size: Number of machines to hold always (6.7); 0: as the cookbook says.
        lead_s: Seconds before a charge by which a machine is released that is not to be charged again; in a live
            run more than it takes to end it.
    """

    book: Cookbook
    market: Market
    bids: Bids
    delay_s: float = 600.0
    on_demand: bool = False
    fixed_size: int = 0
    lead_s: float = 0.0

    def __post_init__(self) -> None:
        if self.bids.table.shape != self.book.actions.shape[:2]:
            raise InputError(f"bids of shape {self.bids.table.shape} do not go with {self.book.actions.shape[:2]}")
        if not self.delay_s >= 0.0 or self.fixed_size < 0:
            raise InputError(f"delay_s {self.delay_s} and fixed_size {self.fixed_size} must not be negative")

    @property
    def name(self) -> str:
        return ("fixed" if self.fixed_size else "cumulon") + ("-plus" if self.on_demand else "-by-period")

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return frozenset({Wake.PRICE})

    def decide(self, view: View) -> Iterable[Action]:
        started_s = run_started_s(view)
        going: list[list[float]] = view.memory.setdefault("going", [])
        (job,) = view.jobs
        if job.is_finished:
            return
        effect_s = view.now_s + self.delay_s
        leases = [lease for lease in view.leases_of(0) if not self._is_outbid(lease, view)]
        leaving = _leaving(view)
        # A live clock never stands at a moment: what was charged since the last look is due as well.
        since_s = view.memory.get("due_s", -math.inf)
        due = [
            lease
            for lease in leases
            if lease.lease_id not in leaving and self._is_due(lease, since_s, effect_s, view)
        ]
        price = view.price(self.market)
        lost = any(event.wake in (Wake.LAUNCH_FAILED, Wake.ENDED) for event in view.events)
        changed = lost or price != view.memory.get("price")
        view.memory["price"] = price
        step_s = self.book.problem.step_h * HOUR_S
        idle_s = view.now_s - view.memory.get("asked_s", -math.inf)
        if idle_s > _CLOCK_S and (changed or due or idle_s >= step_s / 2 - _CLOCK_S):
            view.memory["asked_s"], view.memory["due_s"] = view.now_s, effect_s
            left_h = job.steps_left / job.job.steps * self.book.problem.workflow.work_h
            then_h = self._left_then(left_h, leases, effect_s, view)
            staying = [lease for lease in leases if lease.lease_id not in leaving]
            yield from self._resize(view, (effect_s - started_s) / HOUR_S, then_h, staying, due)
            yield WakeAt(view.now_s + step_s / 2)
        for lease in leases:
            goes_s = _leaving(view).get(lease.lease_id, math.inf)
            if view.now_s >= goes_s - self.lead_s - _CLOCK_S:
                yield Release(
                    lease.lease_id, because=Reason("it would be charged again, and the cookbook needs fewer")
                )
        view.memory["going"] = [pair for pair in going if any(pair[0] == lease.lease_id for lease in leases)]
        yield from self._wakes(view, leases)

    def _resize(
        self, view: View, hours: float, left_h: float, staying: Sequence[LeaseView], due: Sequence[LeaseView]
    ) -> Iterator[Action]:
        """Request missing machines; mark those to release at the end of their period: those too many, and those
        of the kind that is more expensive now."""
        book, going, price = self.book, view.memory["going"], view.price(self.market)
        problem, steps = book.problem, len(book.actions)
        urgent = self._is_urgent(hours, left_h)
        # Those asked for since it is urgent have the most that a budget around this policy allows.
        urgent_s = view.memory.setdefault("urgent_s", view.now_s) if urgent else math.inf
        unsure = {
            lease.lease_id
            for lease in staying
            if urgent and _can_be_taken(lease) and lease.requested_s < urgent_s - _CLOCK_S
        }
        held = len(staying) - len(unsure)
        counted = [lease for lease in staying if lease.lease_id not in unsure]
        charged = self._charged(counted, view.now_s + self.delay_s, view)
        size = self.fixed_size or book.choose(hours, price, left_h, charged)
        leave = min(len(due), held - size)
        if leave > 0 and self.lead_s > 0.0 and not self.fixed_size:
            # They stop before they are charged again, and so do less than the cookbook has it.
            size = max(size, book.choose(hours, price, left_h + leave * self.lead_s / HOUR_S, charged))
        list_price = view.on_demand_price(self.market) if self.on_demand else None
        wants_listed = list_price is not None and (price > list_price or urgent)
        free, swapped = max(held - size, 0), 0
        for lease in due:
            if lease.lease_id in unsure:
                going.append([lease.lease_id, self._next_charge_s(lease, view)])
            elif free > 0:
                free -= 1
                going.append([lease.lease_id, self._next_charge_s(lease, view)])
            elif self.on_demand and lease.on_demand != wants_listed:
                swapped += 1
                going.append([lease.lease_id, self._next_charge_s(lease, view)])
        step = min(int((hours + 1e-9) / problem.step_h), steps - 1)
        offer = math.inf if urgent else float(self.bids.table[step, book.level(left_h)])
        more = max(size - held, 0) + swapped
        if more > 0 and (wants_listed or offer >= price):
            because = partial(by_book, book, hours, price, left_h, size, held)
            yield Request(self.market, offer, on_demand=wants_listed, job=0, count=more, because=because)
            yield WakeAt(view.now_s + _period_s(view))

    def _is_urgent(self, hours: float, left_h: float) -> bool:
        """Return whether losing all revocable machines just before the next decision would miss the deadline.

        The next decision is at most half a step away. If so, none of these machines counts, and bids are infinite.
        """
        problem = self.book.problem
        rest_h = (len(self.book.actions) - 0.5) * problem.step_h - hours - (self.delay_s + self.lead_s) / HOUR_S
        return problem.workflow.finish_h(left_h, 0, max(problem.most, self.fixed_size)) > max(rest_h, 0.0) + 1e-9

    def _left_then(self, left_h: float, leases: Sequence[LeaseView], until_s: float, view: View) -> float:
        """Machine-hours of work left when a change takes effect, with starts and stops that are due by then."""
        present = []
        for lease in leases:
            comes_s, goes_s = self._comes_s(lease), math.inf
            if lease.lease_id in _leaving(view):
                goes_s = _leaving(view)[lease.lease_id] - self.lead_s
            present.append((max(comes_s, view.now_s), goes_s))
        moments = {view.now_s, until_s, *(time_s for pair in present for time_s in pair)}
        for low_s, high_s in pairwise(sorted(time_s for time_s in moments if view.now_s <= time_s <= until_s)):
            running = sum(comes_s <= low_s < goes_s for comes_s, goes_s in present)
            size = min(running, max(self.book.problem.most, self.fixed_size))
            left_h = float(self.book.problem.workflow.progress(left_h, size, size, (high_s - low_s) / HOUR_S))
        return left_h

    def _wakes(self, view: View, leases: Sequence[LeaseView]) -> Iterator[Action]:
        """Wake-ups: the delay before each next charge; for machines to be released, at the charge."""
        known = [time_s for time_s in view.memory.get("wakes", ()) if time_s > view.now_s - _CLOCK_S]
        view.memory["wakes"] = known
        for lease in leases:
            goes_s = _leaving(view).get(lease.lease_id)
            if goes_s is None:
                time_s = self._next_charge_s(lease, view, after_s=view.now_s + self.delay_s) - self.delay_s
            else:
                time_s = max(goes_s - self.lead_s, view.now_s)
            if time_s not in known:
                known.append(time_s)
                yield WakeAt(time_s)

    def _comes_s(self, lease: LeaseView) -> float:
        return lease.started_s if lease.is_charged else lease.requested_s + self.delay_s

    def _is_outbid(self, lease: LeaseView, view: View) -> bool:
        """Return whether a machine is lost, or will not start, because its price is above its bid."""
        return (
            not lease.on_demand
            and self._comes_s(lease) <= view.now_s + _CLOCK_S
            and (view.billing.price_revokes or not lease.is_charged)
            and lease.max_price_usd_per_hour < view.price(self.market)
        )

    def _charged(self, leases: Sequence[LeaseView], time_s: float, view: View) -> list[int]:
        """Numbers of machines that at `time_s` will have been charged kappa, ..., 1 steps ago."""
        count = self.book.problem.charge_steps
        found = [0] * count
        for lease in leases:
            age_s = max(time_s - self._comes_s(lease), 0.0) + _CLOCK_S
            since_s = age_s - max(math.ceil(age_s / _period_s(view) - 2 * _CLOCK_S) - 1, 0) * _period_s(view)
            ago = math.ceil(since_s / (self.book.problem.step_h * HOUR_S) - _CLOCK_S)
            found[count - min(max(ago, 1), count)] += 1
        return found

    def _is_due(self, lease: LeaseView, since_s: float, time_s: float, view: View) -> bool:
        """Return whether a machine is charged again after `since_s`, and at `time_s` at the latest."""
        period_s, comes_s = _period_s(view), self._comes_s(lease)
        charges = math.floor((time_s - comes_s + _CLOCK_S) / period_s)
        return charges >= 1 and comes_s + charges * period_s > since_s + _CLOCK_S

    def _next_charge_s(self, lease: LeaseView, view: View, after_s: float | None = None) -> float:
        """The time of a machine's next charge, seconds: now at the earliest, or after a given time."""
        comes_s, period_s = self._comes_s(lease), _period_s(view)
        if after_s is None:
            return comes_s + max(math.ceil((view.now_s - comes_s - _CLOCK_S) / period_s), 1) * period_s
        return comes_s + max(math.floor((after_s - comes_s + _CLOCK_S) / period_s) + 1, 1) * period_s


def _period_s(view: View) -> float:
    """Length of a charge period; where it is shorter than prices are looked at, so long."""
    return max(view.billing.period_s, _LEAST_PERIOD_S)


def _leaving(view: View) -> dict[int, float]:
    """Next charge of each machine that is marked for release, by lease id, seconds since 1970."""
    return {int(lease_id): goes_s for lease_id, goes_s in view.memory["going"]}


def _can_be_taken(lease: LeaseView) -> bool:
    return not lease.on_demand and not math.isinf(lease.max_price_usd_per_hour)
