"""A replayed market on the real clock, for what really runs on its machines."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ebbtide.execution.replayed_market import ReplayedMarket
from ebbtide.market.leases import Lease
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.events import Event


class RealTimeMarket:
    """A replayed market whose time runs with real time, faster by a factor.

    Args:
        market: What to rent from.
        speed: Market seconds in a real second.
    """

    def __init__(self, market: ReplayedMarket, speed: float) -> None:
        self._market = market
        self._speed = speed
        self._began = time.monotonic()
        self._began_s = market.now_s

    @property
    def now_s(self) -> float:
        """The time: not beyond what is to happen next, late as that may be."""
        return max(self._market.now_s, min(self._clock_s(), self._market.next_time_s))

    @property
    def is_over(self) -> bool:
        return self._market.is_over

    @property
    def markets(self) -> Sequence[Market]:
        return self._market.markets

    @property
    def next_time_s(self) -> float:
        """When something happens next; infinity once the history is over."""
        return self._market.next_time_s

    def prices(self, market: Market) -> PriceSeries:
        """The market's prices, the future included."""
        return self._market.prices(market)

    def watch_prices(self) -> None:
        """Tell of every price set from now on."""
        self._market.watch_prices()

    def launch(self, lease: Lease) -> None:
        """Ask for a machine."""
        self._market.now_s = self.now_s
        self._market.launch(lease)

    def terminate(self, lease: Lease) -> None:
        """Give a machine back now."""
        self._market.now_s = self.now_s
        self._market.terminate(lease)

    def advance(self) -> Event | None:
        """Do what happens next. None: nothing that anyone need be told."""
        return self._market.advance()

    def has_come(self, time_s: float) -> bool:
        """Whether it is so late already."""
        return self._clock_s() >= time_s

    def real_s_until(self, time_s: float) -> float:
        """Real seconds until then."""
        return max((time_s - self._clock_s()) / self._speed, 0.0)

    def note(self, time_s: float) -> None:
        """A time has come at which nothing happens in the market."""
        self._market.now_s = max(self._market.now_s, time_s)

    def _clock_s(self) -> float:
        return self._began_s + (time.monotonic() - self._began) * self._speed
