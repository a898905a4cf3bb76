"""Bids for the machines that a cookbook asks for (Cümülön-D 5.3, 6.6, 6.7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ebbtide.market.price_series import Floats
from ebbtide.policies.cookbook.cookbook import Cookbook


@dataclass(frozen=True, eq=False)
class Bids:
    """Bids for machines; infinity where another try would come too late for the deadline.

    Attributes:
        table: Bid by step and level of work left, USD per hour; shape (steps, levels).
    """

    table: Floats

    @classmethod
    def infinite(cls, book: Cookbook) -> Bids:
        """Infinite bids: no price is too high."""
        return cls.fixed(book, np.inf)

    @classmethod
    def fixed(cls, book: Cookbook, usd_per_hour: float) -> Bids:
        """The same bid in all steps and levels."""
        return cls(np.full(book.actions.shape[:2], usd_per_hour))

    @classmethod
    def skyline(cls, book: Cookbook, ahead: int = 4) -> Bids:
        """The price from which the cookbook would rent no machine, looking some steps ahead (5.3)."""
        return cls(book.skyline(ahead))

    @classmethod
    def by_step(cls, book: Cookbook, usd_per_hour: Floats) -> Bids:
        """Bids that depend on the step alone; shape (steps,)."""
        return cls(np.repeat(np.asarray(usd_per_hour)[:, None], book.actions.shape[1], axis=1))

    @classmethod
    def dba(cls, book: Cookbook, prices: Floats) -> Bids:
        """DBA's bids (6.7): the expected cost of waiting, if each step's price were drawn independently.

        With one step left, any price is accepted; with more, none above the expected cost of the later ones.

        Args:
            book: A cookbook with so many steps and levels.
            prices: Prices that were seen, equally likely each, USD per hour.
        """
        steps = len(book.actions)
        bids, waiting = np.full(steps, np.inf), float(prices.mean())
        for step in reversed(range(steps - 1)):
            bids[step] = waiting
            waiting = float(np.minimum(prices, waiting).mean())
        return cls.by_step(book, bids)
