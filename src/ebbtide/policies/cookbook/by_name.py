"""Cümülön-D's policies by name: each solves its own cookbook from the prices that it sees, and follows it.

The market is the one whose cookbook costs least in the mean, of those whose work has been cheapest (7: the best
machine type is the best of those that were each optimised alone).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.hazard.model import Hazard, default_hazard
from ebbtide.jobs.job import Job
from ebbtide.jobs.workflow import Workflow
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.api.actions import Action, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.goals import Goals, unknown_work
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View, run_started_s
from ebbtide.policies.cookbook.bids import Bids
from ebbtide.policies.cookbook.cluster import RunCluster
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.cookbook.from_prices import (
    LEAST_HISTORY_S,
    TICK_S,
    Shortages,
    StepCharges,
    solved_from_prices,
    workflow_of,
)
from ebbtide.policies.cookbook.policy import FollowCookbook
from ebbtide.policies.field_checks import check_fields
from ebbtide.policies.risk import MarketRisk

# A cookbook has no more holdings: numbers of machines by when each was charged.
_MOST_STATES = 1000
# How long a market that is not shown is waited for, seconds.
_RETRY_S = 60.0


class CookbookRule(StrEnum):
    """Rules for the number of machines to hold, and the bid for them."""

    COOKBOOK = "cookbook"  # asked when a step begins; no price is too high
    DYNAMIC = "cookbook-dynamic"  # asked whenever the price changes, too (5.4)
    SKYLINE = "skyline"  # machines to the end of a paid period, bids from which it would rent none (5.3)
    FIXED = "fixed"  # always so many machines, always the same bid (6.7)
    DBA = "dba"  # always so many machines, bids by the hours left (6.7)

    @property
    def is_solved(self) -> bool:
        """True if a cookbook decides the number of machines."""
        return self not in (CookbookRule.FIXED, CookbookRule.DBA)


@dataclass(frozen=True)
class ByCookbook:
    """Rents any number of machines of one market for one job, so that it is done by a deadline.

    Attributes:
        rule: What is held and bid.
        deadline_s: Seconds from the start by which the job should be done; infinity: `times_work` times what the
            largest number of machines takes.
        times_work: See `deadline_s`.
        step_s: Length of a step of the cookbook, seconds; the charge period is one step or several.
        risk_aversion: gamma: USD of expected cost that a USD of standard deviation is worth.
        delay_s: Seconds from the request for a machine to its start, by which `SKYLINE`, `FIXED` and `DBA` decide
            ahead.
        lead_s: Seconds before a charge by which they release a machine that is not to be charged again.
        on_demand: Whether they rent on demand while spot costs more, and where time gets short.
        ahead: Steps that the skyline looks ahead.
        size: Machines of `FIXED` and `DBA`; 0: the fewest that are done in three quarters of the time.
        bid_usd_per_hour: Bid of `FIXED`; 0: the price on demand.
        history_s: Seconds of past prices that a chain is fitted to.
        markets: How many markets are tried, those first in which a step has cost least.
        hazard: Chances of losing machines for capacity, which cookbooks count on beside prices.
        capacity: Whether they count; else prices alone, as published.
        name: Name of the policy.
        wakes_on: Price changes, but for `COOKBOOK`.
    """

    one_job: ClassVar[bool] = True

    rule: CookbookRule = CookbookRule.SKYLINE
    deadline_s: float = math.inf
    times_work: float = 3.0
    step_s: float = HOUR_S
    risk_aversion: float = 0.0
    delay_s: float = 600.0
    lead_s: float = 60.0
    on_demand: bool = False
    ahead: int = 4
    size: int = 0
    bid_usd_per_hour: float = 0.0
    history_s: float = 30 * DAY_S
    markets: int = 3
    hazard: Hazard = field(default_factory=default_hazard, repr=False)
    capacity: bool = True
    _made: dict[Any, Policy] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(
            self,
            positive=("deadline_s", "times_work"),
            not_negative=("risk_aversion", "bid_usd_per_hour"),
            between={
                "step_s": (TICK_S, DAY_S),
                "delay_s": (0.0, DAY_S),
                "lead_s": (0.0, HOUR_S),
                "ahead": (0, 1000),
                "size": (0, 10_000),
                "history_s": (LEAST_HISTORY_S, 400 * DAY_S),
                "markets": (1, 1000),
            },
        )
        if self.step_s % TICK_S:
            raise InputError(f"is {self.step_s:g}; a step is a whole number of {TICK_S:g} s", field="step_s")

    @property
    def name(self) -> str:
        return str(self.rule)

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return frozenset() if self.rule is CookbookRule.COOKBOOK else frozenset({Wake.PRICE})

    def for_goals(self, goals: Goals) -> ByCookbook:
        """Return this policy with the deadline of some work.

        Raises:
            InputError: The length of the work is not known.
        """
        if not goals.knows_length:
            raise unknown_work(self.name, goals)
        return replace(self, **goals.given(deadline_s="deadline_s"))

    def decide(self, view: View) -> Iterable[Action]:
        started_s = run_started_s(view)
        (job,) = view.jobs
        if job.is_finished:
            return ()
        risk = MarketRisk.now(view, None)
        if self._counts_losses:
            risk = MarketRisk.now(view, self.hazard, self._calm(view, job.job))
        chosen = view.memory.get("cookbook_market")
        market = next((each for each in view.markets if str(each) == chosen), None)
        # Without machines, work may go on anywhere: a market that has just refused one may be hidden.
        may_leave = self._counts_losses and not view.leases and (market is None or risk.is_refused(market))
        if chosen is None or may_leave:
            market = self._best_market(view, job, risk, started_s, market, is_first=chosen is None)
        if market is None:
            return [WakeAt(view.now_s + _RETRY_S)]
        if chosen != str(market):
            view.memory["cookbook_market"] = str(market)
            # Its cookbook is asked at once, not half a step after the other's.
            view.memory.pop("asked_s", None)
        return self._policy(view, job.job, market, risk, started_s).decide(view)

    def _calm(self, view: View, job: Job) -> set[Market]:
        """Markets whose price had never been above the list price: there it takes no machine."""
        if "cookbook_calm" not in view.memory:
            view.memory["cookbook_calm"] = [
                str(market)
                for market in view.markets
                if view.steps_per_s(job, market) > 0.0
                and (listed := view.on_demand_price(market)) is not None
                and float(view.past_prices(market, self.history_s)[1].max(initial=0.0)) <= listed
            ]
        names = set(view.memory["cookbook_calm"])
        return {market for market in view.markets if str(market) in names}

    @property
    def _counts_losses(self) -> bool:
        return self.capacity and self.rule.is_solved

    def _best_market(
        self,
        view: View,
        job: JobView,
        risk: MarketRisk,
        started_s: float,
        present: Market | None,
        *,
        is_first: bool,
    ) -> Market | None:
        """The market whose cookbook expects the least cost from now on; ties: the first by name.

        Args:
            view: Current and past prices.
            job: The job.
            risk: The chance that a market refuses a machine.
            started_s: Start of the work, seconds since 1970.
            present: The market so far, which stays if the work can be done in time in none; None: it is not shown.
            is_first: Whether the work begins now.

        Raises:
            InputError: The work begins now, and no market can do it in time, or none's prices are known for a day.
        """
        rates = {market: view.steps_per_s(job.job, market) for market in view.markets}
        able = [market for market, rate in rates.items() if rate > 0.0]
        if not able and is_first:
            raise InputError(f"job {job.job.name} can run on no machine of these markets")
        refused = {market: risk.refused(market) if risk.knows(market) else 0.0 for market in able}

        def usual_usd(market: Market) -> tuple[float, str]:
            usd = view.mean_price(market, self.history_s) / rates[market]
            return usd / (1.0 - refused[market]), str(market)

        found, error = [], None
        hours = (view.now_s - started_s) / HOUR_S
        for market in sorted(able, key=usual_usd)[: self.markets]:
            try:
                book = self._book(view, job.job, market, started_s, self._shortages(view, risk, market))
            except InputError as unable:
                error = unable
                continue
            left_h = job.steps_left / job.job.steps * book.problem.workflow.work_h
            usd_by_state = [
                book.expected_usd(hours, view.price(market), left_h, 0, is_short=is_short)
                for is_short in ((False, True) if refused[market] else (False,))
            ]
            chances = (1.0 - refused[market], refused[market])
            found.append((math.fsum(map(operator.mul, chances, usd_by_state)), str(market), market))
        if error is not None and is_first and not found:
            raise error
        usd, _, best = min(found, default=(math.inf, "", present))
        return best if math.isfinite(usd) or present is None else present

    def _policy(self, view: View, job: Job, market: Market, risk: MarketRisk, started_s: float) -> Policy:
        """Policy that follows the cookbook of a market; after a restart solved again, from the same prices."""
        shortages = self._shortages(view, risk, market)
        key = (str(market), job.name, job.steps, started_s, shortages)
        if key not in self._made:
            made = self._following(view, market, self._book(view, job, market, started_s, shortages), started_s)
            self._made.clear()
            self._made[key] = made
        return self._made[key]

    def _following(self, view: View, market: Market, book: Cookbook, started_s: float) -> Policy:
        if self.rule in (CookbookRule.COOKBOOK, CookbookRule.DYNAMIC):
            return FollowCookbook(book, market, dynamic=self.rule is CookbookRule.DYNAMIC)
        size = 0
        if self.rule is CookbookRule.SKYLINE:
            bids = Bids.skyline(book, self.ahead)
        else:
            workflow, most = book.problem.workflow, book.problem.most
            allowed_h = 0.75 * len(book.actions) * book.problem.step_h
            enough = (n for n in range(1, most + 1) if workflow.finish_h(workflow.work_h, 0, n) <= allowed_h)
            size = min(self.size or next(enough, most), most)
            listed = view.on_demand_price(market)
            bid = self.bid_usd_per_hour or (math.inf if listed is None else listed)
            seen = self._prices(view, market, started_s)
            ticks_s = np.arange(seen.times_s[0], started_s, TICK_S)
            is_dba = self.rule is CookbookRule.DBA
            bids = Bids.dba(book, seen.at_each(ticks_s)) if is_dba else Bids.fixed(book, bid)
        return RunCluster(
            book, market, bids, self.delay_s, on_demand=self.on_demand, fixed_size=size, lead_s=self.lead_s
        )

    def _book(
        self, view: View, job: Job, market: Market, started_s: float, shortages: Shortages | None
    ) -> Cookbook:
        workflow = workflow_of(job, view.steps_per_s(job, market), str(market))
        prices, period_s, count = self._prices(view, market, started_s), view.billing.period_s, 1
        follows = self.rule in (CookbookRule.COOKBOOK, CookbookRule.DYNAMIC)
        if period_s > self.step_s:
            count = round(period_s / self.step_s)
            if follows or abs(count * self.step_s - period_s) > 1e-6:
                raise InputError(
                    f"is {self.step_s:g}; machines are charged for {period_s:g} s at a time: "
                    + ("give that" if follows else "give that, or a whole part of it"),
                    field="step_s",
                )
        ahead = 0 if follows else math.ceil(self.delay_s / TICK_S - 1e-9)
        if ahead and ahead * TICK_S >= self.step_s:
            raise InputError(
                f"is {self.delay_s:g}; a step is {self.step_s:g} s, and a decision is made in the step before: "
                "give less, or longer steps",
                field="delay_s",
            )
        states = math.comb(min(job.most_machines, _MOST_STATES) + count, count)
        if states > _MOST_STATES:
            raise InputError(
                f"is {self.step_s:g}; with {job.most_machines} machines and {count} steps a charge a cookbook has "
                f"more than {_MOST_STATES} holdings: give longer steps, or fewer machines",
                field="step_s",
            )
        listed = view.on_demand_price(market)
        return solved_from_prices(
            (prices.times_s.tobytes(), prices.prices.tobytes()),
            workflow.model_dump_json(),
            StepCharges(
                started_s=started_s,
                steps=self._steps(job, workflow),
                step_s=self.step_s,
                count=count,
                whole=period_s >= self.step_s,
                ahead=ahead,
                listed=None if follows or not self.on_demand else listed,
                shortages=shortages,
                short_usd_per_hour=listed or float(prices.prices.max()),
            ),
            job.most_machines,
            self.risk_aversion,
        )

    def _shortages(self, view: View, risk: MarketRisk, market: Market) -> Shortages | None:
        """Shortages of a market, as they were when they first counted: the same after a restart."""
        if not risk.knows(market):
            return None
        known: dict[str, list[float]] = view.memory.setdefault("cookbook_shortages", {})
        if str(market) not in known:
            life_s, down = risk.life_s(market), risk.share_down(market)
            known[str(market)] = [life_s, life_s * down / (1.0 - down)]
        return Shortages(*known[str(market)])

    def _steps(self, job: Job, workflow: Workflow) -> int:
        deadline_s = self.deadline_s
        if math.isinf(deadline_s):
            deadline_s = self.times_work * workflow.finish_h(workflow.work_h, 0, job.most_machines) * HOUR_S
            return max(math.ceil(deadline_s / self.step_s), 1)
        if deadline_s < self.step_s:
            raise InputError(
                f"is {self.step_s:g}; the deadline is {deadline_s:g} s from the start: give less", field="step_s"
            )
        return math.floor(deadline_s / self.step_s + 1e-9)

    def _prices(self, view: View, market: Market, started_s: float) -> PriceSeries:
        """The market's prices before the start, the same whenever they are asked for."""
        times_s, prices = view.past_prices(market, self.history_s + view.now_s - started_s)
        kept = times_s < started_s
        if not kept.any() or started_s - times_s[0] < LEAST_HISTORY_S:
            raise InputError(f"prices of {market} are known for less than a day; no cookbook is made from so few")
        return PriceSeries(times_s[kept], prices[kept])
