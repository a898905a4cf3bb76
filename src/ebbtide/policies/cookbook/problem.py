"""What a cookbook is solved for: a workflow, a deadline, a market as a Markov chain, an attitude to risk."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ebbtide.errors import InputError
from ebbtide.jobs.workflow import Workflow
from ebbtide.market.price_series import Floats

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ChargeModel:
    """Prices and charges as they look from a start, step by step (Cümülön-D, 5.1).

    Attributes:
        prices: USD per hour, rising, shape (P,).
        transition: Chance of each price at the beginning of the next step, given the one now;
            (steps, P, P).
        charge: What a machine is expected to be charged for in a step, USD, given the price at its beginning and
            at that of the next; shape (steps, P, P).
        charge_variance: Of the charge, given the price at the beginning of the step; shape (steps, P).
    """

    prices: Floats
    transition: Floats
    charge: Floats
    charge_variance: Floats

    def __post_init__(self) -> None:
        steps, count = len(self.transition), len(self.prices)
        if self.transition.shape != (steps, count, count) or self.charge.shape != (steps, count, count):
            raise InputError(
                f"transitions of shape {self.transition.shape} and charges of {self.charge.shape} do not go with "
                f"{count} prices"
            )
        if not np.allclose(self.transition.sum(axis=2), 1.0):
            raise InputError("a row of the transitions does not sum to 1")

    @property
    def steps(self) -> int:
        return len(self.transition)

    @property
    def mean_charge(self) -> Floats:
        """Given the price at the beginning of the step alone, shape (steps, P)."""
        return np.asarray((self.transition * self.charge).sum(axis=2))

    @classmethod
    def at_step_start(cls, prices: Floats, transition: Floats, step_h: float) -> ChargeModel:
        """Where a step is charged as a whole at the price at its beginning."""
        charge: Floats = np.broadcast_to((prices * step_h)[None, :, None], transition.shape)
        return cls(prices, transition, charge, np.zeros(transition.shape[:2]))

    def with_on_demand(self, usd_per_step: float) -> ChargeModel:
        """The market with machines beside it that cost the same always: each step on the cheaper of the two.

        As both are of one type, a step's machines are all of the kind that is expected to cost less in it.
        """
        dear = self.mean_charge > usd_per_step
        return ChargeModel(
            self.prices,
            self.transition,
            np.where(dear[:, :, None], usd_per_step, self.charge),
            np.where(dear, 0.0, self.charge_variance),
        )


@dataclass(frozen=True, eq=False)
class CookbookProblem:
    """A workflow to be done by a deadline.

    Attributes:
        workflow: What is to be done.
        market: Prices and charges; the deadline is at the end of its last step.
        step_h: How long a step is.
        most: Machines at once.
        work_unit_h: How finely work is told apart.
        risk_aversion: gamma: USD of expected cost that a USD of standard deviation is worth.
        charge_steps: kappa: steps in a charge period.

    Raises:
        InputError: A number is out of range.
    """

    workflow: Workflow
    market: ChargeModel
    step_h: float = 1.0
    most: int = 100
    work_unit_h: float = 1.0
    risk_aversion: float = 0.0
    charge_steps: int = 1

    def __post_init__(self) -> None:
        for name in ("step_h", "most", "work_unit_h", "charge_steps"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be positive")
        if not self.risk_aversion >= 0:
            raise InputError(f"risk_aversion is {self.risk_aversion}; it must not be negative")

    @property
    def levels_h(self) -> Floats:
        """Work left that is told apart, from none to all, machine-hours."""
        count = math.ceil(self.workflow.work_h / self.work_unit_h - 1e-9)
        levels: Floats = np.minimum(np.arange(count + 1) * self.work_unit_h, self.workflow.work_h)
        return levels


@dataclass(frozen=True, eq=False)
class Holdings:
    """What may have been charged in the last kappa steps, and where each action leads (Definition 3).

    Attributes:
        charged: Machines charged kappa, ..., 1 steps ago; shape (c, kappa).
        held: Machines held in the step before, shape (c,).
        sizes: Machines held in this step if m more are charged; shape (c, most + 1), -1: too many.
        leads_to: Which holdings then; the same shape.
    """

    charged: Integers
    held: Integers
    sizes: Integers
    leads_to: Integers

    @classmethod
    def of(cls, most: int, charge_steps: int) -> Holdings:
        """All that hold no more than so many machines at once."""
        rows = [row for row in product(range(most + 1), repeat=charge_steps) if sum(row) <= most]
        index = {row: place for place, row in enumerate(rows)}
        sizes = np.full((len(rows), most + 1), -1)
        leads_to = np.zeros((len(rows), most + 1), dtype=np.int64)
        for place, row in enumerate(rows):
            kept = sum(row[1:])
            for charged in range(most + 1 - kept):
                sizes[place, charged] = kept + charged
                leads_to[place, charged] = index[*row[1:], charged]
        charged_rows = np.array(rows, dtype=np.int64)
        return cls(charged_rows, charged_rows.sum(axis=1), sizes, leads_to)
