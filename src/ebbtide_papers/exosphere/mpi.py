"""A job that fails with any lost machine: markets by cost only or by time to revocation (4.2, Figure 10)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.jobs.job import Job
from ebbtide.market.billing import billing_preset
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.price_series import Floats
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.exosphere.allocation import CoresAndMemory
from ebbtide.policies.exosphere.applications import Mpi
from ebbtide.policies.exosphere.master import ExoSphere
from ebbtide.policies.exosphere.portfolio import Selection
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import StartDelay

LENGTH_H = 4.0
VCPUS = 40
EVERY_S = 6 * HOUR_S

# Risk aversion for the high diversity of Figure 10.
_DIVERSE_ALPHA = 1e3
_ROOM_S = 5 * 24 * HOUR_S
_DELAY = StartDelay(20.0, 280.0)


def mpi_study(
    prices: PriceHistory, split_s: float, catalogue: Catalogue, *, every_s: float = EVERY_S
) -> dict[str, dict[str, Any]]:
    """Mean relative extra time over a run without losses, over starts on later days; None: no run ended.

    Args:
        prices: Price history of the markets.
        split_s: Start of the later days, seconds since 1970; markets are chosen by the past before each start.
        catalogue: Instance types and their list prices.
        every_s: Time between starts, seconds.
    """
    cores = CoresAndMemory(VCPUS, 0.0)
    length_s = LENGTH_H * HOUR_S
    policies = {
        "mttr": ExoSphere((Mpi(cores, length_s),)),
        "cost": ExoSphere((Mpi(cores),), selection=Selection.CHEAPEST),
        "cost_now": ExoSphere((Mpi(cores),), selection=Selection.LOWEST_COST),
        "mttr_diverse": ExoSphere((Mpi(cores, length_s, alpha=_DIVERSE_ALPHA),)),
    }
    starts = np.arange(split_s, prices.end_s - _ROOM_S, every_s)
    return {name: _overhead(prices, policy, starts, catalogue) for name, policy in policies.items()}


def _overhead(prices: PriceHistory, policy: ExoSphere, starts: Floats, catalogue: Catalogue) -> dict[str, Any]:
    job = Job.parse(
        {
            "name": "mpi",
            "steps": round(LENGTH_H * HOUR_S),
            "other_steps_per_hour_per_vcpu": HOUR_S / VCPUS,
            "machines": {"min": 1, "max": VCPUS},
            "checkpoint": None,
        },
        catalogue=catalogue,
    )
    scenario = Scenario((job,), prices, billing_preset("ec2-hourly"), delay=_DELAY, catalogue=catalogue)
    outcomes = [scenario.run(policy, start_s) for start_s in starts.tolist()]
    ended = [outcome.makespan_s / _unharmed_s(outcome, catalogue) for outcome in outcomes if outcome.finished]
    chosen = Counter(str(outcome.leases[0].market) for outcome in outcomes if outcome.leases)
    return {
        "markets": dict(chosen.most_common()),
        "overhead": float(np.mean(ended)) - 1.0 if ended else None,
        "cost_usd": float(np.mean([outcome.cost_usd for outcome in outcomes])) if outcomes else None,
        "runs": len(ended),
        "unfinished": len(outcomes) - len(ended),
    }


def _unharmed_s(outcome: Outcome, catalogue: Catalogue) -> float:
    """Time of the run on its first machines without losses, seconds. They mostly have more cores than requested.

    If all markets are too expensive at the start, machines are requested later, and that time counts as lost.
    """
    asked_s = min(lease.requested_s for lease in outcome.leases)
    first = [lease for lease in outcome.leases if lease.requested_s == asked_s]
    vcpus = sum(catalogue.machine_of(lease.market).vcpus for lease in first)
    return _DELAY.request_s + _DELAY.boot_s + LENGTH_H * HOUR_S * VCPUS / vcpus
