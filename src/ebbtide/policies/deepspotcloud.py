"""DeepSpotCloud: when and where to move a job between spot markets (III-A to III-C), and a rule of our own.

A move that nobody forces starts the new machine first; the old one trains until it has booted, saves, and is given
back. So a move costs the time of saving and restoring, two machines for a while, and what is left of the period
that the old one is charged for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from ebbtide.market.leases import Lease
from ebbtide.market.markets import Market
from ebbtide.policies.actions import Action, Request, WakeAt
from ebbtide.policies.events import Wake
from ebbtide.policies.moving import list_price, take_over
from ebbtide.policies.view import View
from ebbtide.utc import HOUR_S
from ebbtide.workloads.progress import JobProgress

# While every market is above its max price.
_RETRY_S = 5 * 60.0

# Where charges run by the second, how often a move is considered.
_LOOK_S = 10 * 60.0

# To spare, so that no second of another period is begun.
_MARGIN_S = 60.0

_GIB = 2**30


class MoveWhen(StrEnum):
    """When to move without being forced to."""

    NEVER = "interrupt"  # the paper's interrupt: only when revoked
    CHEAPER = "best-price"  # as soon as another market is cheaper
    PERIOD_END = "hourly"  # at the end of a charged period, if another market is cheaper
    WORTHWHILE = "migrate"  # at the end of a period, if the saving to be expected is above the cost of the move


@dataclass(frozen=True)
class DeepSpotCloud:
    """Jobs on one machine each, in the cheapest market, up to the on-demand price.

    Attributes:
        when: To move without being forced to.
        start_s: From asking for a machine until it has booted (Table II: 121.6 s in the mean, 243 at most).
        stay_h: A move is reckoned over so many hours at most: a price tells little of those further ahead.
        caution: Share of its cost that the saving of a move has to exceed; less than one, since a cheaper market
            is also one that is taken later.
        egress_usd_per_gib: Of a checkpoint that leaves its region.
        wakes_on: Prices, for `CHEAPER`.
    """

    when: MoveWhen = MoveWhen.PERIOD_END
    start_s: float = 180.0
    stay_h: float = 4.0
    caution: float = 0.3
    egress_usd_per_gib: float = 0.02

    @property
    def name(self) -> str:
        return f"deepspotcloud-{self.when}"

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return frozenset({Wake.PRICE}) if self.when is MoveWhen.CHEAPER else frozenset()

    def decide(self, view: View) -> Iterable[Action]:
        for event in view.events:
            if event.wake is Wake.RUNNING:
                yield from self._arrived(view, view.lease(event.lease_id))
        for job in (job for job in view.jobs if not job.is_finished):
            machines = [lease for lease in view.leases_of(job.job_id) if math.isinf(lease.revoke_at_s)]
            if not machines:
                yield from self._replace(view, job)
            elif len(machines) == 1 and self._is_due(view, machines[0]):
                yield from self._consider(view, job, machines[0])

    def _arrived(self, view: View, new: Lease) -> Iterator[Action]:
        yield from take_over(view, new)
        if self.when in (MoveWhen.PERIOD_END, MoveWhen.WORTHWHILE):
            yield WakeAt(self._next_look_s(view, new))

    def _replace(self, view: View, job: JobProgress) -> Iterator[Action]:
        """A forced move: the job has no machine, or one that is about to be taken (III-A)."""
        market = self._best(view, job)
        if market is None or any(event.wake is Wake.LAUNCH_FAILED for event in view.events):
            yield WakeAt(view.now_s + _RETRY_S)
        else:
            yield Request(market, list_price(view, market), job=job.job_id)

    def _is_due(self, view: View, lease: Lease) -> bool:
        """Whether a move from a machine is to be considered now."""
        if math.isnan(lease.running_s) or self.when is MoveWhen.NEVER:
            return False
        if self.when is MoveWhen.CHEAPER:
            return True
        looks: dict[str, float] = view.memory.setdefault("looks", {})
        return view.now_s >= looks.get(str(lease.lease_id), math.inf) - 1e-6

    def _consider(self, view: View, job: JobProgress, lease: Lease) -> Iterator[Action]:
        """A move of our own will (III-A)."""
        market = self._best(view, job)
        if market is not None and market != lease.market and self._pays(view, job, lease, market):
            yield Request(market, list_price(view, market), job=job.job_id)
        if self.when is not MoveWhen.CHEAPER:
            yield WakeAt(self._next_look_s(view, lease))

    def _next_look_s(self, view: View, lease: Lease) -> float:
        """Early enough before the end of a charged period to be off the machine by then."""
        period_s = view.billing.period_s
        if period_s < _LOOK_S:
            look_s = view.now_s + _LOOK_S
        else:
            saving_s = max(job.job.save_s(view.machine(lease.market).vcpus) for job in view.jobs)
            lead_s = self.start_s + saving_s + _MARGIN_S
            begun = math.floor((view.now_s + lead_s - lease.started_s + 1e-6) / period_s)
            look_s = lease.started_s + (begun + 1) * period_s - lead_s
        view.memory.setdefault("looks", {})[str(lease.lease_id)] = look_s
        return look_s

    def _best(self, view: View, job: JobProgress) -> Market | None:
        """The market of the least price for a step, of those not above their max price (III-C)."""
        usable = [
            market
            for market in view.markets
            if view.steps_per_s(job.job, market) > 0 and view.price(market) <= list_price(view, market)
        ]
        return min(usable, key=lambda market: (self._usd_per_step(view, job, market), market), default=None)

    def _usd_per_step(self, view: View, job: JobProgress, market: Market) -> float:
        return view.price(market) / HOUR_S / view.steps_per_s(job.job, market)

    def _stay_h(self, view: View, job: JobProgress, market: Market) -> float:
        work_h = job.steps_left / view.steps_per_s(job.job, market) / HOUR_S
        return min(max(work_h, 1e-3), self.stay_h)

    def _pays(self, view: View, job: JobProgress, lease: Lease, market: Market) -> bool:
        """Whether a move is of use by the rule."""
        here, there = (self._usd_per_step(view, job, place) for place in (lease.market, market))
        if self.when is not MoveWhen.WORTHWHILE:
            return there < here
        # As many steps as the job would do here in its stay.
        steps = self._stay_h(view, job, lease.market) * HOUR_S * view.steps_per_s(job.job, lease.market)
        return (here - there) * steps > self.caution * self._move_usd(view, job, lease, market)

    def _move_usd(self, view: View, job: JobProgress, lease: Lease, market: Market) -> float:
        """Two machines while the new one boots and the old one saves, no steps while it saves and the new one
        restores, and egress."""
        old, new = view.machine(lease.market).vcpus, view.machine(market).vcpus
        save_s, restore_s = job.job.save_s(old), job.job.restore_s(new)
        usd = (self.start_s + save_s + restore_s) * view.price(market) / HOUR_S
        usd += save_s * view.price(lease.market) / HOUR_S
        # The rest of the charged period is paid and not used.
        period_s = view.billing.period_s
        used_s = view.now_s + self.start_s + save_s - lease.started_s
        usd += (math.ceil(used_s / period_s) * period_s - used_s) * view.price(lease.market) / HOUR_S
        checkpoint = job.job.checkpoint
        if checkpoint is not None and (lease.market.cloud, lease.market.region) != (market.cloud, market.region):
            usd += checkpoint.size_bytes / _GIB * self.egress_usd_per_gib
        return usd
