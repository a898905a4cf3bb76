"""Cookbooks: the action in every state, and its expected cost and deviation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ebbtide.market.price_series import Floats
from ebbtide.policies.cookbook.problem import CookbookProblem, Holdings

# Amounts of work that differ by no more are the same, machine-hours: a run's reports round what it has done.
_SAME_H = 1e-6


@dataclass(frozen=True, eq=False)
class Cookbook:
    """A solved cookbook problem.

    Attributes:
        problem: The problem that it was solved for.
        actions: Number of machines to charge; shape (steps, levels, holdings, P).
        mean_usd: Expected cost from the state on, USD; infinity: the deadline cannot be met; the same shape.
        deviation_usd: Standard deviation of that cost, USD; the same shape.
    """

    problem: CookbookProblem
    actions: NDArray[np.unsignedinteger]
    mean_usd: NDArray[np.float32]
    deviation_usd: NDArray[np.float32]

    def choose(self, hours: float, price: float, left_h: float, charged: int | Sequence[int]) -> int:
        """The number of machines to hold now (5.4), interpolated between the actions of two steps.

        Work between two levels is rounded up to the upper. It is never so few machines that the next step could
        not be begun in time.

        Args:
            hours: Hours since the start of the workflow.
            price: Price of a machine, USD per hour.
            left_h: Work left in machine-hours.
            charged: How many of the machines held now were charged kappa, ..., 1 steps ago; where machines are
                charged in each step, their number.
        """
        problem = self.problem
        steps, most = len(self.actions), problem.most
        row = self._row(charged)
        kept, held = sum(row[1:]), sum(row)
        holding = self._index[row]
        step = min(int((hours + 1e-9) / problem.step_h), steps - 1)
        share = max(hours / problem.step_h - step, 0.0)
        place = problem.market.place(price)
        level = self.level(left_h)
        if not np.isfinite(self.mean_usd[step, level, holding, 0]):
            return most
        size = kept + int(self.actions[step, level, holding, place])
        if share > 1e-9 and step + 1 < steps and np.isfinite(self.mean_usd[step + 1, level, holding, 0]):
            after = kept + int(self.actions[step + 1, level, holding, place])
            # Rounded half up, with a tolerance for floating point.
            size = math.floor((1.0 - share) * size + share * after + 0.5 + 1e-9)
        rest_h = (1.0 - share) * problem.step_h
        while size < most:
            then_h = float(problem.workflow.progress(left_h, held, size, rest_h))
            if self.can_begin(step + 1, then_h, size):
                break
            size += 1
        return size

    def _row(self, charged: int | Sequence[int]) -> tuple[int, ...]:
        """A holding as it is known here: machines that are too many count for none, the oldest first."""
        row = [charged] if isinstance(charged, int) else list(charged)
        for place in range(len(row)):
            row[place] -= min(max(sum(row) - self.problem.most, 0), row[place])
        return tuple(row)

    @cached_property
    def _index(self) -> dict[tuple[int, ...], int]:
        """Index of each holding, by how many machines were charged kappa, ..., 1 steps ago."""
        rows = Holdings.of(self.problem.most, self.problem.charge_steps).charged
        return {tuple(int(count) for count in row): place for place, row in enumerate(rows)}

    def level(self, left_h: float) -> int:
        """The index of the level of work left; between two levels, of the upper."""
        levels_h = self.problem.levels_h
        return min(int(np.searchsorted(levels_h, left_h - _SAME_H)), len(levels_h) - 1)

    def can_begin(self, step: int, left_h: float, held: int) -> bool:
        """Return whether the deadline can be met from a step's start with this work left and machines held."""
        if left_h > self.problem.workflow.work_h + 1e-9:
            return False
        if step == len(self.actions):
            return left_h <= _SAME_H
        holding = self._index[(*(0,) * (self.problem.charge_steps - 1), held)]
        return bool(np.isfinite(self.mean_usd[step, self.level(left_h), holding, 0]))

    def summary(self, price: float) -> str:
        """The first action at a price and the expected cost, in words."""
        place = self.problem.market.place(price)
        begin = int(self.actions[0, -1, 0, place])
        mean, deviation = self.mean_usd[0, -1, 0, place], self.deviation_usd[0, -1, 0, place]
        return f"begin with {begin} machines; {mean:.2f} USD expected, standard deviation {deviation:.2f}"

    def expected_usd(
        self, hours: float, price: float, left_h: float, held: int, *, is_short: bool = False
    ) -> float:
        """Expected cost from here on, USD, in the state of the table that is nearest; infinity: not in time.

        Args:
            hours: Hours since the start of the workflow.
            price: Price of a machine, USD per hour.
            left_h: Work left in machine-hours.
            held: Number of machines that are held, as if all had been charged a step ago.
            is_short: Whether the market has no machines, where shortages count.
        """
        step = min(int((hours + 1e-9) / self.problem.step_h), len(self.mean_usd) - 1)
        place = self.problem.market.place(price, is_short=is_short)
        row = self._index[self._row([*(0,) * (self.problem.charge_steps - 1), held])]
        return float(self.mean_usd[step, self.level(left_h), row, place])

    def ceilings(self) -> Floats:
        """The least price at which no machine is charged when none is held (5.3), USD per hour; infinity: none.

        Shape (steps, levels).
        """
        idle = self.actions[:, :, 0, :] == 0
        first = idle.argmax(axis=2)
        prices = self.problem.market.prices
        return np.where(idle.any(axis=2), prices[first], np.inf)

    def skyline(self, ahead: int = 4) -> Floats:
        """The highest ceiling of a step and the next `ahead` at the same work left; shape (steps, levels)."""
        ceilings = self.ceilings()
        steps = len(ceilings)
        return np.array([ceilings[step : min(step + ahead + 1, steps)].max(axis=0) for step in range(steps)])
