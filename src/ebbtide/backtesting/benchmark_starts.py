"""Number of starts of a benchmark cell: few for policies that clearly cost more, more for the others.

The cheapest of many policies over two starts is often the luckiest. So those that may be the cheapest run from
twice as many starts, and again, and so does the default, until it is known by how much they differ, or there are
`MOST_STARTS`; where something is promised they have `LEAST_STARTS` at least, since a promise that is kept once may
be broken the next time. The starts requested do not depend on which policy is ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

# Starts of the default and of those that may be the cheapest: the least, where there is a deadline or a budget;
# and the most.
LEAST_STARTS, MOST_STARTS = 4, 24

# Two policies are told apart at this confidence, one-sided, and it is enough to know their difference to this
# share of the cheaper one's cost.
_CONFIDENCE, _CLOSE = 0.9, 0.06

# After a single start only a policy that costs so many times as much is clearly more expensive, and more than the
# costs of the cheapest are apart from start to start.
_CLEARLY = 1.3


@dataclass(frozen=True)
class CellRuns:
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

    def __add__(self, later: CellRuns) -> CellRuns:
        return CellRuns(
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


def cheapest(replays: Mapping[str, CellRuns]) -> str:
    """The cheapest policy of those with the most starts and the fewest broken promises."""
    most = max(one.starts for one in replays.values())
    able = {name: one for name, one in replays.items() if one.starts == most}
    least = min(one.failures for one in able.values())
    able = {name: one for name, one in able.items() if one.failures == least}
    return min(able, key=lambda name: (float(np.mean(able[name].costs_usd)), name))


def more_starts(
    replays: Mapping[str, CellRuns], always: str, most: int = MOST_STARTS, least: int = LEAST_STARTS
) -> dict[str, int]:
    """The policies of a cell that need more starts, and how many each is to have; empty: none does.

    Args:
        replays: The runs of each policy so far, from the same first starts.
        always: A policy whose difference to the cheapest is to be known, too.
        most: The most starts.
        least: The least of the default and of those that may be the cheapest.
    """
    best = cheapest(replays)
    known = replays[best]
    maybe, unsure = {best, always} & set(replays), False
    for name, one in replays.items():
        if name == best or one.failures > known.failures:
            continue
        more_usd, width_usd = _difference_usd(one, known)
        if more_usd < width_usd:
            maybe.add(name)
        if name in maybe:
            unsure |= width_usd > _CLOSE * float(np.mean(known.costs_usd))
    maybe = _without_twins(maybe, replays, {best, always} & set(replays))
    # The cheapest so far may have been another, with promises broken since: who stopped because of it goes on, and
    # so does who has kept what the cheapest broke, whatever the cost.
    keeping = {name for name, one in replays.items() if one.failures < known.failures}
    behind = {name: known.starts for name in maybe | keeping if replays[name].starts < known.starts}
    enough = known.starts >= min(least, most) and not unsure
    if behind or enough or known.starts >= most:
        return behind
    return dict.fromkeys(sorted(maybe), min(2 * known.starts, most))


def _without_twins(names: Set[str], replays: Mapping[str, CellRuns], kept: Set[str]) -> set[str]:
    """The policies without those that have cost the same as another from each start so far: it stands for both."""
    found: list[str] = []
    for name in sorted(names, key=lambda one: (one not in kept, -replays[one].starts, one)):
        own = replays[name].costs_usd
        is_twin = len(own) > 1 and any(replays[other].costs_usd[: len(own)] == own for other in found)
        if name in kept or not is_twin:
            found.append(name)
    return set(found)


def _difference_usd(one: CellRuns, known: CellRuns) -> tuple[float, float]:
    """By how much a policy costs more than another over the starts of both, USD, and how sure that is."""
    more_usd = np.subtract(one.costs_usd, known.costs_usd[: one.starts])
    mean_usd = float(more_usd.mean())
    if one.starts < 2:
        dear_usd = (_CLEARLY - 1.0) * float(np.mean(known.costs_usd[: one.starts]))
        apart_usd = float(np.std(known.costs_usd, ddof=1)) if known.starts > 1 else 0.0
        return mean_usd, 0.0 if mean_usd == 0.0 else max(dear_usd, apart_usd)
    quantile = float(student.ppf(_CONFIDENCE, one.starts - 1))
    return mean_usd, quantile * float(more_usd.std(ddof=1)) / float(np.sqrt(one.starts))


def mean_costs_usd(replays: Mapping[str, CellRuns]) -> dict[str, float]:
    """The mean cost of each policy over the most starts that any has, USD.

    A policy has fewer because the cheapest was cheaper over these, or because another has cost the same. Its cost
    is its ratio to that one over the starts of both, times the mean of that one over all.
    """
    best = cheapest(replays)
    found = {best: float(np.mean(replays[best].costs_usd))}
    # The others from the most starts to the fewest, so that what a policy is compared with is known.
    for name in sorted(set(replays) - {best}, key=lambda one: (-replays[one].starts, one)):
        own = replays[name].costs_usd
        twins = (other for other in found if replays[other].costs_usd[: len(own)] == own)
        known = next((other for other in twins if 1 < len(own) < replays[other].starts), best)
        shared_usd = float(np.mean(replays[known].costs_usd[: len(own)]))
        of_all = found[known] / shared_usd if len(own) < replays[known].starts and shared_usd > 0.0 else 1.0
        found[name] = float(np.mean(own)) * of_all
    return found
