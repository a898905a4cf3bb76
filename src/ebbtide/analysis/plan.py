"""Plans: what a sweep would rent now and why, what it may cost and how long it may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from ebbtide._utc import iso
from ebbtide.market.markets import Market
from ebbtide.policies.spottune.offers import Offer

# A budget or deadline that is kept in so many backtests will do.
KEPT_SHARE = 0.95


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
        rivals_stopping_early_usd: The same with as many trials ended at theta as ours end there: what spot alone
            saves. Empty: no trial is ended early.
    """

    runs: int
    unfinished: int
    cost_usd: Spread
    duration_h: Spread
    over_budget: float | None
    past_deadline: float | None
    rivals_usd: dict[str, float | None]
    rivals_stopping_early_usd: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Feasibility:
    """Whether the budget and the deadline will do; and if not, what would.

    Attributes:
        feasible: Both are kept in at least `KEPT_SHARE` of the backtests.
        fastest_h: By arithmetic: the steps of a trial on the fastest machine, and its start. No plan ends sooner.
        fastest_on: The market of that machine.
        least_budget_usd: The least that is kept in that share of backtests, with the deadline that was asked for
            if that can be kept, else with none; None: all is feasible, or none was found.
        least_budget_takes_h: Hours in which that share of those backtests ended.
        least_deadline_h: The least that is kept in that share of backtests, whatever it costs; None: as above.
        least_deadline_costs_usd: The budget that goes with it.
    """

    feasible: bool
    fastest_h: float
    fastest_on: Market
    least_budget_usd: float | None = None
    least_budget_takes_h: float | None = None
    least_deadline_h: float | None = None
    least_deadline_costs_usd: float | None = None


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
        feasibility: None: speed is not measured.
    """

    sweep: str
    trials: int
    as_of_s: float
    quotes: tuple[Quote, ...]
    offers: tuple[Offer, ...]
    estimate: Estimate | None
    notes: tuple[str, ...]
    feasibility: Feasibility | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: the same keys for every plan; `feasible` is None where speed is not measured."""
        unknown: dict[str, Any] = {each.name: None for each in fields(Feasibility)}
        feasibility = unknown if self.feasibility is None else asdict(self.feasibility)
        if self.feasibility:
            feasibility["fastest_on"] = str(self.feasibility.fastest_on)
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
            **feasibility,
        }
