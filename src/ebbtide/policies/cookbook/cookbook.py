"""Cookbooks: what to do in every state, and what is to be expected of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ebbtide.market.price_series import Floats
from ebbtide.policies.cookbook.problem import CookbookProblem


@dataclass(frozen=True, eq=False)
class Cookbook:
    """A solved problem.

    Attributes:
        problem: What it was solved for.
        actions: Machines to charge, shape (steps, levels, holdings, P).
        mean_usd: Expected cost from there on, the same shape; infinity: the deadline cannot be met.
        deviation_usd: Its standard deviation.
    """

    problem: CookbookProblem
    actions: NDArray[np.unsignedinteger]
    mean_usd: NDArray[np.float32]
    deviation_usd: NDArray[np.float32]

    def choose(self, hours: float, price: float, left_h: float, held: int) -> int:
        """How many machines to hold now (5.4): what is said of the state, or between those of two steps.

        Work between two levels is taken for the upper. Never so few that the next step could not be begun in time.

        Args:
            hours: Since the start.
            price: USD per hour.
            left_h: Machine-hours left.
            held: Machines held now.
        """
        problem = self.problem
        steps, most = len(self.actions), problem.most
        step = min(int((hours + 1e-9) / problem.step_h), steps - 1)
        share = max(hours / problem.step_h - step, 0.0)
        place = int(np.abs(problem.market.prices - price).argmin())
        level = self.level(left_h)
        if not np.isfinite(self.mean_usd[step, level, held, 0]):
            return most
        size = int(self.actions[step, level, held, place])
        if share > 1e-9 and step + 1 < steps and np.isfinite(self.mean_usd[step + 1, level, held, 0]):
            after = int(self.actions[step + 1, level, held, place])
            # Rounded, halves up, however they come out of floating point.
            size = math.floor((1.0 - share) * size + share * after + 0.5 + 1e-9)
        rest_h = (1.0 - share) * problem.step_h
        while size < most:
            then_h = float(problem.workflow.progress(left_h, held, size, rest_h))
            if self.can_begin(step + 1, then_h, size):
                break
            size += 1
        return size

    def level(self, left_h: float) -> int:
        """The place of work left among its levels; between two, of the upper."""
        levels_h = self.problem.levels_h
        return min(int(np.searchsorted(levels_h, left_h - 1e-9)), len(levels_h) - 1)

    def can_begin(self, step: int, left_h: float, held: int) -> bool:
        """Whether a step can be begun so and the deadline be met."""
        if left_h > self.problem.workflow.work_h + 1e-9:
            return False
        if step == len(self.actions):
            return left_h <= 1e-9
        return bool(np.isfinite(self.mean_usd[step, self.level(left_h), held, 0]))

    def told(self, price: float) -> str:
        """What is done first at a price, and what is expected of it all, in words."""
        place = int(np.abs(self.problem.market.prices - price).argmin())
        begin = int(self.actions[0, -1, 0, place])
        mean, deviation = self.mean_usd[0, -1, 0, place], self.deviation_usd[0, -1, 0, place]
        return f"begin with {begin} machines; {mean:.2f} USD expected, standard deviation {deviation:.2f}"

    def ceilings(self) -> Floats:
        """The least price at which no machine is charged, none being held (5.3); infinity: there is none.

        By step and level, shape (steps, levels).
        """
        idle = self.actions[:, :, 0, :] == 0
        first = idle.argmax(axis=2)
        prices = self.problem.market.prices
        return np.where(idle.any(axis=2), prices[first], np.inf)

    def skyline(self, ahead: int = 4) -> Floats:
        """Bids: the highest ceiling of a step and the next `ahead`, at the same work left; (steps, levels)."""
        ceilings = self.ceilings()
        steps = len(ceilings)
        return np.array([ceilings[step : min(step + ahead + 1, steps)].max(axis=0) for step in range(steps)])
