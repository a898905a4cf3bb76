"""Cookbooks: what to do in every state, and what is to be expected of it."""

from __future__ import annotations

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
