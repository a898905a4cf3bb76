"""DeepSpotCloud's instance recommender (III-C, IV-D): where a job is best put now.

It goes by the prices of the moment: those of the past told the authors, and us, no better place.
"""

from __future__ import annotations

from ebbtide.market.markets import Market
from ebbtide.policies.moving import list_price
from ebbtide.policies.view import View
from ebbtide.utc import HOUR_S
from ebbtide.workloads.job import Job


def recommend(view: View, job: Job) -> Market | None:
    """The market of the least price for a step, of those where spot is not above the list price; None: there is
    none."""
    usable = [
        market
        for market in view.markets
        if view.steps_per_s(job, market) > 0 and view.price(market) <= list_price(view, market)
    ]
    return min(usable, key=lambda market: (usd_per_step(view, job, market), market), default=None)


def usd_per_step(view: View, job: Job, market: Market) -> float:
    """What a step of the job costs in a market at its price now."""
    return view.price(market) / HOUR_S / view.steps_per_s(job, market)
