"""DeepSpotCloud: when and where to move a job between spot markets (III-A to III-C), and a rule of our own.

Three parts: the instance recommender (III-C, IV-D), which ranks markets by the current price of a step;
`MovePlan`, which estimates what a move saves; and the instance arbitrator, the policy itself.

A voluntary move is made in one of two ways. As published (III-B), the old machine saves and is released while the
new one starts, and the job stands still meanwhile. With `overlap`, the old machine trains until the new one has
booted: less time is lost, but two machines are paid for a while.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import ClassVar

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.forecasts.hazard.model import Hazard, default_hazard
from ebbtide.jobs.job import UNKNOWN_STEPS, Job
from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import Action, Release, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.quotes import Quotes
from ebbtide.policies.api.reasons import Alternative, Reason
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View
from ebbtide.policies.field_checks import check_fields
from ebbtide.policies.migration import egress_usd, list_price, save_usd, take_over
from ebbtide.policies.risk import MarketRisk

# Time from the request for a machine until it has booted, seconds (Table II: mean 121.6, at most 243).
_START_S = 180.0


def recommend(quotes: Quotes, job: Job, risk: MarketRisk | None = None) -> Market | None:
    """The market with the lowest price per step, among those not above the list price; None: there is none.

    Only current prices count: neither the authors (IV-D) nor we found that past prices lead to a better choice.

    Args:
        quotes: Current prices.
        job: The job to run.
        risk: Risk of losing machines for capacity, as time that is lost; None: prices alone, as published.
    """
    return min(
        usable(quotes, job), key=lambda market: (usd_per_step(quotes, job, market, risk), market), default=None
    )


def ranked(quotes: Quotes, job: Job) -> list[Market]:
    """All markets that `recommend` chooses from, the best first."""
    return sorted(usable(quotes, job), key=lambda market: (usd_per_step(quotes, job, market), market))


def usable(quotes: Quotes, job: Job) -> list[Market]:
    """The markets where the job can run and the spot price is not above the list price."""
    return [
        market
        for market in quotes.markets
        if quotes.steps_per_s(job, market) > 0 and quotes.price(market) <= list_price(quotes, market)
    ]


def usd_per_step(quotes: Quotes, job: Job, market: Market, risk: MarketRisk | None = None) -> float:
    """The cost of one step of the job in a market at its current price, USD; with a risk, also of steps lost."""
    again = 0.0 if risk is None else risk.overhead(job, market, _START_S)
    return quotes.price(market) * (1.0 + again) / HOUR_S / quotes.steps_per_s(job, market)


@dataclass(frozen=True)
class MovePlan:
    """Plan of a move between machines, and the estimate of what it saves.

    A move saves by a lower price for the remaining work. It costs the time to set up the new machine, egress, and
    charged periods that are cut short or newly begun. Where checkpoints lie in a bucket, it saves or costs the
    difference in egress of all saves to come, too.

    Attributes:
        overlap: Whether the old machine trains until the new one has booted.
        lead_s: Seconds that the old machine trains after the new one is requested; 0 without overlap.
        boot_s: Seconds for which the new machine is charged before it can restore.
        horizon_s: The most remaining work that is counted, seconds: prices say little about the far future.
        moves_per_day: Expected further moves per day. Their time may fit into the job's last charged period, which
            is paid in full anyway; as far as it does, lost time costs nothing.
        risk: Risk of losing machines for capacity; None: prices alone.
    """

    overlap: bool
    lead_s: float
    boot_s: float
    horizon_s: float
    moves_per_day: float
    risk: MarketRisk | None = None

    def saving_usd(self, view: View, job: JobView, lease: LeaseView, market: Market) -> float:
        """USD that the job saves by moving to a market now; negative: the move costs more than it saves."""
        period_s = view.billing.period_s
        # A machine that is held is not left for its risk, which changes with its age: only the target's counts.
        again = 0.0 if self.risk is None else self.risk.overhead(job.job, market, _START_S)
        here, there = view.price(lease.market) / HOUR_S, view.price(market) * (1.0 + again) / HOUR_S
        rate = view.steps_per_s(job.job, lease.market)
        faster = view.steps_per_s(job.job, market) / rate
        old, new = view.machine(lease.market).vcpus, view.machine(market).vcpus
        save_s = job.job.save_s(old, lease.market.place)
        setting_up_s = self.boot_s + job.job.restore_s(new, lease.market.place, market.place)
        setting_up_s += save_s if self.overlap else 0.0
        work_s = job.steps_left / rate
        paid_until_s = lease.started_s + _whole(view.now_s - lease.started_s, period_s)
        left_s = view.now_s + work_s + save_s - paid_until_s
        if left_s <= 0.0:
            # The job ends within the period that is already paid.
            return -math.inf
        if left_s <= self.horizon_s:
            stay_usd = here * _whole(left_s, period_s)
            working_s = max(work_s - self.lead_s, 0.0) / faster + job.job.save_s(new, market.place)
            move_usd = there * _whole(setting_up_s + working_s, period_s)
            # The last save is counted as well, wherever it is.
            saves = 1.0 + _periodic_saves(job.job, work_s)
        else:
            lost_s = setting_up_s + max(paid_until_s - view.now_s - self.lead_s, 0.0)
            moving_s = max(self.moves_per_day * left_s / DAY_S, 1.0) * lost_s
            room = min((_whole(left_s, period_s) - left_s) / moving_s, 1.0)
            stay_usd = here * self.horizon_s
            move_usd = there * (self.horizon_s / faster + (1.0 - room) * lost_s)
            saves = self.moves_per_day * self.horizon_s / DAY_S + _periodic_saves(job.job, self.horizon_s)
        # If the old machine is not released by the end of its period, another period begins.
        freed_s = view.now_s + self.lead_s + save_s
        move_usd += here * max(lease.started_s + _whole(freed_s - lease.started_s, period_s) - paid_until_s, 0.0)
        upload_usd = saves * (save_usd(view, job, market) - save_usd(view, job, lease.market))
        return stay_usd - move_usd - upload_usd - egress_usd(view, job, lease.market, market)


def _periodic_saves(job: Job, work_s: float) -> float:
    """Number of periodic saves in `work_s` seconds of work; 0 for a job that is saved only to move."""
    interval_s = job.checkpoint.interval_s if job.checkpoint else None
    return work_s / interval_s if interval_s else 0.0


def _whole(seconds: float, period_s: float) -> float:
    """Seconds, rounded up to whole periods."""
    return math.ceil(seconds / period_s - 1e-9) * period_s


# Time between retries while every market is above its max price.
RETRY_S = 5 * 60.0

# How often a move is considered where charges are by the second.
LOOK_S = 10 * 60.0

# Time to spare, so that no second of another period is charged.
MARGIN_S = 60.0


class MoveWhen(StrEnum):
    """Occasions for voluntary moves."""

    NEVER = "interrupt"  # never: only after a revocation, as the paper's interrupt
    CHEAPER = "best-price"  # as soon as another market is cheaper
    PERIOD_END = "hourly"  # at the end of a charged period, if another market is cheaper
    WORTHWHILE = "migrate"  # at the end of a period, if the expected saving is above the cost of the move


@dataclass(frozen=True)
class DeepSpotCloud:
    """Each job on one machine, in the cheapest market, at no more than the on-demand price.

    Attributes:
        when: When the job moves voluntarily.
        overlap: Whether the old machine trains until the new one has booted.
        start_s: Time from the request for a machine until it has booted, seconds (Table II: mean 121.6, at most
            243).
        boot_s: The charged part of the start, seconds, on average.
        stay_h: The longest horizon for the saving of a move, hours: prices say little about the far future.
        moves_per_day: Expected further moves per day; see `MovePlan`.
        hazard: Chances of losing machines for capacity, which count beside prices.
        capacity: Whether they count; else prices alone, as published.
        wakes_on: Price changes, for `CHEAPER` only.
    """

    one_machine_a_job: ClassVar[bool] = True

    when: MoveWhen = MoveWhen.PERIOD_END
    overlap: bool = False
    start_s: float = _START_S
    boot_s: float = 101.0
    stay_h: float = 1.0
    moves_per_day: float = 8.0
    hazard: Hazard = field(default_factory=default_hazard, repr=False)
    capacity: bool = True

    def __post_init__(self) -> None:
        check_fields(self, positive=("stay_h",), not_negative=("start_s", "boot_s", "moves_per_day"))

    @property
    def name(self) -> str:
        return f"deepspotcloud-{self.when}"

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return frozenset({Wake.PRICE}) if self.when is MoveWhen.CHEAPER else frozenset()

    @property
    def lead_s(self) -> float:
        """Seconds from the request for the new machine until the old machine saves."""
        return self.start_s if self.overlap else 0.0

    def _risk(self, view: View) -> MarketRisk | None:
        return MarketRisk.now(view, self.hazard) if self.capacity else None

    def decide(self, view: View) -> Iterable[Action]:
        self._risk(view)
        for event in view.events:
            if event.wake is Wake.RUNNING:
                yield from self._arrived(view, view.lease(event.lease_id))
        for job in (job for job in view.jobs if not job.is_finished):
            machines = [lease for lease in view.leases_of(job.job_id) if _stays(view, lease)]
            if not machines:
                yield from self._replace(view, job)
            elif len(machines) == 1 and self._is_due(view, machines[0]):
                yield from self._consider(view, job, machines[0])

    def _arrived(self, view: View, new: LeaseView) -> Iterator[Action]:
        if not _stays(view, new):
            return
        yield from take_over(view, new)
        if self.when in (MoveWhen.PERIOD_END, MoveWhen.WORTHWHILE):
            yield WakeAt(self._next_look_s(view, new))

    def _replace(self, view: View, job: JobView) -> Iterator[Action]:
        """A forced move: the job has no machine, or one with a revocation notice (III-A)."""
        market = recommend(view, job.job, self._risk(view))
        if market is None or any(event.wake is Wake.LAUNCH_FAILED for event in view.events):
            if view.memory.get("retry_s", -math.inf) <= view.now_s:
                view.memory["retry_s"] = view.now_s + RETRY_S
                yield WakeAt(view.now_s + RETRY_S)
        else:
            why = "the job needs a machine: this market is cheapest for each step now (III-A)"
            because = partial(self._reason, view, job, why, {"spot": market}, market)
            yield Request(market, list_price(view, market), job=job.job_id, because=because)

    def _reason(self, view: View, job: JobView, why: str, choices: Mapping[str, Market], target: Market) -> Reason:
        """Reason for a machine of a market, with the cost of a step there and of other choices."""
        risk = self._risk(view)
        left = "" if job.steps_left > UNKNOWN_STEPS / 2 else f" x {job.steps_left:g}"
        costs = {what: usd_per_step(view, job.job, one, risk) for what, one in choices.items()}
        return Reason(
            why,
            [
                Alternative(
                    what,
                    costs[what] * job.steps_left,
                    f"{costs[what]:.8g} USD a step{left}" + ("" if risk is None else risk.text(one)),
                    one,
                    one == target,
                )
                for what, one in choices.items()
            ],
        )

    def _is_due(self, view: View, lease: LeaseView) -> bool:
        """Return whether to consider a voluntary move from a machine now."""
        if math.isnan(lease.running_s) or self.when is MoveWhen.NEVER:
            return False
        if view.billing.price_revokes and view.price(lease.market) > lease.max_price_usd_per_hour:
            # It is being revoked at this moment; a release by us would lose the refund.
            return False
        if self.when is MoveWhen.CHEAPER:
            return True
        looks: dict[str, float] = view.memory.setdefault("looks", {})
        return view.now_s >= looks.get(str(lease.lease_id), math.inf) - 1e-6

    def _consider(self, view: View, job: JobView, lease: LeaseView) -> Iterator[Action]:
        """A voluntary move (III-A)."""
        market = recommend(view, job.job, self._risk(view))
        if market is not None and market != lease.market and self._pays(view, job, lease, market):
            target = market

            def because() -> Reason:
                here = {f"stay on lease {lease.lease_id}": lease.market, "spot": target}
                return self._reason(view, job, "a move there costs less than it saves (III-A)", here, target)

            yield Request(market, list_price(view, market), job=job.job_id, because=because)
            if not self.overlap:
                view.memory.setdefault("left", []).append(lease.lease_id)
                yield Release(lease.lease_id, because=Reason("its job moves to a cheaper market"))
        if self.when is not MoveWhen.CHEAPER:
            yield WakeAt(self._next_look_s(view, lease))

    def _next_look_s(self, view: View, lease: LeaseView) -> float:
        """Time to consider a move next: early enough to leave the machine by the end of a charged period."""
        period_s = view.billing.period_s
        if period_s < LOOK_S:
            look_s = view.now_s + LOOK_S
        else:
            vcpus = view.machine(lease.market).vcpus
            saving_s = max(job.job.save_s(vcpus, lease.market.place) for job in view.jobs)
            lead_s = self.lead_s + saving_s + MARGIN_S
            begun = math.floor((view.now_s + lead_s - lease.started_s + 1e-6) / period_s)
            look_s = lease.started_s + (begun + 1) * period_s - lead_s
        view.memory.setdefault("looks", {})[str(lease.lease_id)] = look_s
        return look_s

    def _pays(self, view: View, job: JobView, lease: LeaseView, market: Market) -> bool:
        """Return whether a move pays by the rule of `when`."""
        if self.when is not MoveWhen.WORTHWHILE:
            risk = self._risk(view)
            return usd_per_step(view, job.job, market, risk) < usd_per_step(view, job.job, lease.market)
        stay_s, risk = self.stay_h * HOUR_S, self._risk(view)
        plan = MovePlan(self.overlap, self.lead_s, self.boot_s, stay_s, self.moves_per_day, risk)
        return plan.saving_usd(view, job, lease, market) > 0.0


def _stays(view: View, lease: LeaseView) -> bool:
    """Return whether a lease is neither being revoked nor being released."""
    return math.isinf(lease.revoke_at_s) and lease.lease_id not in view.memory.get("left", ())
