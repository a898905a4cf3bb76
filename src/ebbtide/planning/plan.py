"""The plan of a sweep: what it would rent now and why, and its estimated cost and duration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from ebbtide.base import html as html
from ebbtide.base.utc import iso
from ebbtide.market.markets import Market
from ebbtide.planning.plan_places import PlanPlace
from ebbtide.policies.spottune.offers import Offer

# A budget or deadline is feasible if this share of the backtests keeps it.
KEPT_SHARE = 0.95
# Maximum number of markets in a notebook's table, the cheapest ones.
_MOST_QUOTES = 15


@dataclass(frozen=True)
class Quote:
    """The current prices of a market.

    Attributes:
        market: The market that is quoted.
        usd_per_hour: The current spot price, USD per hour.
        mean_usd_per_hour: Mean spot price of the last hour, USD per hour.
        on_demand_usd_per_hour: The list price, USD per hour; None: unknown.
    """

    market: Market
    usd_per_hour: float
    mean_usd_per_hour: float
    on_demand_usd_per_hour: float | None


@dataclass(frozen=True)
class PlanSpread:
    """Mean, 5th and 95th percentile of a value over backtests."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> PlanSpread:
        """The spread of one or more values."""
        low, high = np.quantile(values, [0.05, 0.95])
        return cls(float(np.mean(values)), float(low), float(high))


@dataclass(frozen=True)
class Estimate:
    """Cost and duration of a sweep, from backtests on recent history.

    Attributes:
        runs: The number of backtests.
        unfinished: Number of backtests that did not end within the record.
        cost_usd: Cost of finished backtests, USD, without the budget limit.
        duration_h: Duration of finished backtests, hours.
        over_budget: Share of all backtests that cost more than the budget; None: no budget.
        past_deadline: Share of all backtests that ended after the deadline; None: no deadline.
        rivals_usd: Mean cost of training every trial to its end, USD, by rival policy; None: no run ended.
        rivals_stopping_early_usd: Mean cost, USD, by rival policy, with as many trials ended at theta as in the
            plan, which compares machines alone. Empty: no trial is ended early.
        each_usd: Cost of each finished backtest, USD.
        each_h: Duration of each finished backtest, hours.
    """

    runs: int
    unfinished: int
    cost_usd: PlanSpread
    duration_h: PlanSpread
    over_budget: float | None
    past_deadline: float | None
    rivals_usd: dict[str, float | None]
    rivals_stopping_early_usd: dict[str, float | None] = field(default_factory=dict)
    each_usd: tuple[float, ...] = ()
    each_h: tuple[float, ...] = ()


@dataclass(frozen=True)
class Feasibility:
    """Feasibility of the budget and the deadline, and the lowest feasible ones.

    Attributes:
        feasible: Whether at least `KEPT_SHARE` of the backtests keeps both.
        fastest_h: Hours of one trial on the fastest machine, its start included. No plan ends sooner.
        fastest_on: The market of that machine.
        least_budget_usd: The lowest budget that this share of backtests keeps, USD, with the requested deadline if
            that is feasible, else without; None: budget and deadline are feasible, or none was found.
        least_budget_takes_h: Hours in which this share of those backtests ended.
        least_deadline_h: The lowest deadline that this share of backtests keeps, hours, at any cost; None: as
            above.
        least_deadline_costs_usd: The budget for that deadline, USD.
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
    """The plan of a sweep, before any money is spent.

    Attributes:
        sweep: Name of the sweep.
        trials: The number of trials.
        as_of_s: Time of the newest price, seconds since 1970.
        quotes: Prices of the allowed markets, cheapest first.
        offers: Offers for one trial, lowest expected cost of a step first; empty: speed is not measured, or
            capacity decides.
        estimate: Estimated cost and duration; None: speed is not measured.
        notes: Remarks for the user, one per line.
        feasibility: Feasibility of budget and deadline; None: speed is not measured.
        places: The markets that can run a trial, where capacity decides; empty: prices decide, or speed is not
            measured.
    """

    sweep: str
    trials: int
    as_of_s: float
    quotes: tuple[Quote, ...]
    offers: tuple[Offer, ...]
    estimate: Estimate | None
    notes: tuple[str, ...]
    feasibility: Feasibility | None = None
    places: tuple[PlanPlace, ...] = ()

    def _repr_html_(self) -> str:
        rows = [
            (
                str(quote.market),
                f"{quote.usd_per_hour:.4f}",
                f"{quote.mean_usd_per_hour:.4f}",
                "" if quote.on_demand_usd_per_hour is None else f"{quote.on_demand_usd_per_hour:.4f}",
            )
            for quote in self.quotes[:_MOST_QUOTES]
        ]
        headings = ("market", "USD an hour", "mean of the last hour", "on demand")
        left = len(self.quotes) - len(rows)
        notes = [f"and {left} more markets"] if left else []
        title = f"{self.sweep}: prices of {iso(self.as_of_s)}"
        return html.table(title, headings, rows, [*notes, *self._estimated(), *self.notes])

    def _estimated(self) -> list[str]:
        """Describe the estimate, one line per fact."""
        found = self.estimate
        if found is None:
            return []
        if found.unfinished == found.runs:
            lines = [f"none of {found.runs} backtests ended within the record"]
        else:
            usd, hours = found.cost_usd, found.duration_h
            lines = [
                f"{usd.mean:.2f} USD ({usd.low:.2f} to {usd.high:.2f}) and {hours.mean:.1f} h ({hours.low:.1f} to "
                f"{hours.high:.1f}), by {found.runs - found.unfinished} of {found.runs} backtests"
            ]
        rivals = [f"{name} {usd:.2f} USD" for name, usd in found.rivals_usd.items() if usd is not None]
        lines += [f"for comparison: {', '.join(rivals)}"] if rivals else []
        for share, what in (
            (found.over_budget, "cost more than the budget"),
            (found.past_deadline, "are too late"),
        ):
            lines += [] if share is None else [f"{share:.0%} {what}"]
        limit = self.feasibility
        if limit is not None and limit.least_budget_usd is not None:
            lines.append(f"the lowest budget that holds: {limit.least_budget_usd:.2f} USD")
        if limit is not None and limit.least_deadline_h is not None:
            lines.append(f"the lowest deadline that holds: {limit.least_deadline_h:.1f} h")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the same keys for every plan; without measured speed, `feasible` is None."""
        unknown: dict[str, Any] = {each.name: None for each in fields(Feasibility)}
        feasibility = unknown if self.feasibility is None else asdict(self.feasibility)
        if self.feasibility:
            feasibility["fastest_on"] = str(self.feasibility.fastest_on)
        quotes = [asdict(quote) | {"market": str(quote.market)} for quote in self.quotes]
        places = [asdict(place) | {"market": str(place.market)} for place in self.places]
        offers = [asdict(offer) | {"market": str(offer.market)} for offer in self.offers]
        return {
            "sweep": self.sweep,
            "trials": self.trials,
            "as_of": iso(self.as_of_s),
            "quotes": quotes,
            "offers": offers,
            "places": places,
            "estimate": None if self.estimate is None else asdict(self.estimate),
            "notes": list(self.notes),
            **feasibility,
        }
