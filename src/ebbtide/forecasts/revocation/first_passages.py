"""Count when a price first rose by a given share after each past moment; compiled, as policies call it often."""

from __future__ import annotations

import numpy as np

from ebbtide._compiling import compiled
from ebbtide.forecasts.revocation.minutes import Floats


@compiled
def held_since(times_s: Floats, prices: Floats, begins: Floats) -> tuple[Floats, Floats]:
    """The price at each moment, and the time of its last change.

    Args:
        times_s: Change points, seconds since 1970, shape (points,).
        prices: Price from each change point on, USD per hour, shape (points,).
        begins: Moments in order, none before the first change point, seconds since 1970, shape (n,).

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
    """For each rise and cell, the total weight of moments after which the price first rose by it in that cell.

    Args:
        times_s: Change points, seconds since 1970, shape (points,).
        prices: Price from each change point on, USD per hour, shape (points,).
        begins: Moments `cell_s` apart, seconds since 1970, shape (n,).
        held: The price at each moment, USD per hour, shape (n,).
        weights: Weight of each moment, shape (n,).
        rises: Rises as shares of the price, in rising order, shape (k,).
        cell_s: Length of a cell, seconds.
        cells: Number of cells after each moment.

    Returns:
        Weights, shape (k, cells); moments without such a rise count in no cell.
    """
    # The highest price of each cell: the one in force when it begins, and those set within it.
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
