"""Intervals between checkpoints that a hazard implies, beside the best one by search over recorded lives.

A hazard is learnt from the first part of a record, and Young's interval follows from its mean life of machines.
The lives in the rest of the record say what that interval costs, and which would have cost least.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide.base.utc import DAY_S
from ebbtide.errors import InputError
from ebbtide.forecasts.hazard.evaluation import LEARNT_SHARE, splits_s
from ebbtide.forecasts.hazard.fitting import fit_hazard
from ebbtide.forecasts.hazard.model import Hazard
from ebbtide.forecasts.hazard.observations import MarketObservations
from ebbtide.jobs.checkpoint_interval import LEAST_SAVES, interval_s_of
from ebbtide.market.price_series import Floats

# Intervals that the search tries, and the longest of them, seconds.
_TRIED, _LONGEST_S = 400, 10 * DAY_S


@dataclass(frozen=True, eq=False)
class Lives:
    """Lives of machines.

    Attributes:
        lives_s: Seconds that each was watched, shape (n,).
        is_lost: Whether it was lost at the end of them; else nobody looked any longer; shape (n,).
    """

    lives_s: Floats
    is_lost: np.ndarray


@dataclass(frozen=True)
class IntervalScore:
    """Cost of the interval that a hazard implies on one record.

    Attributes:
        data: Name of the record.
        lives: Lives of machines in the part that is scored.
        lost: Number of them that ended with a loss.
        mean_life_s: Mean life by the hazard, seconds.
        interval_s: Interval between two saves that follows from it, seconds.
        best_interval_s: The best by search, seconds.
        cost: Machine time for a second of work that is kept, with the interval that is implied.
        best_cost: The same with the best interval.
    """

    data: str
    lives: int
    lost: int
    mean_life_s: float
    interval_s: float
    best_interval_s: float
    cost: float
    best_cost: float

    @property
    def ratio(self) -> float:
        """Cost of the interval over that of the best one."""
        return self.cost / self.best_cost


def score_interval(
    observations: Sequence[MarketObservations],
    data: str,
    prior: Hazard | None = None,
    learnt_share: float = LEARNT_SHARE,
    *,
    save_s: float,
    restore_s: float,
) -> IntervalScore:
    """Score the interval between checkpoints that the first part of a record implies, on the rest of it.

    Args:
        observations: Observations of each market.
        data: Name of the record.
        prior: Hazard that the first part is learnt on top of; None: none.
        learnt_share: Share of the record that is learnt from.
        save_s: Time that a save takes, seconds.
        restore_s: Time that a machine takes to restore, seconds.

    Raises:
        InputError: The first part has no spell, the rest no machine that lives long enough to keep any work, or a
            number is out of range.
    """
    if not save_s > 0.0 or not 0.0 <= restore_s < math.inf:
        raise InputError(f"a save takes {save_s:g} s and a restore {restore_s:g} s; positive numbers are needed")
    ends_s = splits_s(observations, learnt_share).tolist()
    parts = list(zip(observations, ends_s, strict=True))
    earlier = [each.between(-math.inf, end_s) for each, end_s in parts]
    hazard = fit_hazard([each for each in earlier if len(each.times_s) > 1], prior)
    mean_life_s = hazard.usual_life_s({each.market: None for each in observations})
    interval_s = interval_s_of(save_s, mean_life_s)
    lives = lives_of([each.between(end_s, math.inf) for each, end_s in parts])
    cost = cost_of(lives, interval_s, save_s, restore_s)
    if not cost < math.inf:
        raise InputError("no machine in its later part lives long enough to keep any work", file=data)
    tried_s = np.geomspace(LEAST_SAVES * save_s, _LONGEST_S, _TRIED).tolist()
    best_cost, best_s = min((cost_of(lives, each, save_s, restore_s), each) for each in [*tried_s, interval_s])
    return IntervalScore(
        data=data,
        lives=len(lives.lives_s),
        lost=int(lives.is_lost.sum()),
        mean_life_s=mean_life_s,
        interval_s=interval_s,
        best_interval_s=best_s,
        cost=cost,
        best_cost=best_cost,
    )


def lives_of(observations: Sequence[MarketObservations]) -> Lives:
    """Lives of machines that are requested as soon as a market has one, and held until it has none.

    Args:
        observations: Observations of each market.
    """
    lives_s: list[float] = []
    is_lost: list[bool] = []
    for each in observations:
        begin_s = math.nan
        rows = list(zip(each.times_s.tolist(), each.is_up.tolist(), strict=True))
        for (time_s, is_up), (next_s, stays) in itertools.pairwise(rows):
            if is_up and math.isnan(begin_s):
                begin_s = time_s
            is_gap = next_s - time_s > each.longest_gap_s
            if is_up and (is_gap or not stays):
                lives_s.append((time_s if is_gap else next_s) - begin_s)
                is_lost.append(not is_gap)
                begin_s = math.nan
        if rows and rows[-1][1] and not math.isnan(begin_s):
            lives_s.append(rows[-1][0] - begin_s)
            is_lost.append(False)
    return Lives(np.array(lives_s), np.array(is_lost, dtype=bool))


def cost_of(lives: Lives, interval_s: float, save_s: float, restore_s: float) -> float:
    """Machine time for a second of work that is kept; infinity: none is kept.

    A save begins an interval after the last one began. What was done since the last complete save is lost with a
    machine; a machine that is not lost is saved once more as it is left.

    Args:
        lives: Lives of machines.
        interval_s: Time from one save to the next, seconds.
        save_s: Time that a save takes, seconds, less than the interval.
        restore_s: Time that a machine takes to restore, seconds.
    """
    ready_s = np.maximum(lives.lives_s - restore_s, 0.0)
    saves = np.floor(ready_s / interval_s)
    left_s = np.where(lives.is_lost, 0.0, np.maximum(ready_s - saves * interval_s - save_s, 0.0))
    kept_s = float((saves * (interval_s - save_s) + left_s).sum())
    return float(lives.lives_s.sum()) / kept_s if kept_s > 0.0 else math.inf
