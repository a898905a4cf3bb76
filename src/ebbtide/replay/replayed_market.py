"""A replayed market: leases that start, get their notice and are taken, as recorded prices and capacity say.

It keeps a calendar and a clock of its own and knows nothing of training, so that simulated training and real
processes can be put on the same machines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum, auto
from heapq import heappop, heappush

from ebbtide.base.utc import iso
from ebbtide.errors import InputError
from ebbtide.market.availability import Availability
from ebbtide.market.billing import Billing
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.events import Event, Wake
from ebbtide.replay.start_delay import MeasuredStartDelay, StartDelay


class _Due(Enum):
    """Kind of an event on the market's calendar."""

    LAUNCH = auto()
    BOOT = auto()
    NOTICE = auto()
    REVOKE = auto()
    PRICE = auto()
    END = auto()


def cleared_prices(prices: PriceHistory, billing: Billing) -> PriceHistory:
    """The prices that count under a billing rule: where it is an auction by rounds, those of the rounds."""
    if not billing.has_rounds:
        return prices
    return prices.each(lambda market, series: billing.of(market.cloud).cleared(series))


class ReplayedMarket:
    """Rents from a price history.

    A request fails if at its launch the price is above its max price, or the market has no capacity left. A
    lease gets its notice when the price exceeds its max price (where billing says that prices revoke), when
    capacity falls below the number of machines held, or so that it ends at its maximum lifetime. Where billing is
    by rounds of an auction, prices are those of the rounds, and spot machines are given at the start of one.

    Args:
        prices: Price histories of all markets.
        start_s: Start of the replay, seconds since 1970.
        billing: Billing of spot leases, with what revokes them and how much notice they get.
        availability: Recorded capacity of the markets that have a record.
        delay: How long machines take to start.

    Raises:
        InputError: `start_s` is outside the history.
    """

    def __init__(
        self,
        prices: PriceHistory,
        start_s: float,
        billing: Billing,
        *,
        availability: Availability | None = None,
        delay: StartDelay | MeasuredStartDelay | None = None,
    ) -> None:
        if not prices.start_s <= start_s < prices.end_s:
            raise InputError(
                f"start {iso(start_s)} is outside the history, "
                f"which covers {iso(prices.start_s)} to {iso(prices.end_s)}"
            )
        self.now_s = start_s
        self.is_over = False
        self.moments = 0
        self._history = cleared_prices(prices, billing)
        self._billing = billing
        self._availability = availability or Availability({})
        self._delay: StartDelay | MeasuredStartDelay = delay or StartDelay()
        self._calendar: list[tuple[float, int, _Due, Lease | Market | None]] = []
        self._entered = 0
        # Negative places: at one moment prices come before all else, which is entered with numbers from 1.
        self._price_order: dict[Market, int] = {}
        self._places: dict[Market, dict[int, int]] = {}
        self._interrupted: set[int] = set()
        self._begun: Sequence[Market] = ()
        self._next_begins_s = start_s
        self._enter(prices.end_s, _Due.END)

    @property
    def markets(self) -> Sequence[Market]:
        """Those that have a price by now, in order."""
        if self.now_s >= self._next_begins_s:
            self._begun, self._next_begins_s = self._history.begun_by(self.now_s)
        return self._begun

    def prices(self, market: Market) -> PriceSeries:
        """The market's prices, the future included."""
        return self._history[market]

    def watch_prices(self) -> None:
        """Tell of every price set from now on.

        Prices set at one moment are told in the order of markets, and before what comes of them, as a live run
        tells them, which looks at all at once.
        """
        self._price_order = {market: place - len(self._history) for place, market in enumerate(self._history)}
        for market in self._history:
            self._enter_price(market)

    def launch(self, lease: Lease) -> None:
        """Ask for a machine."""
        given_s = self.now_s + self._delay.of(lease)[0]
        if not lease.on_demand:
            given_s = self._billing.of(lease.market.cloud).given_s(given_s)
        self._enter(given_s, _Due.LAUNCH, lease)

    def terminate(self, lease: Lease) -> None:
        """Give a machine back now."""
        lease.state = LeaseState.RELEASED if lease.is_charged else LeaseState.FAILED
        lease.ended_s = self.now_s
        self._leave_place(lease)

    def interrupt(self, lease: Lease) -> None:
        """Give a lease its notice now, whatever price and capacity are: its revocation was asked for."""
        if lease.state is LeaseState.RUNNING:
            self._interrupted.add(lease.lease_id)
            self._enter(self.now_s, _Due.NOTICE, lease)

    @property
    def next_time_s(self) -> float:
        """Time of the next event, seconds since 1970; infinity once the history is over."""
        return self._calendar[0][0] if self._calendar and not self.is_over else math.inf

    def advance(self) -> Event | None:
        """Move to what happens next and do it. None: nothing that the engine has to know."""
        time_s, _, due, subject = heappop(self._calendar)
        self.now_s = time_s
        self.moments += 1
        if due is _Due.END:
            self.is_over = True
        elif isinstance(subject, Market):
            self._enter_price(subject)
            return Event(Wake.PRICE, time_s, market=subject)
        elif subject is not None and subject.is_open:
            return self._happen(subject, due)
        return None

    def _happen(self, lease: Lease, due: _Due) -> Event | None:
        if due is _Due.LAUNCH:
            return self._start(lease)
        if due is _Due.BOOT:
            lease.running_s = self.now_s
            if lease.state is LeaseState.STARTING:
                lease.state = LeaseState.RUNNING
            return self._event(Wake.RUNNING, lease)
        if due is _Due.NOTICE:
            lease.state = LeaseState.NOTICED
            lease.revoke_at_s = self._revoke_at_s(lease)
            self._enter(lease.revoke_at_s, _Due.REVOKE, lease)
            return self._event(Wake.NOTICE, lease, self._why(lease))
        lease.state = LeaseState.REVOKED
        lease.ended_s = self.now_s
        self._leave_place(lease)
        return self._event(Wake.ENDED, lease, "revoked")

    def _start(self, lease: Lease) -> Event | None:
        problem = None if lease.on_demand else self._refusal(lease)
        if problem:
            lease.state = LeaseState.FAILED
            lease.ended_s = self.now_s
            return self._event(Wake.LAUNCH_FAILED, lease, problem)
        lease.state = LeaseState.STARTING
        lease.started_s = self.now_s
        self._enter(self.now_s + self._delay.of(lease)[1], _Due.BOOT, lease)
        if not lease.on_demand:
            self._enter(self._notice_s(lease, self._take_place(lease)), _Due.NOTICE, lease)
        return None

    def _refusal(self, lease: Lease) -> str | None:
        price = self._history[lease.market].at(self.now_s)
        if math.isnan(price):
            return "no price"
        if price > lease.max_price_usd_per_hour:
            return f"price {price:.4f} above max price {lease.max_price_usd_per_hour:.4f}"
        capacity = self._availability.get(lease.market)
        if capacity is not None and capacity.at(self.now_s) < self._free_place(lease.market):
            return "no capacity"
        return None

    def _notice_s(self, lease: Lease, place: int) -> float:
        """Time at which the lease gets its notice, seconds since 1970."""
        rule = self._billing.of(lease.market.cloud)
        moments = [lease.started_s + rule.max_lifetime_s - rule.notice_s]
        if rule.price_revokes:
            series = self._history[lease.market]
            moments.append(series.next_above(self.now_s, lease.max_price_usd_per_hour))
        capacity = self._availability.get(lease.market)
        if capacity is not None:
            moments.append(capacity.next_below(self.now_s, place))
        return max(min(moments), self.now_s)

    def _revoke_at_s(self, lease: Lease) -> float:
        rule = self._billing.of(lease.market.cloud)
        return max(min(self.now_s + rule.notice_s, lease.started_s + rule.max_lifetime_s), self.now_s)

    def _why(self, lease: Lease) -> str:
        if lease.lease_id in self._interrupted:
            return "asked for"
        price, rule = self._history[lease.market].at(self.now_s), self._billing.of(lease.market.cloud)
        if rule.price_revokes and price > lease.max_price_usd_per_hour:
            return f"price {price:.4f} above max price {lease.max_price_usd_per_hour:.4f}"
        if self.now_s + rule.notice_s >= lease.started_s + rule.max_lifetime_s:
            return "maximum lifetime"
        return "capacity"

    def _free_place(self, market: Market) -> int:
        """The lowest place, from 1, that no lease holds in a market.

        The lease in place n goes when capacity falls below n.
        """
        taken = set(self._places.get(market, {}).values())
        return next(place for place in range(1, len(taken) + 2) if place not in taken)

    def _take_place(self, lease: Lease) -> int:
        place = self._free_place(lease.market)
        self._places.setdefault(lease.market, {})[lease.lease_id] = place
        return place

    def _leave_place(self, lease: Lease) -> None:
        self._places.get(lease.market, {}).pop(lease.lease_id, None)

    def _event(self, wake: Wake, lease: Lease, detail: str = "") -> Event:
        return Event(wake, self.now_s, lease_id=lease.lease_id, detail=detail)

    def _enter_price(self, market: Market) -> None:
        """Enter the next change of a market's price."""
        time_s = self._history[market].next_change(self.now_s)
        if time_s < math.inf:
            heappush(self._calendar, (time_s, self._price_order[market], _Due.PRICE, market))

    def _enter(self, time_s: float, due: _Due, subject: Lease | Market | None = None) -> None:
        if time_s < math.inf:
            self._entered += 1
            heappush(self._calendar, (max(time_s, self.now_s), self._entered, due, subject))
