"""The problem of a cookbook: a workflow, a deadline, a market as a Markov chain, a weight for risk."""

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
    """Prices and charges from a start on, step by step (Cümülön-D, 5.1).

    Attributes:
        prices: Price levels, USD per hour, rising; shape (P,).
        transition: Probability of each price at the beginning of the next step, given the price at the beginning
            of this one; shape (steps, P, P).
        charge: Expected charge of a machine for a step, USD, given the prices at its beginning and at that of the
            next; shape (steps, P, P).
        charge_variance: Variance of the charge, given the price at the beginning of the step; shape (steps, P).
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

    def place(self, price: float, *, is_short: bool = False) -> int:
        """The state of the nearest price; in a shortage (`with_shortages`) that without machines."""
        nearest = int(np.abs(self.prices - price).argmin())
        return nearest + len(self.prices) // 2 if is_short else nearest

    @property
    def mean_charge(self) -> Floats:
        """Expected charge given the price at the beginning of the step alone, USD; shape (steps, P)."""
        return np.asarray((self.transition * self.charge).sum(axis=2))

    @classmethod
    def at_step_start(cls, prices: Floats, transition: Floats, step_h: float) -> ChargeModel:
        """The model in which a step is charged as a whole at the price at its beginning."""
        charge: Floats = np.broadcast_to((prices * step_h)[None, :, None], transition.shape)
        return cls(prices, transition, charge, np.zeros(transition.shape[:2]))

    def with_shortages(self, comes: float, goes: float, usd_per_step: float) -> ChargeModel:
        """The market where capacity comes and goes, whatever the price: each price, with machines and without.

        A step that begins in a shortage is charged as if its machines were rented on demand, so that the cookbook
        works while there are machines, and knows what it costs to have waited. The prices of a shortage are
        infinite: none is the nearest to a price of the market.

        Args:
            comes: Probability that capacity is back at the next step.
            goes: Probability that capacity is gone at the next step.
            usd_per_step: Charge of a machine for a step without capacity, USD.
        """
        moves = np.array([[1.0 - goes, goes], [comes, 1.0 - comes]])
        charge = np.full_like(np.tile(self.charge, (1, 2, 2)), usd_per_step)
        count = len(self.prices)
        charge[:, :count] = np.tile(self.charge, (1, 1, 2))
        return ChargeModel(
            np.append(self.prices, np.full(count, np.inf)),
            np.kron(moves, self.transition),
            charge,
            np.concatenate([self.charge_variance, np.zeros_like(self.charge_variance)], axis=1),
        )

    def with_on_demand(self, usd_per_step: float) -> ChargeModel:
        """The market with on-demand machines of one price beside it: each step uses the cheaper of the two.

        As both are of one type, a step's machines are all of the kind with the lower expected charge.
        """
        expensive = self.mean_charge > usd_per_step
        return ChargeModel(
            self.prices,
            self.transition,
            np.where(expensive[:, :, None], usd_per_step, self.charge),
            np.where(expensive, 0.0, self.charge_variance),
        )


@dataclass(frozen=True, eq=False)
class CookbookProblem:
    """A workflow to be done by a deadline.

    Attributes:
        workflow: The work to be done, in jobs.
        market: Prices and charges; the deadline is at the end of its last step.
        step_h: Length of a step in hours.
        most: Largest number of machines at once.
        work_unit_h: Distance of two levels of work left, machine-hours.
        risk_aversion: gamma: USD of expected cost that a USD of standard deviation is worth.
        charge_steps: kappa: number of steps in a charge period.

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
        """Levels of work left, from none to all, machine-hours; shape (levels,)."""
        count = math.ceil(self.workflow.work_h / self.work_unit_h - 1e-9)
        levels: Floats = np.minimum(np.arange(count + 1) * self.work_unit_h, self.workflow.work_h)
        return levels


@dataclass(frozen=True, eq=False)
class Holdings:
    """All holdings, by what was charged in the last kappa steps, and where each action leads (Definition 3).

    Attributes:
        charged: Machines charged kappa, ..., 1 steps ago; shape (c, kappa).
        held: Machines held in the step before; shape (c,).
        sizes: Machines held in this step if m more are charged, -1: too many; shape (c, most + 1).
        leads_to: Index of the holding after that; the same shape.
    """

    charged: Integers
    held: Integers
    sizes: Integers
    leads_to: Integers

    @classmethod
    def of(cls, most: int, charge_steps: int) -> Holdings:
        """All holdings of no more than `most` machines at once."""
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
