"""DeepSpotCloud's instance recommender (III-C, IV-D): where a job is best put now.

It goes by the prices of the moment: those of the past told the authors, and us, no better place.
"""

from __future__ import annotations

from ebbtide._utc import HOUR_S
from ebbtide.jobs.job import Job
from ebbtide.market.markets import Market
from ebbtide.policies.api.quotes import Quotes
from ebbtide.policies.moving import list_price


def recommend(quotes: Quotes, job: Job) -> Market | None:
    """The market of the least price for a step, of those not above the list price; None: there is none."""
    return min(usable(quotes, job), key=lambda market: (usd_per_step(quotes, job, market), market), default=None)


def ranked(quotes: Quotes, job: Job) -> list[Market]:
    """All markets that `recommend` may name, the best first."""
    return sorted(usable(quotes, job), key=lambda market: (usd_per_step(quotes, job, market), market))


def usable(quotes: Quotes, job: Job) -> list[Market]:
    """The markets where the job can run, and where spot is not above the list price."""
    return [
        market
        for market in quotes.markets
        if quotes.steps_per_s(job, market) > 0 and quotes.price(market) <= list_price(quotes, market)
    ]


def usd_per_step(quotes: Quotes, job: Job, market: Market) -> float:
    """What a step of the job costs in a market at its price now."""
    return quotes.price(market) / HOUR_S / quotes.steps_per_s(job, market)
