"""Promotion by money: when a new version of a model replaces the champion of its kind.

Policies that ask the model run from the same starts twice, on days that neither version was trained on: with the
champions of all kinds, and with the same but for the new version of this one. The rule (`judged`):

1. There is no champion: the new version becomes it.
2. The whole confidence interval of the paired difference of cost lies below 0, and no more runs miss: promoted, it
   is cheaper.
3. The interval lies within 1 % of the champion's mean cost on either side of 0 and is not all above 0, and fewer
   runs miss, or as many and the 95th percentile of the cost is lower: promoted, it is as cheap and less risky.
4. Otherwise it remains a challenger.

A run misses if it does not finish, or finishes after its deadline. AUC, Brier score and others decide nothing.

The interval is Student's t. Differences from the same starts are many zeros and a few large values, and starts
are few (tens): bootstrap intervals are too narrow for such samples, and undefined where all differences are the
same. The t interval is wide for them, which keeps the champion, and the same for the same runs. Runs that overlap
in time are not independent, so that the true interval is somewhat wider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from scipy import stats

from ebbtide.engine.outcome import Outcome

# The confidence interval of a cost that counts as the same lies within this share of the champion's mean cost.
SAME_COST = 0.01

# Pairs of finished runs that an interval needs.
_LEAST_PAIRS = 2


class Verdict(StrEnum):
    """Decision on a new version of a model."""

    FIRST = "first"  # there was no champion: promoted
    REPLACES = "replaces"  # the champion cannot serve these markets or jobs: promoted
    CHEAPER = "cheaper"  # promoted
    LESS_RISKY = "less-risky"  # as cheap: promoted
    CHALLENGER = "challenger"  # not better for certain
    MEASURED = "measured"  # newer measurements, which are no forecast that could be wrong: promoted
    UNCHANGED = "unchanged"  # its content is the champion's
    NOT_ASKED = "not-asked"  # no policy asks it on these days
    NO_LATER_DAYS = "no-later-days"  # no days are left that neither version was trained on

    @property
    def is_promotion(self) -> bool:
        """True if the version becomes champion."""
        return self in (
            Verdict.FIRST,
            Verdict.REPLACES,
            Verdict.CHEAPER,
            Verdict.LESS_RISKY,
            Verdict.MEASURED,
        )


@dataclass(frozen=True)
class PolicyRuns:
    """Cost and lateness of a policy's run from each start.

    Attributes:
        cost_usd: Cost of each run, USD; NaN: it did not finish.
        late: Whether each run finished after its deadline.
    """

    cost_usd: tuple[float, ...]
    late: tuple[bool, ...]

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], deadline_s: float = math.inf) -> PolicyRuns:
        """The runs of some outcomes.

        Args:
            outcomes: An outcome for each start.
            deadline_s: Seconds from each start to the deadline.
        """
        return cls(
            tuple(each.cost_usd if each.finished else math.nan for each in outcomes),
            tuple(each.finished and each.makespan_s > deadline_s for each in outcomes),
        )

    @property
    def misses(self) -> int:
        """Number of runs that did not finish, or finished late."""
        return sum(late or math.isnan(cost) for cost, late in zip(self.cost_usd, self.late, strict=True))


@dataclass(frozen=True)
class Interval:
    """A mean difference of cost with its confidence interval.

    Attributes:
        mean: Mean of challenger minus champion, USD.
        low: Lower end of the interval, USD.
        high: Upper end of the interval, USD.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class VersionComparison:
    """The runs of challenger and champion, over the starts from which both finished.

    Attributes:
        pairs: Number of starts from which both finished.
        cost_usd: Mean cost with the champion and with the challenger, USD.
        p95_usd: 95th percentile of the cost with the champion and with the challenger, USD.
        misses: Number of runs that missed with the champion and with the challenger, of all starts.
        difference: Difference of the cost with its interval; None: too few pairs.
        decides: Whether any run came out differently.
    """

    pairs: int
    cost_usd: tuple[float, float]
    p95_usd: tuple[float, float]
    misses: tuple[int, int]
    difference: Interval | None
    decides: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a report; None for what is not known."""
        names = ("champion", "challenger")
        difference = self.difference
        return {
            "pairs": self.pairs,
            "cost_usd": {name: _known(value) for name, value in zip(names, self.cost_usd, strict=True)},
            "p95_usd": {name: _known(value) for name, value in zip(names, self.p95_usd, strict=True)},
            "misses": dict(zip(names, self.misses, strict=True)),
            "difference_usd": None if difference is None else vars(difference).copy(),
        }


def compared(champion: PolicyRuns, challenger: PolicyRuns, confidence: float = 0.95) -> VersionComparison:
    """Compare runs from the same starts.

    Args:
        champion: Runs with the champion, one for each start.
        challenger: Runs with the challenger, from the same starts.
        confidence: Confidence level of the interval, such as 0.95.

    Raises:
        ValueError: The numbers of starts differ.
    """
    if len(champion.cost_usd) != len(challenger.cost_usd):
        raise ValueError("runs from different starts cannot be paired")
    old, new = np.array(champion.cost_usd), np.array(challenger.cost_usd)
    both = ~np.isnan(old) & ~np.isnan(new)
    means = (math.nan, math.nan)
    p95s = means
    if both.any():
        means = float(old[both].mean()), float(new[both].mean())
        p95s = float(np.quantile(old[both], 0.95)), float(np.quantile(new[both], 0.95))
    differences = new[both] - old[both]
    interval = None
    if len(differences) >= _LEAST_PAIRS:
        mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(differences))
        half = float(stats.t.ppf((1.0 + confidence) / 2.0, len(differences) - 1)) * error
        interval = Interval(mean, mean - half, mean + half)
    same = np.array_equal(old, new, equal_nan=True) and champion.late == challenger.late
    misses = champion.misses, challenger.misses
    return VersionComparison(int(both.sum()), means, p95s, misses, interval, not same)


def judged(found: VersionComparison, confidence: float = 0.95) -> tuple[Verdict, str]:
    """The rule: what comes of a challenger, and why, in one sentence.

    Args:
        found: Its runs beside the champion's.
        confidence: Confidence level of the interval, for the sentence.
    """
    if not found.decides:
        return Verdict.NOT_ASKED, "remains a challenger: every run is the same with it as with the champion"
    if found.difference is None:
        return (
            Verdict.CHALLENGER,
            f"remains a challenger: both finished from {found.pairs} starts, too few to compare",
        )
    low, high, (old, new) = found.difference.low, found.difference.high, found.misses
    usd = f"{found.difference.mean:+.4f} USD a run ({confidence:.0%} interval {low:+.4f} to {high:+.4f})"
    risk = f"{new} runs miss, {old} with the champion; the 95th percentile is {found.p95_usd[1]:.4f} USD, "
    risk += f"{found.p95_usd[0]:.4f} with the champion"
    if high < 0.0 and new <= old:
        return Verdict.CHEAPER, f"is the new champion: cheaper, {usd}"
    margin = SAME_COST * found.cost_usd[0]
    same_cost = -margin <= low <= 0.0 and high <= margin
    less_risky = new < old or (new == old and found.p95_usd[1] < found.p95_usd[0])
    if same_cost and less_risky:
        return Verdict.LESS_RISKY, f"is the new champion: as cheap, {usd}, and less risky: {risk}"
    if high < 0.0:
        return Verdict.CHALLENGER, f"remains a challenger: cheaper, {usd}, but {risk}"
    if same_cost:
        return Verdict.CHALLENGER, f"remains a challenger: as cheap, {usd}, but not less risky: {risk}"
    why = "more expensive" if low > 0.0 else "not cheaper for certain"
    return Verdict.CHALLENGER, f"remains a challenger: {why}, {usd}"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
