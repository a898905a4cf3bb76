"""Lifetimes of machines at a max price: until the price exceeds it, right-censored where the record ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ebbtide._utc import HOUR_S
from ebbtide.market.price_series import Floats, PriceSeries


@dataclass(frozen=True)
class Lifetimes:
    """Lifetimes of machines rented at evenly spaced moments of a record.

    Attributes:
        lived_s: Seconds until revocation, or until the record ends if that is earlier, shape (n,).
        ended: Whether the machine was revoked; False where its lifetime is right-censored, shape (n,).
    """

    lived_s: Floats
    ended: np.ndarray

    @property
    def mean_s(self) -> float:
        """Mean lifetime, seconds: total time lived over the number of revocations.

        This is the maximum-likelihood estimate of an exponential law with right-censoring; infinity where there
        was no revocation.
        """
        ends = int(self.ended.sum())
        return float(self.lived_s.sum()) / ends if ends else math.inf

    def share_living(self, duration_s: float) -> float:
        """Share that lived for `duration_s`, among machines of which this is known; NaN if there are none."""
        known = self.ended | (self.lived_s >= duration_s)
        return float((self.lived_s[known] >= duration_s).mean()) if known.any() else math.nan

    @property
    def median_s(self) -> float:
        """Median lifetime, seconds; infinity where more than half are right-censored."""
        return float(np.median(np.where(self.ended, self.lived_s, math.inf))) if len(self.lived_s) else math.inf


def lifetimes(
    series: PriceSeries, start_s: float, end_s: float, max_price: float, every_s: float = HOUR_S
) -> Lifetimes:
    """Lifetimes of machines rented every `every_s` seconds, whenever the price is not above the max price.

    Args:
        series: Prices of the market, USD per hour.
        start_s: The first moment of renting, seconds since 1970.
        end_s: When the record ends, seconds since 1970.
        max_price: The max price, USD per hour; at infinity nothing is revoked.
        every_s: Seconds between two moments of renting.
    """
    moments = np.arange(max(start_s, float(series.times_s[0])), end_s, every_s)
    moments = moments[series.at_each(moments) <= max_price]
    until = np.array([series.next_above(moment, max_price) for moment in moments.tolist()])
    return Lifetimes(np.minimum(until, end_s) - moments, until < end_s)
