"""Markets where a job could train now, by cost per step, with the chances to get and to keep a machine there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.hazard.chances import MarketChances, evidence_of
from ebbtide.forecasts.hazard.model import Hazard, default_hazard
from ebbtide.forecasts.hazard.observations import MarketObservations
from ebbtide.jobs.job import Job
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.quotes import KnownQuotes
from ebbtide.policies.deepspotcloud.policy import ranked, usd_per_step


@dataclass(frozen=True, kw_only=True)
class MarketNow:
    """A market where a job could train now.

    Attributes:
        market: The market.
        usd_per_hour: Its spot price, USD per hour.
        on_demand_usd_per_hour: Its list price, USD per hour; None: not known.
        work_h: Hours that the job takes there.
        usd: Cost of the job there at these prices, USD.
        chances: The chances to be granted a machine, and to keep it.
    """

    market: Market
    usd_per_hour: float
    on_demand_usd_per_hour: float | None
    work_h: float
    usd: float
    chances: MarketChances


def markets_now(
    job: Job,
    prices: PriceHistory,
    catalogue: Catalogue,
    observations: Iterable[MarketObservations] = (),
    hazard: Hazard | None = None,
) -> list[MarketNow]:
    """Rank the markets for a job at the end of a price history, without those above their list price.

    Args:
        job: The job.
        prices: Prices up to now.
        catalogue: Instance types and their list prices.
        observations: What was seen of the markets' capacity.
        hazard: Gives the chances; None: that of public records.

    Returns:
        The markets, the lowest cost per step first (DeepSpotCloud, section 3).

    Raises:
        InputError: The job can run in none of them.
    """
    quotes = _quotes(prices, catalogue)
    hazard = hazard or default_hazard()
    evidence = evidence_of(hazard, observations, quotes.now_s)
    found = []
    for market in ranked(quotes, job):
        work_s = job.steps / quotes.steps_per_s(job, market)
        found.append(
            MarketNow(
                market=market,
                usd_per_hour=quotes.price(market),
                on_demand_usd_per_hour=quotes.on_demand_price(market),
                work_h=work_s / HOUR_S,
                usd=job.steps * usd_per_step(quotes, job, market),
                chances=MarketChances.of(hazard, evidence, market, quotes.now_s, work_s),
            )
        )
    if not found:
        raise InputError(f"job {job.name} can run in no market of these prices below the list price")
    return found


def cheapest_on_demand(markets: Sequence[MarketNow]) -> Market | None:
    """The market with the lowest cost of the job on demand; None: no list price is known."""
    listed = [(usd * one.work_h, one.market) for one in markets if (usd := one.on_demand_usd_per_hour) is not None]
    return min(listed)[1] if listed else None


def _quotes(prices: PriceHistory, catalogue: Catalogue) -> KnownQuotes:
    last = {market: series.at(prices.end_s) for market, series in prices.items()}
    return KnownQuotes({one: usd for one, usd in last.items() if not math.isnan(usd)}, catalogue, prices.end_s)
