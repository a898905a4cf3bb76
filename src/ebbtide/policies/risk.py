"""Risk of losing machines as policies ask it: a hazard, with what the run itself has seen of its markets.

Where the price takes machines, as in the auctions of EC2, prices tell about capacity, too, and policies have
forecasts of the price. There the hazard counts only once the run has seen a market refuse or take a machine at a
price that was high enough, or, for cookbooks, in markets whose price never was above the list price.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.forecasts.hazard.evidence import Evidence, cloud_of, region_of
from ebbtide.forecasts.hazard.model import Hazard, Price
from ebbtide.jobs.checkpoint_interval import best_interval_s, fits_notice
from ebbtide.jobs.job import Job
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.events import Event, Wake
from ebbtide.policies.api.records import LeaseView
from ebbtide.policies.api.view import View

# Time ahead for which losses are weighed, seconds.
_AHEAD_S = 6 * HOUR_S

# Time of training that a refused request counts for, seconds.
_REFUSED_S = 60.0

# Work that a loss costs where nothing is saved, seconds: machines that are lost in the next hour had half of it,
# and what went before.
_UNSAVED_S = 0.5 * HOUR_S

# Details of events by which a machine was refused or taken for another reason than capacity.
_OTHER_REASONS = ("price", "lifetime", "asked for")

# Correlation of markets in having no machine, and share of losses that come together: with the same machines in
# one region, and in other regions of a cloud. Means of recorded pairs: 0.36 and 0.13 of V100 on EC2 in 2023, 0.13
# and 0.03 of H100 on GCP in 2025; 0.09 and 0.02, 0.10 and 0.03 of losses.
SHORTAGES_TOGETHER = (0.25, 0.08)
LOSSES_TOGETHER = (0.1, 0.025)


@dataclass(frozen=True, eq=False)
class MarketRisk:
    """The risk of markets at one moment of a run.

    Attributes:
        view: What the policy sees.
        hazard: The hazard; None: capacity takes no machine, as the published policies have it.
        evidence: What the run has seen.
        from_start: Markets in which capacity counts from the start, though the price takes machines.
    """

    view: View
    hazard: Hazard | None
    evidence: Evidence
    from_start: Container[Market] = ()
    _known: dict[tuple[Market, float], float] = field(default_factory=dict)

    @classmethod
    def now(cls, view: View, hazard: Hazard | None, from_start: Container[Market] = ()) -> MarketRisk:
        """The risk now; what the events and the held machines show is kept in the policy's memory."""
        if hazard is None:
            return cls(view, None, Evidence())
        found = cls(view, hazard, Evidence.in_memory(view.memory), from_start)
        found._observe(hazard)
        return found

    def _observe(self, hazard: Hazard) -> None:
        """Keep what the events of this decision and the held machines show, each once."""
        seen: dict[str, Any] = self.view.memory.setdefault(
            "observed", {"time_s": -np.inf, "events": [], "noticed": []}
        )
        is_first = seen["time_s"] != self.view.now_s
        if is_first:
            seen |= {"time_s": self.view.now_s, "events": []}
        events = [
            event
            for event in self.view.events
            if event.lease_id >= 0 and [str(event.wake), event.lease_id] not in seen["events"]
        ]
        if not is_first and not events:
            return
        seen["events"] += [[str(event.wake), event.lease_id] for event in events]
        held = {
            lease.market for lease in self.view.leases if not lease.on_demand and lease.state is LeaseState.RUNNING
        }
        for event in events:
            self._observe_event(hazard, event, held, seen["noticed"])
        for market in held if is_first else ():
            hazard.observe(self.evidence, market, self.view.now_s, is_up=True, is_held=True)

    def _observe_event(self, hazard: Hazard, event: Event, held: set[Market], noticed: list[int]) -> None:
        lease = self.view.lease(event.lease_id)
        if lease.on_demand:
            return
        if event.wake is Wake.LAUNCH_FAILED:
            # That there is no further machine says little of those that run.
            if lease.market not in held and self._is_of_capacity(lease, event):
                hazard.observe(self.evidence, lease.market, self.view.now_s, is_up=False)
        elif event.wake is Wake.NOTICE or (event.wake is Wake.ENDED and lease.state is LeaseState.REVOKED):
            # Its price is that at the notice, not at the end.
            if event.lease_id in noticed:
                noticed.remove(event.lease_id)
            elif self._is_of_capacity(lease, event):
                if lease.market in held:
                    self.evidence.count_loss(lease.market, self.view.now_s)
                else:
                    hazard.observe(self.evidence, lease.market, self.view.now_s, is_up=False, is_held=True)
            if event.wake is Wake.NOTICE:
                noticed.append(event.lease_id)

    def _is_of_capacity(self, lease: LeaseView, event: Event) -> bool:
        """Return whether a lease was refused or taken for capacity: not for its price or age, nor on request."""
        is_of_price = self.view.price(lease.market) > lease.max_price_usd_per_hour
        may_be = not is_of_price or not self.view.billing.of(lease.market.cloud).price_revokes
        return may_be and not any(word in event.detail for word in _OTHER_REASONS)

    def counts(self, market: Market) -> bool:
        """Return whether capacity counts in a market: always where the price takes no machines."""
        if self.hazard is None:
            return False
        is_by_price = self.view.billing.of(market.cloud).price_revokes and market not in self.from_start
        return not is_by_price or self.has_seen(market)

    def knows(self, market: Market) -> bool:
        """Return whether capacity counts, and is that of GPUs, as in the records, or was seen by the run itself.

        Other machines are much less scarce than GPUs.
        """
        return self.counts(market) and (self.view.machine(market).accelerator_count > 0 or self.has_seen(market))

    def has_seen(self, market: Market) -> bool:
        """Return whether the run has seen a market, or its region, refuse or take a machine for capacity."""
        ends = self.evidence.ends.get(region_of(market))
        return self.is_refused(market) or (ends is not None and ends[2] > 0.0)

    def losses(self, market: Market, within_s: float = HOUR_S) -> float:
        """Losses of a machine for capacity that are expected within some time, as old as its market's spell is."""
        if self.hazard is None or not self.counts(market):
            return 0.0
        if (market, within_s) not in self._known:
            self._known[market, within_s] = self.hazard.expected_losses(
                self.evidence, market, self.view.now_s, self._age_s(market), within_s, self._price(market)
            )
        return self._known[market, within_s]

    def life_s(self, market: Market) -> float:
        """Mean time until capacity takes a machine, seconds; infinity: it takes none."""
        if self.hazard is None or not self.counts(market):
            return np.inf
        now_s = self.view.now_s
        return self.hazard.life_s(self.evidence, market, now_s, self._age_s(market), self._price(market))

    def is_refused(self, market: Market) -> bool:
        """Return whether the last that the run has seen of a market is that it refused or took a machine."""
        spell = self.evidence.spell(market)
        return spell is not None and not spell.is_up

    def share_down(self, market: Market) -> float:
        """The share of time in which a market has no machine, in the long run."""
        if self.hazard is None or not self.counts(market):
            return 0.0
        return self.hazard.share_down(market, self.hazard.seen_level(self.evidence, market))

    def overhead(self, job: Job, market: Market, start_s: float, *, is_saved: bool = False) -> float:
        """Time that losses of the next hours are expected to cost a job, as a share of them.

        A loss costs a start, a restore and, where no checkpoint fits between notice and revocation, the work since
        the last one. A request that is refused costs a little: it takes time, and no money.

        Args:
            job: The job to run.
            market: The market.
            start_s: Time that a machine takes to start, seconds.
            is_saved: Whether the policy has the job saved at the interval of least loss; else as its file says.
        """
        if not self.counts(market):
            return 0.0
        # A young machine is often lost in its first hour: a move is made for longer than that.
        vcpus, losses = self.view.machine(market).vcpus, self.losses(market, _AHEAD_S) * HOUR_S / _AHEAD_S
        lost_s = start_s + job.restore_s(vcpus)
        if not fits_notice(job, self.view.billing.of(market.cloud).notice_s, vcpus, market.place):
            interval_s = job.checkpoint.interval_s if job.checkpoint else None
            if is_saved and job.checkpoint is not None and losses > 0.0:
                # A save in each interval takes as long as the work that is lost.
                interval_s = 2.0 * best_interval_s(max(job.save_s(vcpus, market.place), 1.0), HOUR_S / losses)
            lost_s += _UNSAVED_S if interval_s is None else 0.5 * interval_s
        return (losses * lost_s + self.refused(market) * _REFUSED_S) / HOUR_S

    def refused(self, market: Market) -> float:
        """The chance that a request is refused now; 0 where the policy holds a machine."""
        if self.hazard is None or not self.counts(market):
            return 0.0
        spell = self.evidence.spell(market)
        if spell is not None and spell.is_up and spell.seen_s == self.view.now_s:
            return 0.0
        return self.hazard.refused(self.evidence, market, self.view.now_s, self._price(market)).value

    def text(self, market: Market) -> str:
        """Chances of a spot machine and the data that they come from, in words; empty: capacity does not count.

        Args:
            market: The market.
        """
        if self.hazard is None or not self.counts(market):
            return ""
        seen = self.evidence.ends.get(region_of(market), [0.0] * 4)
        of_run = f" and this run: {seen[2]:g} losses there, {seen[3]:.2g} expected" if seen[3] or seen[2] else ""
        return (
            f"; capacity refuses it with probability {self.refused(market):.3f}, takes it within the hour with "
            f"{-np.expm1(-self.losses(market)):.3f} (hazard of {len(self.hazard.learnt_from)} records{of_run})"
        )

    def _age_s(self, market: Market) -> float:
        assert self.hazard is not None
        return self.hazard.likely_age_s(self.evidence, market, self.view.now_s)

    def _price(self, market: Market) -> Price:
        """Its price against that of the day; what it is of on demand only tells where the price takes machines."""
        mean, price = self.view.mean_price(market, 24 * HOUR_S), self.view.price(market)
        return Price(of_day=price / mean) if mean > 0.0 and price > 0.0 else Price()


def together(markets: Sequence[Market], sizes: Floats, shares: tuple[float, float]) -> Floats:
    """A covariance of markets of which those of a region, and less so those of a cloud, move together.

    It is positive semidefinite: a sum of one variance for each market, one for each region and one for each cloud.

    Args:
        markets: The markets, n of them.
        sizes: Standard deviation of each, shape (n,).
        shares: Correlation within a region, and between regions.
    """
    in_region, in_cloud = shares
    regions = _same([region_of(market) for market in markets])
    clouds = _same([cloud_of(market) for market in markets])
    alike = (1.0 - in_region) * np.eye(len(markets)) + (in_region - in_cloud) * regions + in_cloud * clouds
    found: Floats = alike * np.outer(sizes, sizes)
    return found


def _same(names: Sequence[str]) -> Floats:
    numbers: Mapping[str, int] = {name: number for number, name in enumerate(dict.fromkeys(names))}
    each = np.array([numbers[name] for name in names])
    found: Floats = (each[:, None] == each).astype(np.float64)
    return found
