"""Feasibility of a sweep's budget and deadline, and the lowest feasible ones, found with few backtests.

Backtests kept each limit that the search returns; it is near the lowest such limit. The search is bounded: it
tries a maximum number of limits, each from a maximum number of starts, the hardest first, and rejects a limit as
soon as too many starts exceed it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.market.markets import Market
from ebbtide.planning.plan import KEPT_SHARE, Feasibility
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.budget import WithinBudget

# Maximum number of limits to try: deadlines; deadlines that the policy refuses, which takes no time; budgets until
# one is kept; budgets between that one and the last that was not kept.
_DEADLINES = 5
_REFUSED = 24
_BUDGETS = 5
_BUDGETS_BETWEEN = 1

# Share by which a limit that is too low is raised: a refused deadline; a missed deadline; a budget. The last two
# double each time.
_REFUSED_RAISED_BY = 0.1
_DEADLINE_RAISED_BY = 0.05
_BUDGET_RAISED_BY = 0.15

# Number of starts: for deadlines, all and the first few; for budgets, the most expensive runs.
_DEADLINE_STARTS = 30
_FIRST_STARTS = 5
_BUDGET_STARTS = 3

# Yields a policy's outcomes from some of the starts, by number; each backtest runs only when it is consumed.
Replay = Callable[[Policy, Sequence[int]], Iterable[Outcome]]
PolicyFor = Callable[[float | None], Policy]


class Search:
    """The search for the lowest feasible budget and deadline.

    Attributes:
        fastest: Hours and market of the fastest possible plan, by arithmetic.
    """

    def __init__(self, fastest: tuple[float, Market], policy_for: PolicyFor, replay: Replay, starts: int) -> None:
        """Prepare a search.

        Args:
            fastest: Hours and market of the fastest possible plan, by arithmetic.
            policy_for: Makes the sweep's policy under a deadline, hours; raises `InputError` if that is too short.
            replay: Runs a policy from some of the starts.
            starts: The number of starts available.
        """
        self.fastest = fastest
        self._policy_for = policy_for
        self._replay = replay
        self._starts = range(min(starts, _DEADLINE_STARTS))
        # Outcomes without a budget limit, by deadline, so that no backtest runs twice.
        self._uncapped: dict[float | None, Sequence[Outcome]] = {}

    def knows(self, deadline_h: float | None, outcomes: Sequence[Outcome]) -> None:
        """Add known outcomes of the policy under a deadline, without a budget limit, from every start."""
        self._uncapped[deadline_h] = outcomes

    def least(self, deadline_h: float | None, *, late: bool, needs_deadline: bool = False) -> Feasibility:
        """Find the lowest feasible budget and deadline.

        Args:
            deadline_h: The requested deadline, hours; None: there is none.
            late: Whether the deadline is infeasible. If so, the budget is found without a deadline, or under the
                lowest feasible one if the policy requires one.
            needs_deadline: Whether the policy requires a deadline.
        """
        deadline = self.least_deadline()
        under = deadline_h if not late else deadline if needs_deadline else None
        budget = self._least_budget(under) if under is not None or not needs_deadline else None
        costs = budget if under == deadline or deadline is None else self._least_budget(deadline)
        return Feasibility(
            False,
            *self.fastest,
            least_budget_usd=budget[0] if budget else None,
            least_budget_takes_h=budget[1] if budget else None,
            least_deadline_h=deadline,
            least_deadline_costs_usd=costs[0] if costs and deadline is not None else None,
        )

    def least_deadline(self) -> float | None:
        """Find the lowest deadline that is kept, hours, starting at the fastest plan's; None: none was found."""
        hours = self.fastest[0]
        tried = refused = 0
        while tried < _DEADLINES and refused < _REFUSED:
            tried_h = _rounded_up(hours)
            try:
                needed_h = self._needed_h(tried_h)
            except InputError:
                # The policy refuses to begin with a deadline this short.
                hours = tried_h * (1.0 + _REFUSED_RAISED_BY)
                refused += 1
                continue
            if needed_h <= tried_h:
                return tried_h
            if not math.isfinite(needed_h):
                return None
            # With a later deadline the policy hurries less, so it needs a little more time.
            hours = max(needed_h, tried_h * (1.0 + _DEADLINE_RAISED_BY * 2.0**tried))
            tried += 1
        return None

    def _needed_h(self, deadline_h: float) -> float:
        """Return the hours that enough runs need under a deadline; if a few starts miss it, from those alone."""
        known = self._uncapped.get(deadline_h)
        if known is None:
            policy = self._policy_for(deadline_h)
            known = tuple(self._replay(policy, self._starts[:_FIRST_STARTS]))
            needed_h = _kept_value([duration_h(one) for one in known])
            if needed_h > deadline_h:
                return needed_h
            known += tuple(self._replay(policy, self._starts[_FIRST_STARTS:]))
            self._uncapped[deadline_h] = known
        return _kept_value([duration_h(one) for one in known])

    def _uncapped_under(self, deadline_h: float | None) -> Sequence[Outcome]:
        if deadline_h not in self._uncapped:
            self._uncapped[deadline_h] = tuple(self._replay(self._policy_for(deadline_h), self._starts))
        return self._uncapped[deadline_h]

    def _least_budget(self, deadline_h: float | None) -> tuple[float, float] | None:
        """Find the lowest budget that is kept, USD, and the hours that runs then take.

        Each budget is tried as a real limit, since the policy ends machines a little before it exceeds the limit.
        """
        free = self._uncapped_under(deadline_h)
        usd = _kept_value([cost_usd(one) for one in free])
        if not math.isfinite(usd):
            return None
        too_little, takes_h = 0.0, None
        enough = raised = _rounded_up(usd)
        for tried in range(_BUDGETS):
            if takes_h := self._takes_h(raised, deadline_h, free):
                enough = raised
                break
            too_little, raised = raised, _rounded_up(raised * (1.0 + _BUDGET_RAISED_BY * 2.0**tried))
        if takes_h is None:
            return None
        for _ in range(_BUDGETS_BETWEEN if too_little else 0):
            between = _rounded_up((too_little + enough) / 2.0)
            if not too_little < between < enough:
                break
            if takes := self._takes_h(between, deadline_h, free):
                enough, takes_h = between, takes
            else:
                too_little = between
        return enough, takes_h

    def _takes_h(self, usd: float, deadline_h: float | None, free: Sequence[Outcome]) -> float | None:
        """Return the hours in which enough runs end under a budget limit; None: too few end, or too late.

        Only the most expensive runs are replayed, the most expensive first, since cheaper runs are limited less.
        """
        numbers = sorted(range(len(free)), key=lambda number: -_cost_order(free[number]))[:_BUDGET_STARTS]
        most_h = math.inf if deadline_h is None else deadline_h
        hours = [duration_h(outcome) for number, outcome in enumerate(free) if number not in numbers]
        may_miss = len(free) - math.ceil(KEPT_SHARE * len(free)) - sum(not took_h <= most_h for took_h in hours)
        for outcome in self._replay(WithinBudget(self._policy_for(deadline_h), usd), numbers):
            hours.append(duration_h(outcome))
            may_miss -= not hours[-1] <= most_h
            if may_miss < 0:
                return None
        takes_h = _kept_value(hours)
        return _rounded_up(takes_h) if math.isfinite(takes_h) else None


