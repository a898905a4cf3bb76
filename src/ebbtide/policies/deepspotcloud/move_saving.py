"""What a move to another machine saves: a lower price for the work that is left, against the time of setting up
there, egress, and charged periods that are left or begun."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ebbtide._utc import DAY_S, HOUR_S
from ebbtide.market.markets import Market
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View


@dataclass(frozen=True)
class MovePlan:
    """How a move is made and reckoned.

    Attributes:
        overlap: The old machine trains until the new one has booted.
        lead_s: For so long, then, after the new one was asked for.
        boot_s: For so long the new one is charged before it can restore.
        horizon_s: Of more work than this, only so much counts: a price tells little of times further ahead.
        moves_per_day: How many more moves to reckon with. What they take may find room in the job's last charged
            period, which is paid for as a whole; so far as it does, time that is lost costs nothing.
    """

    overlap: bool
    lead_s: float
    boot_s: float
    horizon_s: float
    moves_per_day: float

    def saving_usd(self, view: View, job: JobView, lease: LeaseView, market: Market) -> float:
        """What the job would cost less if it moved to a market now; negative: more."""
        period_s = view.billing.period_s
        here, there = view.price(lease.market) / HOUR_S, view.price(market) / HOUR_S
        rate = view.steps_per_s(job.job, lease.market)
        faster = view.steps_per_s(job.job, market) / rate
        old, new = view.machine(lease.market).vcpus, view.machine(market).vcpus
        save_s = job.job.save_s(old)
        setting_up_s = self.boot_s + job.job.restore_s(new, lease.market.place, market.place)
        setting_up_s += save_s if self.overlap else 0.0
        work_s = job.steps_left / rate
        paid_until_s = lease.started_s + _whole(view.now_s - lease.started_s, period_s)
        left_s = view.now_s + work_s + save_s - paid_until_s
        if left_s <= 0.0:
            # The job ends in time that is paid for.
            return -math.inf
        if left_s <= self.horizon_s:
            stay_usd = here * _whole(left_s, period_s)
            working_s = max(work_s - self.lead_s, 0.0) / faster + job.job.save_s(new)
            move_usd = there * _whole(setting_up_s + working_s, period_s)
        else:
            lost_s = setting_up_s + max(paid_until_s - view.now_s - self.lead_s, 0.0)
            moving_s = max(self.moves_per_day * left_s / DAY_S, 1.0) * lost_s
            room = min((_whole(left_s, period_s) - left_s) / moving_s, 1.0)
            stay_usd = here * self.horizon_s
            move_usd = there * (self.horizon_s / faster + (1.0 - room) * lost_s)
        # If the old machine is not free by the end of its period, another is begun.
        freed_s = view.now_s + self.lead_s + save_s
        move_usd += here * max(lease.started_s + _whole(freed_s - lease.started_s, period_s) - paid_until_s, 0.0)
        return stay_usd - move_usd - egress_usd(view, job, lease.market, market)


def egress_usd(view: View, job: JobView, source: Market, destination: Market) -> float:
    """What bringing the job's data from one market to another costs."""
    checkpoint, dataset = job.job.checkpoint, job.job.dataset
    usd = 0.0 if checkpoint is None else view.egress_usd(checkpoint.size_bytes, source.place, destination.place)
    if dataset is not None and not job.has_dataset(destination.cloud):
        usd += view.egress_usd(dataset.size_bytes, dataset.home, destination.place)
    return usd


def _whole(seconds: float, period_s: float) -> float:
    """Rounded up to whole periods."""
    return math.ceil(seconds / period_s - 1e-9) * period_s
