"""Prices of the moment, from wherever they are known: as much of a `View` as choosing a market needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ebbtide.jobs.checkpoint_interval import steps_per_s_with_saves
from ebbtide.jobs.job import Job
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market


class Quotes(Protocol):
    """Current prices of all markets, and the speed of jobs there."""

    @property
    def markets(self) -> Sequence[Market]:
        """All markets with a price now."""
        ...

    def price(self, market: Market) -> float:
        """Its spot price now, USD per hour; NaN where there is none."""
        ...

    def on_demand_price(self, market: Market) -> float | None:
        """The list price, USD per hour, or None where it is not known."""
        ...

    def steps_per_s(self, job: Job, market: Market) -> float:
        """The job's rate on one machine of the market, with its saves in between; 0 where it cannot run."""
        ...


@dataclass(frozen=True)
class KnownQuotes:
    """Quotes outside of a run: from a price store, or from a record at a time.

    Attributes:
        prices: USD per hour by market.
        catalogue: Catalogue with the list prices.
        now_s: Time of the list prices, seconds since 1970.
    """

    prices: Mapping[Market, float]
    catalogue: Catalogue
    now_s: float

    @property
    def markets(self) -> Sequence[Market]:
        return sorted(self.prices)

    def price(self, market: Market) -> float:
        return self.prices[market]

    def on_demand_price(self, market: Market) -> float | None:
        return self.catalogue.on_demand_usd_per_hour(market, self.now_s)

    def steps_per_s(self, job: Job, market: Market) -> float:
        return steps_per_s_with_saves(job, market, self.catalogue)
