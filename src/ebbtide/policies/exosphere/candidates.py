"""Markets that a portfolio may be made of, and what is known of each (ExoSphere 3.2, 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import numpy as np

from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats, PriceSeries
from ebbtide.market.prices import PriceHistory


@dataclass(frozen=True, eq=False)
class Candidates:
    """What a span of a record says of markets; a value each, shape (n,).

    Attributes:
        markets: Which.
        on_demand_usd: The list price, USD per hour: what is bid, and what savings are measured by.
        is_listed: Whether that price is known; else it is the highest that the market's type had in its region
            within the span. Spot has not been dearer than on demand since 2017: so savings are rather too low.
        mean_usd: E[S], over all time.
        mean_paid_usd: E[S] while the price was at or below the bid: what is really paid.
        rented_s: Time at or below the bid.
        revocations: How often a machine was taken: once for each time that the price rose above the bid.
    """

    markets: tuple[Market, ...]
    on_demand_usd: Floats
    is_listed: np.ndarray
    mean_usd: Floats
    mean_paid_usd: Floats
    rented_s: Floats
    revocations: np.ndarray

    @property
    def returns(self) -> Floats:
        """Savings on on demand, over all time (Equation 2)."""
        return 1.0 - self.mean_usd / self.on_demand_usd

    @property
    def returns_paid(self) -> Floats:
        """Savings of who pays no more than the bid."""
        return 1.0 - self.mean_paid_usd / self.on_demand_usd

    @property
    def mttr_s(self) -> Floats:
        """Mean time to revocation: time rented over revocations seen; infinity where none was.

        So the time of those not yet taken at the end counts, though their end is not known (the exponential
        law's estimate).
        """
        found = np.full(len(self.markets), np.inf)
        np.divide(self.rented_s, self.revocations, out=found, where=self.revocations > 0)
        return found

    def where(self, wanted: Callable[[Market], bool], *, least_mttr_s: float = 0.0) -> Candidates:
        """Those that meet an application's constraints, and live long enough for its jobs.

        Raises:
            InputError: None does.
        """
        kept = [place for place, market in enumerate(self.markets) if wanted(market)]
        # Where no revocation was seen it is known to be as long as was watched, and no more.
        known_s = np.where(self.revocations > 0, self.mttr_s, self.rented_s)
        kept = [place for place in kept if known_s[place] >= least_mttr_s]
        if not kept:
            needed = f"a mean time to revocation of {least_mttr_s:g} s"
            raise InputError(f"no market meets the constraints and {needed}")
        return self.take(kept)

    def take(self, places: Iterable[int]) -> Candidates:
        """Some of them, by place."""
        chosen = np.array(list(places), dtype=np.int64)
        arrays = (getattr(self, field.name)[chosen] for field in fields(self)[1:])
        return Candidates(tuple(self.markets[place] for place in chosen.tolist()), *arrays)


def assess(prices: PriceHistory, catalogue: Catalogue, start_s: float, end_s: float) -> Candidates:
    """What a span says of every market that has a price from its start on.

    Args:
        prices: The record.
        catalogue: List prices.
        start_s: The span's start.
        end_s: Its end.

    Raises:
        InputError: The span is empty, or no market has a price at its start.
    """
    if not start_s < end_s:
        raise InputError("the span that markets are judged by is empty")
    chosen = [market for market, series in prices.items() if series.times_s[0] <= start_s]
    if not chosen:
        raise InputError("no market has a price at the start of the span")
    highest: dict[tuple[str, str, str], float] = {}
    for market in chosen:
        _, seen = prices[market].between(start_s, end_s)
        kind = (market.cloud, market.region, market.instance_type)
        highest[kind] = max(highest.get(kind, 0.0), float(seen.max()))
    rows = []
    for market in chosen:
        listed = catalogue.on_demand_usd_per_hour(market, end_s)
        bid = listed or highest[market.cloud, market.region, market.instance_type]
        rows.append((bid, listed is not None, *_seen(prices[market], start_s, end_s, bid)))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Candidates(tuple(chosen), *columns)


def _seen(series: PriceSeries, start_s: float, end_s: float, bid: float) -> tuple[float, float, float, int]:
    """Mean price, mean price at or below the bid, time there, rises above it."""
    times_s, usd = series.between(start_s, end_s)
    lasted_s = np.diff(np.append(times_s, end_s))
    low = usd <= bid
    rented_s = float(lasted_s[low].sum())
    mean = float(usd @ lasted_s) / (end_s - start_s)
    paid = float(usd[low] @ lasted_s[low]) / rented_s if rented_s else bid
    return mean, paid, rented_s, int((low[:-1] & ~low[1:]).sum())
