"""Allocations made real: who runs on what in each round, so that shares of time tend to X (Gavel, 5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ebbtide.market.price_series import Floats


@dataclass(frozen=True, eq=False)
class Received:
    """Time that each job has had on each type.

    Attributes:
        hours: Shape (m, n).
        elapsed_h: Since the allocation holds.
    """

    hours: Floats
    elapsed_h: float = 0.0

    @classmethod
    def nothing(cls, shape: tuple[int, int]) -> Received:
        """Before the first round."""
        return cls(np.zeros(shape))

    def after(self, chosen: NDArray[np.int64], round_h: float) -> Received:
        """With a round more; arguments as `next_round` gives them."""
        hours = self.hours.copy()
        running = np.flatnonzero(chosen >= 0)
        hours[running, chosen[running]] += round_h
        return Received(hours, self.elapsed_h + round_h)


def next_round(shares: Floats, quotas: Floats, received: Received, round_h: float) -> NDArray[np.int64]:
    """The type of each job in the next round, or -1: it waits; shape (m,).

    Pairs are served by how much time they are owed: what X gives them by the end of the round less what they had.
    A job gets one type, a type no more jobs than machines. What no pair is owed is left idle.

    Args:
        shares: X, shape (m, n).
        quotas: Machines of each type, shape (n,).
        received: So far.
        round_h: Length of a round.
    """
    owed = shares * (received.elapsed_h + round_h) - received.hours
    chosen = np.full(len(shares), -1, dtype=np.int64)
    # A machine and a half cannot be held at once: now and then two.
    used = received.hours.sum(axis=0)
    free = np.where(np.isfinite(quotas), quotas * (received.elapsed_h + round_h) - used, np.inf)
    places = np.minimum(np.floor(free / round_h + 1e-9), np.ceil(quotas))
    for place in np.argsort(-owed, axis=None, kind="stable"):
        job, kind = divmod(int(place), shares.shape[1])
        if owed[job, kind] < round_h / 2.0 - 1e-9:
            break
        if chosen[job] < 0 and places[kind] >= 1.0:
            chosen[job] = kind
            places[kind] -= 1.0
    return chosen