def is_kept(values: Sequence[float], limit: float | None) -> bool:
    """Return whether at least `KEPT_SHARE` of the values keep the limit, if any; NaN (unfinished) does not."""
    return limit is None or float(np.mean([value <= limit for value in values])) >= KEPT_SHARE


def duration_h(outcome: Outcome) -> float:
    """Hours that a run took; NaN: unfinished."""
    return outcome.makespan_s / HOUR_S if outcome.finished else math.nan


def cost_usd(outcome: Outcome) -> float:
    """Cost of a run, USD; NaN: unfinished."""
    return outcome.cost_usd if outcome.finished else math.nan


def _cost_order(outcome: Outcome) -> float:
    """Cost of a run, USD, for sorting; infinity: unfinished."""
    return outcome.cost_usd if outcome.finished else math.inf


def _kept_value(values: Sequence[float]) -> float:
    """Return the lowest limit that enough values keep; infinity: too many are unfinished."""
    ordered = sorted(math.inf if math.isnan(value) else value for value in values)
    return ordered[math.ceil(KEPT_SHARE * len(ordered)) - 1]


def _rounded_up(value: float) -> float:
    """Round up to three digits, so that the printed limit is feasible."""
    if value <= 0.0:
        return 0.0
    digits = 2 - math.floor(math.log10(value))
    # The inner `round` keeps a value that already has three digits unchanged.
    return round(math.ceil(round(value * 10.0**digits, 6)) / 10.0**digits, max(digits, 0))
