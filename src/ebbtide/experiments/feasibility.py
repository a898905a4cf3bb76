"""Whether a sweep's budget and deadline will do, and the least that would, by backtests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ebbtide.errors import InputError
from ebbtide.execution.outcome import Outcome
from ebbtide.experiments.plan import KEPT_SHARE, Feasibility
from ebbtide.market.markets import Market
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.protocol import Policy
from ebbtide.utc import HOUR_S

# A least that turns out too little is raised by so much, and so often at most.
_RAISED_BY = 1.1
_TRIED_AT_MOST = 12

Replay = Callable[[Policy], Sequence[Outcome]]
PolicyFor = Callable[[float | None], Policy]


def judge(
    outcomes: Sequence[Outcome],
    budget_usd: float | None,
    deadline_h: float | None,
    fastest: tuple[float, Market],
    policy_for: PolicyFor,
    replay: Replay,
    *,
    needs_deadline: bool = False,
) -> Feasibility:
    """Judge a budget and a deadline by backtests, and look for the least that would do if they will not.

    Args:
        outcomes: Of the sweep's policy under its deadline, without a cap on the budget.
        budget_usd: Asked for; None: any.
        deadline_h: Asked for; None: any.
        fastest: Hours and market of the fastest plan there can be, by arithmetic.
        policy_for: The sweep's policy under another deadline, hours.
        replay: Runs a policy from some of the starts; what is tried must be kept in `KEPT_SHARE` of them.
        needs_deadline: The policy cannot do without one.
    """
    late = deadline_h is not None and not _kept([_hours(one) for one in outcomes], deadline_h)
    over = budget_usd is not None and not _kept([_usd(one) for one in outcomes], budget_usd)
    if not late and not over:
        return Feasibility(True, *fastest)
    deadline = least_deadline(fastest[0], policy_for, replay)
    under = deadline_h if not late else deadline if needs_deadline else None
    budget = _least_budget(under, policy_for, replay) if under is not None or not needs_deadline else None
    if deadline is None:
        costs = None
    else:
        costs = budget if under == deadline else _least_budget(deadline, policy_for, replay)
    return Feasibility(
        False,
        *fastest,
        least_budget_usd=budget[0] if budget else None,
        least_budget_takes_h=budget[1] if budget else None,
        least_deadline_h=deadline,
        least_deadline_costs_usd=costs[0] if costs else None,
    )


def least_deadline(fastest_h: float, policy_for: PolicyFor, replay: Replay) -> float | None:
    """The least deadline found that is kept, hours; None: none was.

    Args:
        fastest_h: Where to begin: what no plan can undercut.
        policy_for: The policy under a deadline, hours; it may refuse one as too short.
        replay: Runs a policy from some of the starts.
    """
    hours = fastest_h
    for _ in range(_TRIED_AT_MOST):
        tried_h = _rounded_up(hours)
        try:
            needed_h = _kept_value([_hours(one) for one in replay(policy_for(tried_h))])
        except InputError:
            # The policy refuses to begin under so short a deadline.
            hours = tried_h * _RAISED_BY
            continue
        if needed_h <= tried_h:
            return tried_h
        if not math.isfinite(needed_h):
            return None
        # A little more time makes for a little less hurry, and so on.
        hours = max(needed_h, tried_h * (1.0 + (_RAISED_BY - 1.0) / 2.0))
    return None


def _least_budget(deadline_h: float | None, policy_for: PolicyFor, replay: Replay) -> tuple[float, float] | None:
    """The least found that runs end within, USD, and the hours that they then take.

    It is tried as the cap that it will be: a cap ends machines a little before it would be passed.
    """
    policy = policy_for(deadline_h)
    usd = _kept_value([_usd(one) for one in replay(policy)])
    if not math.isfinite(usd):
        return None
    for _ in range(_TRIED_AT_MOST):
        tried_usd = _rounded_up(usd)
        capped = replay(WithinBudget(policy, tried_usd))
        hours = [_hours(one) for one in capped]
        if _kept(hours, math.inf if deadline_h is None else deadline_h):
            return tried_usd, _rounded_up(_kept_value(hours))
        usd = tried_usd * _RAISED_BY
    return None


def _hours(outcome: Outcome) -> float:
    return outcome.makespan_s / HOUR_S if outcome.finished else math.nan


def _usd(outcome: Outcome) -> float:
    return outcome.cost_usd if outcome.finished else math.nan


def _kept(values: Sequence[float], limit: float) -> bool:
    """Whether enough are at most the limit; NaN, a run that found no end, never is."""
    return float(np.mean([value <= limit for value in values])) >= KEPT_SHARE


def _kept_value(values: Sequence[float]) -> float:
    """What enough are at most; infinity: too many found no end."""
    ordered = sorted(math.inf if math.isnan(value) else value for value in values)
    return ordered[math.ceil(KEPT_SHARE * len(ordered)) - 1]


def _rounded_up(value: float) -> float:
    """To three digits, upwards, so that the figure that is told is one that does."""
    if value <= 0.0:
        return 0.0
    digits = 2 - math.floor(math.log10(value))
    # A figure that is round already stays as it is.
    return round(math.ceil(round(value * 10.0**digits, 6)) / 10.0**digits, max(digits, 0))
