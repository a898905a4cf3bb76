"""A spending limit around any policy: renting stops, after a checkpoint, before the limit can be exceeded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ebbtide.jobs.job import Coupling
from ebbtide.market.billing import ON_DEMAND, Billing
from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import Action, GiveUp, Release, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.api.reasons import Reason
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View
from ebbtide.policies.field_checks import check_fields
from ebbtide.policies.migration import is_better_revoked

# A machine that cannot be paid for this long is not rented at all.
_LEAST_USE_S = 10 * 60.0

# Time to end a machine, beyond two saves (one may be in progress).
_ENDING_S = 15.0

# Saves of each job whose egress is kept in hand: one may be under way, another is made at the end.
_SAVES_COUNTED = 2.0

# No checkpoint leaves a region faster, by far: ten seconds a GB are the least that DeepSpotCloud measured.
_UPLOADED_BYTES_PER_S = 0.25e9

# A request without a max price, in a market without a list price, gets this multiple of the price as max price.
_MAX_RISE = 3.0


@dataclass(frozen=True)
class WithinBudget:
    """Wraps another policy and passes on its requests while the budget can pay for them.

    Every lease is estimated at the most that it can cost: its max price. A request without a max price gets the
    list price. Money spent is what the ledger would show if everything were released now, without refunds. Only a
    price that rises above a max price during a revocation notice can exceed the estimate; then the machine is
    released at once, without saving, or left to its provider where the revocation will be refunded.

    Where checkpoints go to a bucket in another region, two more saves of each job are counted at the egress of the
    dearest machine: one may be under way, and another is made when all is released. Agents decide how often they
    save; so it is looked again before uploads could have spent the rest, if they went on and on.

    Attributes:
        policy: The policy that decides what to rent.
        budget_usd: The most that may be spent, USD.
        key: Key of this limit's values in the run's memory; two limits around one policy need different keys.
        whose: The budget that binds, in words, for the reason to give up; empty: the run's own.
    """

    policy: Policy
    budget_usd: float
    key: str = "budget"
    whose: str = ""

    def __post_init__(self) -> None:
        check_fields(self, positive=("budget_usd",))

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return self.policy.wakes_on | {Wake.PRICE}

    @property
    def period_lead_s(self) -> float:
        """Seconds before the end of a charge period at which the policy is woken."""
        return float(getattr(self.policy, "period_lead_s", 0.0))

    def decide(self, view: View) -> Iterable[Action]:
        above = _above(view)
        memory = self._memory(view)
        if "gives_up_s" in memory:
            yield from self._give_up_when_revoked(view, above)
            return
        if not view.leases:
            # A run that is resumed after it gave up is asked anew: it may have been given a higher budget.
            memory.pop("gave_up", None)
        if memory.get("gave_up"):
            # A machine that is still saving may have become too expensive to wait for.
            if above and self._most_usd(view, view.leases, view.now_s) > self.budget_usd:
                spent = Reason("the budget is reached, and its price is above what may be paid")
                yield from (Release(lease.lease_id, save=False, because=spent) for lease in above)
            return
        inner = [e for e in view.events if e.wake is not Wake.PRICE or Wake.PRICE in self.policy.wakes_on]
        if not inner:
            if above:
                yield from self._watch(view, {lease.lease_id for lease in view.leases}, above)
            return
        yield from self._affordable(view, self.policy.decide(view))

    def _memory(self, view: View) -> dict[str, Any]:
        """Memory of this limit, separate from that of the wrapped policy."""
        memory: dict[str, Any] = view.memory.setdefault(self.key, {})
        return memory

    def affordable_until_s(self, view: View) -> float:
        """Time until which everything rented can be paid, whatever prices do, seconds since 1970.

        Then everything has to be given back, or more might be spent than may be; infinity: ten days or more.
        """
        return self._limit_s(view)

    def _affordable(self, view: View, actions: Iterable[Action]) -> Iterator[Action]:
        """The actions without the requests that the budget cannot pay; gives up if no machine is left.

        Each is passed on before the policy is asked for the next: it may look at what has come of it.
        """
        before = {lease.lease_id for lease in view.leases}
        refused = False
        for action in actions:
            asked = self._capped(view, action)
            if isinstance(asked, Request) and self._request_usd(view, asked, before) > self.budget_usd:
                refused = True
                continue
            yield asked
        if refused and not view.leases:
            yield from self._give_up(view, [])
            return
        yield from self._watch(view, before, _above(view))

    def _watch(self, view: View, before: Collection[int], above: list[LeaseView]) -> Iterator[Action]:
        """Give up if the time limit is reached; else ask to be woken at the limit."""
        limit_s = self._limit_s(view, before)
        if limit_s <= view.now_s + 1.0:
            passed = self._most_usd(view, view.leases, view.now_s) > self.budget_usd
            yield from self._give_up(view, above if passed else [])
        elif limit_s < math.inf and self._memory(view).get("look_s") != limit_s:
            self._memory(view)["look_s"] = limit_s
            yield WakeAt(limit_s)

    def _give_up(self, view: View, at_once: list[LeaseView]) -> Iterator[Action]:
        """End the run; machines that are paid beyond the limit go at once, unsaved.

        Of these, one that is refunded when its provider takes it is left to be taken: a release would be charged.
        """
        revoke_at_s = view.now_s + view.billing.notice_s
        spared = [lease for lease in at_once if is_better_revoked(view, lease, revoke_at_s)]
        for lease in list(view.leases) if spared else at_once:
            if lease not in spared:
                yield Release(lease.lease_id, save=False, because=Reason("the budget is reached"))
        if spared:
            self._memory(view)["gives_up_s"] = revoke_at_s + _ENDING_S
            yield WakeAt(revoke_at_s + _ENDING_S)
            return
        self._memory(view)["gave_up"] = True
        own = f"budget of {self.budget_usd:g} USD reached: {view.spent_usd:.4g} USD spent"
        yield GiveUp(f"{self.whose} reached: this run has spent {view.spent_usd:.4g} USD" if self.whose else own)

    def _give_up_when_revoked(self, view: View, above: Sequence[LeaseView]) -> Iterator[Action]:
        """Wait for machines that were left to their provider; end the run once they are gone, or stay."""
        waits = bool(above) and view.now_s < self._memory(view)["gives_up_s"]
        for lease in view.leases:
            if not waits or lease not in above:
                yield Release(lease.lease_id, save=False, because=Reason("the budget is reached"))
        if not waits:
            del self._memory(view)["gives_up_s"]
            yield from self._give_up(view, [])

    def _capped(self, view: View, action: Action) -> Action:
        """The request with a max price, so that its highest cost is known."""
        if not isinstance(action, Request) or action.on_demand or math.isfinite(action.max_price_usd_per_hour):
            return action
        price, listed = view.price(action.market), view.on_demand_price(action.market)
        most = max(price, listed) if listed is not None else _MAX_RISE * price
        return replace(action, max_price_usd_per_hour=most)

    def _limit_s(self, view: View, before: Collection[int] | None = None) -> float:
        """Time until which everything rented can be paid, whatever prices do; infinity: ten days or more.

        Args:
            view: The view.
            before: Ids of the leases that there were before this decision; None: all.
        """
        low_s, high_s = view.now_s, view.now_s + 10 * 86_400.0
        fixed_usd = _fixed_usd(view, view.leases, [])
        # Values that do not depend on the time are looked up once: the bisection below needs them many times.
        rented = self._held(view, view.leases, before)
        saving_usd_per_s = _saving_usd_per_s(view, view.leases, [])

        def until_usd(time_s: float) -> float:
            return fixed_usd + _renting_usd(rented, time_s) + saving_usd_per_s * (time_s - view.now_s)

        if until_usd(high_s) <= self.budget_usd:
            return math.inf
        # Between these bounds, which grow by the rates, the time is found in a few steps.
        usd_per_s = saving_usd_per_s + math.fsum(each.usd_per_hour for each in rented) / 3600.0
        least_usd = fixed_usd + math.fsum(each.least_usd(low_s) for each in rented)
        most_usd = fixed_usd + math.fsum(each.most_usd(low_s) for each in rented)
        if usd_per_s > 0.0:
            high_s = min(high_s, low_s + max((self.budget_usd - least_usd) / usd_per_s, 0.0) + 1.0)
            low_s = max(low_s, min(low_s + (self.budget_usd - most_usd) / usd_per_s, high_s))
        while high_s - low_s > 1.0:
            middle_s = (low_s + high_s) / 2.0
            fits = until_usd(middle_s) <= self.budget_usd
            low_s, high_s = (middle_s, high_s) if fits else (low_s, middle_s)
        return math.floor(low_s)

    def _request_usd(self, view: View, asked: Request, before: Collection[int]) -> float:
        """The most that will be spent with this request, USD.

        It and those before it in this decision, whose leases are there already, are used for the minimum time.
        """
        rented = [*self._held(view, view.leases, before), *self._asked_for(view, [asked])]
        return _fixed_usd(view, view.leases, [asked]) + _renting_usd(rented, view.now_s)

    def _most_usd(self, view: View, leases: Iterable[LeaseView], until_s: float) -> float:
        """The most that is spent by a time, USD, if everything is released then."""
        return _fixed_usd(view, leases, []) + _renting_usd(self._held(view, leases), until_s)

    def _held(
        self, view: View, leases: Iterable[LeaseView], before: Collection[int] | None = None
    ) -> list[_Rented]:
        """The machines that are rented; those that were not there before are used for the minimum time."""
        held = list(leases)
        now_s = view.now_s
        ending_s = {market: self._ending_s(view, market) for market in {lease.market for lease in held}}
        found = []
        for lease in held:
            billing = ON_DEMAND if lease.on_demand else view.billing
            rate = max(_rate(view, lease.market, lease.on_demand, _bound(lease)), _price(view, lease))
            started_s = lease.started_s if lease.is_charged else now_s
            paid_s = _paid_s(billing, now_s - started_s) if lease.is_charged else 0.0
            is_new = before is not None and lease.lease_id not in before
            least_s = _LEAST_USE_S if is_new else 0.0
            found.append(_Rented(rate, billing, started_s, paid_s, least_s, ending_s[lease.market]))
        return found

    def _asked_for(self, view: View, coming: Iterable[Request]) -> list[_Rented]:
        """The requested machines, each used for the minimum time at least."""
        return [
            _Rented(
                request.count * _rate(view, request.market, request.on_demand, request.max_price_usd_per_hour),
                ON_DEMAND if request.on_demand else view.billing,
                view.now_s,
                0.0,
                _LEAST_USE_S,
                self._ending_s(view, request.market),
            )
            for request in coming
        ]

    def _ending_s(self, view: View, market: Market) -> float:
        """The longest time to save and release a machine in a market, seconds.

        Jobs that share a machine save at the same time, over one network.
        """
        vcpus = view.machine(market).vcpus
        saves_s = (job.job.save_s(vcpus, market.place) * math.floor(1.0 / job.job.share) for job in view.jobs)
        return 2.0 * max(saves_s) + _ENDING_S


@dataclass(frozen=True, slots=True)
class _Rented:
    """Charges, from now on, of one machine or of several of the same kind.

    Attributes:
        usd_per_hour: The highest rate that can be charged, USD per hour.
        billing: The billing rule it is charged by.
        started_s: When charging began, seconds since 1970.
        paid_s: Seconds of use that are already paid.
        least_s: Minimum time of use, seconds.
        ending_s: The longest time to save and release it, seconds.
    """

    usd_per_hour: float
    billing: Billing
    started_s: float
    paid_s: float
    least_s: float
    ending_s: float

    def least_usd(self, until_s: float) -> float:
        """A lower bound of what it costs until a time, USD; for each second after it, it grows by the rate."""
        return self.usd_per_hour * (until_s - self.started_s + self.ending_s - self.paid_s) / 3600.0

    def most_usd(self, until_s: float) -> float:
        """An upper bound of what it costs until a time, USD, that grows in the same way."""
        beyond_s = self.least_s + self.billing.minimum_s + self.billing.period_s
        longest_s = max(until_s - self.started_s + self.ending_s + beyond_s - self.paid_s, 0.0)
        return self.usd_per_hour * longest_s / 3600.0


def _renting_usd(rented: Iterable[_Rented], until_s: float) -> float:
    """The most that machines will cost from now to a time, USD."""
    usd = 0.0
    for each in rented:
        due_s = _paid_s(each.billing, max(until_s - each.started_s, each.least_s) + each.ending_s)
        usd += each.usd_per_hour * max(due_s - each.paid_s, 0.0) / 3600.0
    return usd


def _fixed_usd(view: View, leases: Iterable[LeaseView], coming: Iterable[Request]) -> float:
    """Costs that do not grow with time, USD: money already spent, and egress that may still be charged."""
    held, asked_for = list(leases), list(coming)
    unfinished = [job for job in view.jobs if not job.is_finished]
    of_lease: dict[int, list[JobView]] = {}
    for job in unfinished:
        for lease in view.leases_of(job.job_id):
            of_lease.setdefault(lease.lease_id, []).append(job)
    moves_usd: dict[tuple[int, Market], float] = {}

    def move_usd(job: JobView, market: Market) -> float:
        key = job.job_id, market
        if key not in moves_usd:
            moves_usd[key] = _move_usd(view, job, market)
        return moves_usd[key]

    def most_usd(market: Market) -> float:
        """Of a machine that no job has yet."""
        return max((move_usd(job, market) for job in unfinished), default=0.0)

    usd = view.spent_usd + math.fsum(_SAVES_COUNTED * usd for _, usd in _uploads_usd(view, held, asked_for))
    for lease in held:
        jobs = of_lease.get(lease.lease_id)
        usd += math.fsum(move_usd(job, lease.market) for job in jobs) if jobs else most_usd(lease.market)
    for request in asked_for:
        own = [job for job in unfinished if job.job_id == request.job]
        usd += request.count * (move_usd(own[0], request.market) if own else most_usd(request.market))
    return usd


def _move_usd(view: View, job: JobView, market: Market) -> float:
    """The most that it costs to move what a job needs to a market, from wherever it is, USD."""
    usd = 0.0
    checkpoint, dataset, bucket = job.job.checkpoint, job.job.dataset, job.job.bucket
    if checkpoint is not None:
        sources = {job.saved_at or market.place, *(lease.market.place for lease in job.leases)}
        if bucket is not None:
            # What has never begun has stored nothing to download.
            sources = {bucket.place} if job.saved_at is not None or job.leases else set()
        each_usd = (view.egress_usd(job.checkpoint_bytes, source, market.place) for source in sources)
        usd += max(each_usd, default=0.0)
    if dataset is not None and not job.has_dataset(market.cloud):
        usd += view.egress_usd(dataset.size_bytes, dataset.home, market.place)
    return usd


def _uploads_usd(
    view: View, leases: Iterable[LeaseView], coming: Iterable[Request]
) -> Iterator[tuple[JobView, float]]:
    """The most that one save of each job that has a machine costs in egress, USD, wherever of these it is."""
    rented, asked_for = Counter(lease.market.place for lease in leases), list(coming)
    for request in asked_for:
        rented[request.market.place] += request.count
    for job in view.jobs:
        bucket = job.job.bucket
        is_on = bool(view.leases_of(job.job_id)) or any(request.job in (None, job.job_id) for request in asked_for)
        if bucket is None or job.is_finished or not rented or not is_on:
            continue
        each_usd = [(view.egress_usd(job.checkpoint_bytes, place, bucket.place), n) for place, n in rented.items()]
        # Machines that work as one save once; each that works alone saves by itself.
        is_one = job.job.coupling is Coupling.GANG
        yield job, max(usd for usd, _ in each_usd) if is_one else math.fsum(usd * n for usd, n in each_usd)


def _saving_usd_per_s(view: View, leases: Iterable[LeaseView], coming: Iterable[Request]) -> float:
    """The most that saves can cost in egress if each job saves all the time, USD per second."""
    found = []
    for job, usd in _uploads_usd(view, leases, coming):
        interval_s = job.job.checkpoint.interval_s if job.job.checkpoint else None
        upload_s = job.checkpoint_bytes / _UPLOADED_BYTES_PER_S
        if usd > 0.0:
            found.append(usd / min(upload_s, interval_s or math.inf))
    return math.fsum(found)


def _paid_s(billing: Billing, used_s: float) -> float:
    return math.ceil(max(used_s, billing.minimum_s) / billing.period_s - 1e-9) * billing.period_s


def _bound(lease: LeaseView) -> float:
    return math.inf if lease.on_demand else lease.max_price_usd_per_hour


def _price(view: View, lease: LeaseView) -> float:
    return 0.0 if lease.on_demand else view.price(lease.market)


def _rate(view: View, market: Market, on_demand: bool, max_price: float) -> float:
    if on_demand:
        return view.on_demand_price(market) or 0.0
    return max_price if math.isfinite(max_price) else view.price(market)


def _above(view: View) -> list[LeaseView]:
    """Machines whose price is above their max price now: they are being revoked."""
    return [lease for lease in view.leases if _price(view, lease) > _bound(lease)]
