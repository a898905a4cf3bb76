"""Counting when a price first rose so far after each past moment: compiled, since it is asked for all the time."""

from __future__ import annotations

import numpy as np

from ebbtide._compiling import compiled
from ebbtide.forecasts.revocation.minutes import Floats


@compiled
def held_since(times_s: Floats, prices: Floats, begins: Floats) -> tuple[Floats, Floats]:
    """The price at each moment, and since when it had stood.

    Args:
        times_s: Change points, shape (points,).
        prices: Shape (points,).
        begins: Moments in order, none before the first change point; shape (n,).

    Returns:
        Prices and times, each of shape (n,).
    """
    held = np.empty(len(begins))
    since_s = np.empty(len(begins))
    at, changed_s = 0, times_s[0]
    for number in range(len(begins)):
        while at + 1 < len(times_s) and times_s[at + 1] <= begins[number]:
            at += 1
            if prices[at] != prices[at - 1]:
                changed_s = times_s[at]
        held[number] = prices[at]
        since_s[number] = changed_s
    return held, since_s


@compiled
def first_passages(
    times_s: Floats,
    prices: Floats,
    begins: Floats,
    held: Floats,
    weights: Floats,
    rises: Floats,
    cell_s: float,
    cells: int,
) -> Floats:
    """The weight of the moments after which the price first rose so far within each cell.

    Args:
        times_s: Change points, shape (points,).
        prices: Shape (points,).
        begins: Moments `cell_s` apart; shape (n,).
        held: The price at each, shape (n,).
        weights: Of each, shape (n,).
        rises: Shares of the price, rising, shape (k,).
        cell_s: How long a cell is.
        cells: How many follow each moment.

    Returns:
        Shape (k, cells): moments that never see such a rise count nowhere.
    """
    # The highest price of each cell: what was in force at its beginning, and what was set in it.
    total = len(begins) + cells - 1
    highest = np.empty(total)
    at = 0
    for cell in range(total):
        begin_s = (
            begins[0] + cell_s * cell if cell < len(begins) else begins[-1] + cell_s * (cell - len(begins) + 1)
        )
        end_s = begin_s + cell_s
        while at + 1 < len(times_s) and times_s[at + 1] <= begin_s:
            at += 1
        most = prices[at]
        ahead = at + 1
        while ahead < len(times_s) and times_s[ahead] < end_s:
            most = max(most, prices[ahead])
            ahead += 1
        highest[cell] = most
    counted = np.zeros((len(rises), cells))
    for number in range(len(begins)):
        most = 0.0
        rise = 0
        for cell in range(cells):
            if highest[number + cell] <= most:
                continue
            most = highest[number + cell]
            rose = most / held[number] - 1.0
            while rise < len(rises) and rose > rises[rise]:
                counted[rise, cell] += weights[number]
                rise += 1
            if rise == len(rises):
                break
    return counted
