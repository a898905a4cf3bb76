"""A job that any lost machine ends: by cost alone or by time to revocation (ExoSphere 4.2, Figure 10)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.execution.start_delay import StartDelay
from ebbtide.experiments.scenario import Scenario
from ebbtide.market.billing import billing_preset
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.exosphere.candidates import Candidates
from ebbtide.policies.exosphere.cluster import HoldPortfolio
from ebbtide.utc import HOUR_S
from ebbtide.workloads.job import Job

LENGTH_H = 4.0
MACHINES = 10

# Only markets that live so many times as long as the job (6.2).
_LIVES = 2.0
_EVERY_S = 6 * HOUR_S
_ROOM_S = 5 * 24 * HOUR_S
_DELAY = StartDelay(20.0, 280.0)


def mpi_study(
    prices: PriceHistory, candidates: Candidates, split_s: float, catalogue: Catalogue
) -> dict[str, dict[str, Any]]:
    """Time over that of a run that loses nothing, less one, mean over starts on later days.

    Args:
        prices: The record.
        candidates: As its first part has them: by these a market is chosen.
        split_s: Where the later part begins.
        catalogue: List prices.
    """
    lasting = candidates.where(lambda _: True, least_mttr_s=_LIVES * LENGTH_H * HOUR_S)
    chosen = {
        "mttr": lasting.markets[int(lasting.returns.argmax())],
        "cost": candidates.markets[int(candidates.returns_paid.argmax())],
    }
    bids = dict(zip(candidates.markets, candidates.on_demand_usd.tolist(), strict=True))
    return {
        name: _overhead(prices.select([market]), market, bids[market], split_s, catalogue)
        for name, market in chosen.items()
    }


def _overhead(
    prices: PriceHistory, market: Market, bid: float, split_s: float, catalogue: Catalogue
) -> dict[str, Any]:
    job = Job.parse(
        {
            "name": "mpi",
            "steps": round(LENGTH_H * HOUR_S),
            "steps_per_hour": {market.instance_type: HOUR_S / MACHINES},
            "machines": MACHINES,
            "coupling": "gang",
            "checkpoint": None,
        },
        catalogue=catalogue,
    )
    scenario = Scenario((job,), prices, billing_preset("ec2-hourly"), delay=_DELAY, catalogue=catalogue)
    starts = np.arange(split_s, prices.end_s - _ROOM_S, _EVERY_S)
    # Who would begin while the price is above the bid waits, whatever the job.
    starts = starts[prices[market].at_each(starts) <= bid]
    bare_s = _DELAY.request_s + _DELAY.boot_s + LENGTH_H * HOUR_S
    outcomes = [scenario.run(HoldPortfolio({market: MACHINES}), start_s) for start_s in starts.tolist()]
    ended = [outcome.makespan_s / bare_s for outcome in outcomes if outcome.finished]
    return {
        "market": str(market),
        "overhead": float(np.mean(ended)) - 1.0 if ended else float("nan"),
        "runs": len(ended),
        "unfinished": len(outcomes) - len(ended),
    }
