"""Live sources: prices now, and what clouds say of their spare capacity, with its time and by market.

A source is asked again and again. What it tells is an `Observation`: prices in the price schema, and signals.
Units are the same whoever tells a signal; what a share is a share of is the source's own, and said in its module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from ebbtide.base.utc import from_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.markets import MARKET_FIELDS, PRICE_COLUMNS, Market

if TYPE_CHECKING:
    import pandas as pd


class SignalKind(StrEnum):
    """Quantity that a signal measures."""

    AVAILABILITY = "availability"  # chance that a request for one machine succeeds, 0 to 1
    INTERRUPTION = "interruption"  # share of machines that the cloud interrupted, 0 to 1
    CAPACITY = "capacity"  # machines that can be rented now, a count
    UPTIME = "uptime"  # time for which most machines are expected to last, seconds


_MOST = {SignalKind.AVAILABILITY: 1.0, SignalKind.INTERRUPTION: 1.0}


@dataclass(frozen=True, slots=True)
class Signal:
    """Value that a source gave for one market.

    Attributes:
        time_s: Time from which the value holds, seconds since 1970.
        kind: Quantity that the value measures, with its unit.
        market: The market; its zone is its region where the signal is of the whole region.
        value: The value, in the unit of its kind.

    Raises:
        InputError: The value is out of its kind's range, the time is not finite, or the market has an empty name.
    """

    time_s: float
    kind: SignalKind
    market: Market
    value: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.value <= _MOST.get(self.kind, math.inf) or math.isinf(self.value):
            raise InputError(f"{self.kind} of {self.market} is {self.value:g}, which is out of range")
        if not math.isfinite(self.time_s):
            raise InputError(f"{self.kind} of {self.market} has no time")
        empty = next((name for name in MARKET_FIELDS if not getattr(self.market, name)), None)
        if empty is not None:
            raise InputError(f"{self.kind} of {self.market!r} names no {empty}", field=empty)


@dataclass(frozen=True)
class Observation:
    """Answer of a source that was asked once.

    Attributes:
        prices: Prices in the price schema, in any order; no rows: none.
        signals: Signals in any order.
        places: Region to cloud, of the regions whose new prices are all among `prices`.
        whole: Whether the capacity of all markets is told, so that a market which is left out has none.
    """

    prices: pd.DataFrame = field(default_factory=lambda: price_rows(()))
    signals: Sequence[Signal] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False


class LiveSource(Protocol):
    """Something that can be asked for prices or signals again and again.

    Attributes:
        name: Name by which users choose it, in lower case.
        every_s: Least time between two requests that the source should get, seconds; 0: as often as one likes.
    """

    @property
    def name(self) -> str: ...

    @property
    def every_s(self) -> float: ...

    def observe(self, since_s: Mapping[str, float], now_s: float) -> Observation:
        """Fetch the source's current prices and signals.

        Args:
            since_s: Time up to which prices are known, by region, seconds since 1970; sources without past prices
                may ignore it.
            now_s: The present time, seconds since 1970, which signals without a time of their own get.

        Raises:
            CloudError: The source does not answer, refuses the request, or gives an unexpected answer.
            InputError: Credentials are missing, or what was asked for does not exist.
        """
        ...


def price_rows(rows: Iterable[tuple[float, Market, float]]) -> pd.DataFrame:
    """Prices in the price schema, of times (seconds since 1970), markets and USD per hour."""
    import pandas as pd

    table = [
        [pd.Timestamp(from_epoch_s(time_s)), *(getattr(market, name) for name in MARKET_FIELDS), usd]
        for time_s, market, usd in rows
    ]
    return pd.DataFrame(table, columns=list(PRICE_COLUMNS)) if table else pd.DataFrame()
