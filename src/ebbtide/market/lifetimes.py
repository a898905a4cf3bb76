"""How long machines live at a max price: from any moment until the price exceeds it, or until the record ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ebbtide._utc import HOUR_S
from ebbtide.market.price_series import Floats, PriceSeries


@dataclass(frozen=True)
class Lifetimes:
    """Of machines rented at even moments of a record.

    Attributes:
        lived_s: Until the end or, if it had not come, until the record's; shape (n,).
        ended: Whether the end was seen, shape (n,).
    """

    lived_s: Floats
    ended: np.ndarray

    @property
    def mean_s(self) -> float:
        """Time lived over ends seen: the exponential law's estimate, which takes the unseen ends for what they
        are; infinity where no end was seen."""
        ends = int(self.ended.sum())
        return float(self.lived_s.sum()) / ends if ends else math.inf

    def share_living(self, duration_s: float) -> float:
        """Share that lived so long, of those of which it is known; NaN where it is of none."""
        known = self.ended | (self.lived_s >= duration_s)
        return float((self.lived_s[known] >= duration_s).mean()) if known.any() else math.nan

    @property
    def median_s(self) -> float:
        """Half of them lived so long; infinity where more than half outlived the record."""
        return float(np.median(np.where(self.ended, self.lived_s, math.inf))) if len(self.lived_s) else math.inf


def lifetimes(
    series: PriceSeries, start_s: float, end_s: float, max_price: float, every_s: float = HOUR_S
) -> Lifetimes:
    """Of machines rented every so often while the price was not above the max price.

    Args:
        series: Prices, USD per hour.
        start_s: The first moment.
        end_s: The record's end.
        max_price: USD per hour; infinity: nothing ends them.
        every_s: Between the moments.
    """
    moments = np.arange(max(start_s, float(series.times_s[0])), end_s, every_s)
    moments = moments[series.at_each(moments) <= max_price]
    until = np.array([series.next_above(moment, max_price) for moment in moments.tolist()])
    return Lifetimes(np.minimum(until, end_s) - moments, until < end_s)
