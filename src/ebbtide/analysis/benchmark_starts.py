"""How many starts a cell of the benchmark takes: a few for each policy, more for those that few cannot tell apart.

The cheapest of many policies over two starts is often the luckiest. So those that may be the cheapest run from
twice as many starts, and again, until it is known which is, or until it makes no difference, or there are
`MOST_STARTS`. What is asked for does not depend on which policy is ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

# The most starts of a cell.
MOST_STARTS = 32

# Two policies are told apart at this confidence, one-sided; or it is enough to know that they differ by less than
# this share of the cheaper one's cost.
_CONFIDENCE, _CLOSE = 0.9, 0.04


@dataclass(frozen=True)
class Replays:
    """The runs of one policy in a cell.

    Attributes:
        costs_usd: Cost of the run from each start, USD, shape (starts,).
        hours: Hours until the work was done, or until the record or the budget ended, shape (starts,).
        misses: Runs whose work was not done in time, or not at all.
        over_budget: Runs that cost more than the budget.
    """

    costs_usd: tuple[float, ...]
    hours: tuple[float, ...]
    misses: int
    over_budget: int

    def __add__(self, later: Replays) -> Replays:
        return Replays(
            self.costs_usd + later.costs_usd,
            self.hours + later.hours,
            self.misses + later.misses,
            self.over_budget + later.over_budget,
        )

    @property
    def starts(self) -> int:
        """Number of starts."""
        return len(self.costs_usd)

    @property
    def failures(self) -> int:
        """Broken promises."""
        return self.misses + self.over_budget


def cheapest(replays: Mapping[str, Replays]) -> str:
    """The cheapest policy of those with the most starts and the fewest broken promises."""
    most = max(one.starts for one in replays.values())
    able = {name: one for name, one in replays.items() if one.starts == most}
    least = min(one.failures for one in able.values())
    able = {name: one for name, one in able.items() if one.failures == least}
    return min(able, key=lambda name: (float(np.mean(able[name].costs_usd)), name))


def need_more(replays: Mapping[str, Replays], always: str) -> tuple[str, ...]:
    """The policies of a cell that need more starts, by name; empty: none does.

    Args:
        replays: The runs of each policy so far, from the same first starts.
        always: A policy that runs whenever others do.
    """
    best = cheapest(replays)
    known = replays[best]
    if not 2 <= known.starts < MOST_STARTS:
        return ()
    rivals = {
        name: one
        for name, one in replays.items()
        if name != best and (one.starts, one.failures) == (known.starts, known.failures)
    }
    quantile = float(student.ppf(_CONFIDENCE, known.starts - 1))
    mean_usd = float(np.mean(known.costs_usd))
    maybe, matters = {best, always}, False
    for name, one in rivals.items():
        more_usd = np.subtract(one.costs_usd, known.costs_usd)
        width_usd = quantile * float(more_usd.std(ddof=1)) / np.sqrt(known.starts)
        if more_usd.mean() < width_usd:
            maybe.add(name)
            matters |= width_usd > _CLOSE * mean_usd
    return tuple(sorted(maybe & set(replays))) if matters else ()


def mean_costs_usd(replays: Mapping[str, Replays]) -> dict[str, float]:
    """The mean cost of each policy over the most starts that any has, USD.

    A policy has fewer because another was cheaper over these. Its cost is its ratio to that one over the starts of
    both, times the mean of that one over all.
    """
    most = max(one.starts for one in replays.values())
    whole = [one for one in replays.values() if one.starts == most]
    found = {}
    for name, one in replays.items():
        own = float(np.mean(one.costs_usd))
        if one.starts < most:
            cheaper = min(whole, key=lambda rival: (rival.failures, _first_usd(rival, one.starts)))
            shared = _first_usd(cheaper, one.starts)
            own *= float(np.mean(cheaper.costs_usd)) / shared if shared > 0.0 else 1.0
        found[name] = own
    return found


def _first_usd(one: Replays, starts: int) -> float:
    """The mean cost of the first starts, USD."""
    return float(np.mean(one.costs_usd[:starts]))
