"""A policy that does whatever policies may do, at random: hedges, moves, saves, changes its mind."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ebbtide.policies.api.actions import Action, Assign, Release, Request, Save, WakeAt, WakeAtStep
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.view import View


@dataclass(frozen=True)
class Fickle:
    """Rents for every job, and now and then saves it, moves it, hedges it or gives its machine back."""

    name: str = "fickle"
    wakes_on: frozenset[Wake] = frozenset({Wake.PRICE, Wake.SAVED, Wake.REBALANCE})

    def decide(self, view: View) -> Iterable[Action]:
        random = view.random
        for job in view.jobs:
            if job.is_finished:
                continue
            leases, chance = view.leases_of(job.job_id), random.random()
            if not leases or (chance < 0.04 and len(leases) < 2):
                market = view.markets[int(random.integers(len(view.markets)))]
                most = view.price(market) * random.uniform(1.02, 2.0) if random.random() < 0.6 else math.inf
                yield Request(market, most, on_demand=bool(random.random() < 0.25), job=job.job_id)
            elif chance < 0.10:
                yield Save(job.job_id)
            elif chance < 0.13:
                yield Release(leases[0].lease_id, save=bool(random.random() < 0.7))
            elif chance < 0.16 and len(leases) > 1:
                yield Assign(job.job_id, [leases[-1].lease_id])
            elif chance < 0.18:
                yield WakeAtStep(job.job_id, int(job.steps_done) + 5)
        used = {lease.lease_id for job in view.jobs for lease in view.leases_of(job.job_id)}
        for lease in view.leases:
            if lease.lease_id not in used and lease.is_booted:
                yield Release(lease.lease_id)
        yield WakeAt(view.now_s + float(random.uniform(10.0, 60.0)))
