"""A policy that does at random whatever policies may do: hedge, move, save, share, change its mind."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ebbtide.policies.api.actions import Action, Assign, Release, Request, Save, WakeAt, WakeAtStep
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View


@dataclass(frozen=True)
class Fickle:
    """Rents for every job, and now and then saves it, moves it, hedges it or releases its machine.

    A job that fills only a part of a machine is often placed beside another, or moved there now and then. A
    machine without a job may get one before the job that is leaving it has ended there.
    """

    name: str = "fickle"
    wakes_on: frozenset[Wake] = frozenset({Wake.PRICE, Wake.SAVED, Wake.REBALANCE})

    def decide(self, view: View) -> Iterable[Action]:
        random, given_back = view.random, set[int]()
        for job in view.jobs:
            if job.is_finished:
                continue
            leases, chance = view.leases_of(job.job_id), random.random()
            beside = [number for number in _beside(view, job) if number not in given_back]
            if beside and random.random() < (0.06 if leases else 0.7):
                yield Assign(job.job_id, [beside[int(random.integers(len(beside)))]])
                # One assignment per decision: later ones in the same decision would not see it.
                break
            if not leases or (chance < 0.04 and len(leases) < 2):
                market = view.markets[int(random.integers(len(view.markets)))]
                most = view.price(market) * random.uniform(1.02, 2.0) if random.random() < 0.6 else math.inf
                yield Request(market, most, on_demand=bool(random.random() < 0.25), job=job.job_id)
            elif chance < 0.10:
                yield Save(job.job_id)
            elif chance < 0.13:
                given_back.add(leases[0].lease_id)
                yield Release(leases[0].lease_id, save=bool(random.random() < 0.7))
            elif chance < 0.16 and len(leases) > 1:
                yield Assign(job.job_id, [leases[-1].lease_id])
            elif chance < 0.18:
                yield WakeAtStep(job.job_id, int(job.steps_done) + 5)
        used = {lease.lease_id for job in view.jobs for lease in view.leases_of(job.job_id)}
        for lease in view.leases:
            if lease.lease_id not in used and lease.is_booted and random.random() < 0.6:
                yield Release(lease.lease_id)
        yield WakeAt(view.now_s + float(random.uniform(10.0, 60.0)))


def _beside(view: View, job: JobView) -> list[int]:
    """Return ids of machines that have room for a job, beside others of the run or alone."""
    used = {lease.lease_id: 0.0 for lease in view.leases if lease.is_open and lease.is_booted}
    mine = {lease.lease_id for lease in view.leases_of(job.job_id)}
    for other in view.jobs:
        for lease in view.leases_of(other.job_id):
            if lease.is_open and not other.is_finished:
                used[lease.lease_id] = used.get(lease.lease_id, 0.0) + other.job.share
    return [
        number for number, share in sorted(used.items()) if number not in mine and share + job.job.share <= 1.0
    ]
