"""Machines of a replayed market on the real clock, for providers that run real processes on them."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from ebbtide.market.leases import Lease
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.api.events import Event
from ebbtide.simulation.replayed_market import ReplayedMarket


class RealTimeProvider(ABC):
    """The part of a provider that rents: market time runs with real time, faster by a factor.

    Subclasses run the work on the machines.

    Args:
        market: The replayed market to rent from.
        speed: Market seconds in a real second.
    """

    def __init__(self, market: ReplayedMarket, speed: float) -> None:
        self._market = market
        self._speed = speed
        self._began = time.monotonic()
        self._began_s = market.now_s
        self._leases: dict[int, Lease] = {}
        self._out: deque[Event] = deque()

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

    def prices(self, market: Market) -> PriceSeries:
        return self._market.prices(market)

    def launch(self, lease: Lease) -> None:
        self._leases[lease.lease_id] = lease
        self._market.now_s = self.now_s
        self._market.launch(lease)

    def terminate(self, lease: Lease) -> None:
        self._market.now_s = self.now_s
        self._market.terminate(lease)
        self._take_away(lease)

    def next_event(self, until_s: float) -> Event | None:
        while not self._out:
            own_s, market_s = self._own_time_s(), self._market.next_time_s
            due_s = min(own_s, market_s, until_s)
            if self._market.is_over or self._clock_s() < due_s:
                over = self._market.is_over
                self._listen(0.0 if over else (due_s - self._clock_s()) / self._speed)
                if over and not self._out:
                    return None
            elif own_s <= due_s:
                self._act(due_s)
            elif market_s <= until_s:
                self._rent()
            else:
                self._market.now_s = max(self._market.now_s, until_s)
                return None
        return self._out.popleft()

    @abstractmethod
    def _listen(self, wait_s: float) -> None:
        """Handle one message of what runs, if one comes within `wait_s` real seconds."""

    @abstractmethod
    def _rented(self, event: Event, lease: Lease) -> None:
        """Handle an event of a rented machine: running, notice, ended."""

    @abstractmethod
    def _take_away(self, lease: Lease) -> None:
        """End what runs on a machine that is gone."""

    def _own_time_s(self) -> float:
        """Market time at which `_act` is due, seconds since 1970; infinity: never."""
        return math.inf

    def _act(self, now_s: float) -> None:
        """Do what was due at `_own_time_s`."""
        self._market.now_s = max(self._market.now_s, now_s)

    def _rent(self) -> None:
        """Let the market's next event happen."""
        event = self._market.advance()
        if event is None:
            return
        self._out.append(event)
        lease = self._leases.get(event.lease_id)
        if lease is not None:
            self._rented(event, lease)

    def _clock_s(self) -> float:
        return self._began_s + (time.monotonic() - self._began) * self._speed
