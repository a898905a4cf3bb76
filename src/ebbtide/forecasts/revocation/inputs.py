"""Inputs of the models: max prices to train and score on, and features scaled by the training data alone.

Prices enter as logarithms relative to the present price, so that what was learnt at one price level holds at
another; the level itself enters the present record, relative to the market's usual one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.minutes import FEATURES, WINDOW, Floats, Floats32, Minutes
from ebbtide.forecasts.revocation.splits import Samples

# SpotTune, Algorithm 1, line 4, after Tributary: USD per hour above the price.
PUBLISHED_DELTA_USD = (0.00001, 0.2)

# Rises to train on, as a fraction of the price: from a tenth of a per mille to three times.
_RISES = (1e-4, 3.0)


class MaxPrices(StrEnum):
    """Source of the max prices used in training."""

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


# Inputs per max price: its distance above the price on a scale for small rises and on one for large rises.
MAX_PRICE_INPUTS = 2
PRESENT_INPUTS = len(FEATURES) + MAX_PRICE_INPUTS

_LEAST_RISE = 1e-5


@dataclass(frozen=True)
class Scaling:
    """Scales of the inputs, fitted on training samples.

    Attributes:
        usual_log_price: Median logarithm of each market's price, shape (markets,).
        mean: Mean of each transformed feature, shape (6,).
        deviation: Standard deviation of each transformed feature, shape (6,).
    """

    usual_log_price: Floats
    mean: Floats
    deviation: Floats


def transformed(features: Floats32) -> Floats32:
    """Features on comparable scales: logarithms of prices, counts and durations; shape as given."""
    result = np.empty_like(features)
    with np.errstate(divide="ignore"):
        result[..., :2] = np.log(np.maximum(features[..., :2], 1e-6))
    result[..., 2] = np.log1p(features[..., 2])
    result[..., 3] = np.log1p(features[..., 3] / 60.0)
    result[..., 4:] = features[..., 4:]
    return result


def excerpt(minutes: Minutes, samples: Samples) -> tuple[Floats32, Samples]:
    """The `transformed` features of the samples' minutes and their past, and the samples' positions in them."""
    first = max(int(samples.minute.min(initial=len(minutes.times_s))) - WINDOW + 1, 0)
    last = int(samples.minute.max(initial=first)) + 1
    return transformed(minutes.features[:, first:last]), Samples(samples.market, samples.minute - first)


def fit_scaling(table: Floats32, samples: Samples, markets: int) -> Scaling:
    """Fit scales on the samples alone; a market without samples gets the usual price of all markets.

    Args:
        table: `transformed` features, shape (markets, minutes, 6).
        samples: Samples of the training data.
        markets: Number of markets in the table.
    """
    rows = table[samples.market, samples.minute].astype(np.float64)
    usual = np.full(markets, float(np.median(rows[:, 0])))
    for market in np.unique(samples.market):
        usual[market] = np.median(rows[samples.market == market, 0])
    relative = rows.copy()
    relative[:, 1] -= rows[:, 0]
    relative[:, 0] -= usual[samples.market]
    return Scaling(usual, relative.mean(axis=0), np.maximum(relative.std(axis=0), 1e-3))


def windows(table: Floats32, samples: Samples, scaling: Scaling) -> Floats32:
    """The 60 records up to each sample, prices relative to the present one, scaled; shape (n, 60, 6)."""
    columns = samples.minute[:, None] + np.arange(1 - WINDOW, 1)
    records = table[samples.market[:, None], columns]
    records[:, :, :2] -= records[:, -1:, :1]
    # Relative prices are small already, and their zero is meaningful: they are not scaled.
    records[:, :, 2:] = (records[:, :, 2:] - scaling.mean[2:]) / scaling.deviation[2:]
    filled: Floats32 = np.nan_to_num(records, copy=False)
    return filled


def present(table: Floats32, samples: Samples, scaling: Scaling) -> Floats32:
    """The present record of each sample, its price relative to the usual one, scaled; shape (n, 6)."""
    record = table[samples.market, samples.minute].astype(np.float64)
    record[:, 1] -= record[:, 0]
    record[:, 0] -= scaling.usual_log_price[samples.market]
    return ((record - scaling.mean) / scaling.deviation).astype(np.float32)


def max_price_inputs(prices: Floats, max_prices: Floats) -> Floats32:
    """Model inputs for the margin of max prices over prices, shape (..., 2); a negative margin counts as tiny."""
    rise = np.maximum(max_prices / prices - 1.0, _LEAST_RISE)
    return np.stack([np.log10(rise) / 2.0, np.minimum(np.log1p(rise), 4.0)], axis=-1).astype(np.float32)


def prices_of(minutes: Minutes, samples: Samples) -> Floats:
    """The price at each sample, shape (n,)."""
    return minutes.prices[samples.market, samples.minute]
