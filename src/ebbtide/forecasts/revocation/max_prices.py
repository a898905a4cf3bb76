"""Max prices to train and to score on."""

from __future__ import annotations

import math
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ebbtide.errors import InputError

Floats = NDArray[np.float64]

# SpotTune, Algorithm 1, line 4, after Tributary: USD per hour above the price.
PUBLISHED_DELTA_USD = (0.00001, 0.2)

# Rises to train on, as a fraction of the price: from a tenth of a per mille to three times.
_RISES = (1e-4, 3.0)


class MaxPrices(StrEnum):
    """Where training's max prices come from."""

    BORDER = "border"  # SpotTune's Algorithm 2
    PUBLISHED = "published"  # Tributary: the published delta
    MIXED = "mixed"  # both, and rises of every size


def published(prices: Floats, random: np.random.Generator) -> Floats:
    """Prices plus a delta drawn uniformly from the published interval, USD per hour, in the shape given."""
    return prices + random.uniform(*PUBLISHED_DELTA_USD, prices.shape)


def above(prices: Floats, fraction: float) -> Floats:
    """Prices plus a fraction of them, in the shape given.

    Raises:
        InputError: The fraction is negative.
    """
    if fraction < 0:
        raise InputError(f"delta is {fraction}; a max price below the price would be refused at once")
    return prices * (1.0 + fraction)


def draw(kind: MaxPrices, prices: Floats, border: Floats, number: int, random: np.random.Generator) -> Floats:
    """Several max prices for each sample, shape (samples, number).

    Args:
        kind: Where the max prices come from.
        prices: Price at each sample, USD per hour, shape (samples,).
        border: Max price of Algorithm 2 at each sample, USD per hour, shape (samples,).
        number: Max prices per sample; those of `BORDER` are all equal.
        random: Generator that draws the max prices.
    """
    shape = (len(prices), number)
    if kind is MaxPrices.BORDER:
        return np.broadcast_to(border[:, None], shape)
    if kind is MaxPrices.PUBLISHED:
        return published(np.broadcast_to(prices[:, None], shape), random)
    low, high = _RISES
    rises = np.exp(random.uniform(math.log(low), math.log(high), shape))
    drawn: Floats = prices[:, None] * (1.0 + rises)
    drawn[:, 0] = border
    drawn[:, 1::3] = published(np.broadcast_to(prices[:, None], drawn[:, 1::3].shape), random)
    return drawn
