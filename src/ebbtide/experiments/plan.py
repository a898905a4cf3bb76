"""Plans: what a sweep would rent now and why, what it may cost and how long it may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ebbtide.market.markets import Market
from ebbtide.policies.offers import Offer
from ebbtide.utc import iso


@dataclass(frozen=True)
class Quote:
    """A market now.

    Attributes:
        market: Which.
        usd_per_hour: The spot price now.
        mean_usd_per_hour: Of the last hour.
        on_demand_usd_per_hour: The list price, if it is known.
    """

    market: Market
    usd_per_hour: float
    mean_usd_per_hour: float
    on_demand_usd_per_hour: float | None


@dataclass(frozen=True)
class Spread:
    """Mean, and the range that nine of ten backtests fall into."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of values, of which there is at least one."""
        low, high = np.quantile(values, [0.05, 0.95])
        return cls(float(np.mean(values)), float(low), float(high))


@dataclass(frozen=True)
class Estimate:
    """What backtests on recent history say.

    Attributes:
        runs: How many.
        unfinished: Of them, those that found no end within the record.
        cost_usd: Of those that did, without the budget's cap.
        duration_h: The same.
        over_budget: Share of all that cost more than the budget; None: there is none.
        past_deadline: Share of all that ended after the deadline; None: there is none.
        rivals_usd: Mean cost of training every trial to its end, by policy; None: no run ended.
    """

    runs: int
    unfinished: int
    cost_usd: Spread
    duration_h: Spread
    over_budget: float | None
    past_deadline: float | None
    rivals_usd: dict[str, float | None]


@dataclass(frozen=True)
class Plan:
    """What is known before anything is spent.

    Attributes:
        sweep: Its name.
        trials: How many.
        as_of_s: The last moment of the prices.
        quotes: Of the allowed markets, cheapest first.
        offers: For one trial, the least expected cost of a step first; empty: speed is not measured, or capacity
            decides.
        estimate: None: speed is not measured.
        notes: What the user should know.
    """

    sweep: str
    trials: int
    as_of_s: float
    quotes: tuple[Quote, ...]
    offers: tuple[Offer, ...]
    estimate: Estimate | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        quotes = [asdict(quote) | {"market": str(quote.market)} for quote in self.quotes]
        offers = [asdict(offer) | {"market": str(offer.market)} for offer in self.offers]
        return {
            "sweep": self.sweep,
            "trials": self.trials,
            "as_of": iso(self.as_of_s),
            "quotes": quotes,
            "offers": offers,
            "estimate": None if self.estimate is None else asdict(self.estimate),
            "notes": list(self.notes),
        }
