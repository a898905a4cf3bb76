"""Billing of leases: one charging rule with a few parameters, and presets for the rules of real clouds.

A lease is charged in whole periods. Each period costs the price in force when it begins. When the provider
revokes the machine, what the preset refunds is first charged and then given back, so that the ledger shows both.

In an auction by rounds, a round has one price: the second price, at which it was cleared. A machine is given at
the start of a round, and gets its notice at the start of one whose price is above its max price.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from ebbtide.base.utc import DAY_S, HOUR_S, iso
from ebbtide.errors import InputError, unknown_name
from ebbtide.market.price_series import PriceSeries, round_start_s

_US = 1_000_000


class LeaseEnding(StrEnum):
    """Way in which a lease ended: released by the user or revoked by the provider."""

    RELEASED = "released"
    REVOKED = "revoked"


class Refund(StrEnum):
    """Refund that a provider pays when it revokes a lease."""

    NOTHING = "nothing"
    LAST_PARTIAL_PERIOD = "last partial period"
    WITHIN_FIRST_HOUR = "everything, within the first hour"


class Charged(StrEnum):
    """Price at which a charge period is billed."""

    AT_PERIOD_START = "at the start of each period"
    AT_LEASE_START = "at the start of the lease"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True, slots=True)
class Charge:
    """Consecutive periods of one lease at one price.

    `start_s` to `end_s` is the time paid for: it may run past the lease's end, by the rest of a period.

    Attributes:
        start_s: When the first period begins, seconds since 1970.
        end_s: When the last period ends, seconds since 1970.
        price_usd_per_hour: The price charged, USD per machine-hour.
        usd: What the periods cost together, USD.
    """

    start_s: float
    end_s: float
    price_usd_per_hour: float
    usd: float


@dataclass(frozen=True, slots=True)
class Bill:
    """Cost of a lease: its charges, and the part of their sum that was refunded, USD."""

    charges: tuple[Charge, ...]
    refund_usd: float

    @property
    def charged_usd(self) -> float:
        return math.fsum(charge.usd for charge in self.charges)

    @property
    def usd(self) -> float:
        """Net of the refund; zero, exactly, where all was refunded."""
        return self.charged_usd - self.refund_usd


@dataclass(frozen=True)
class Billing:
    """A charging rule.

    Attributes:
        name: Name of the preset, as users write it.
        period_s: Length of a charge period, seconds; usage is rounded up to whole periods.
        minimum_s: The least time charged for a lease, seconds.
        charged: Which price a period costs.
        refund: What is given back when the provider revokes.
        notice_s: Time between a revocation notice and the revocation, seconds.
        price_revokes: Whether a price above the lease's max price revokes it.
        max_lifetime_s: The age at which the provider ends every lease, seconds.
        round_s: Length of an auction's rounds, seconds, counted from 1970; 0: prices hold from their change.
        on_demand: How on-demand machines in the same run are charged; None means by the second.
        clouds: Rules of single clouds, by the cloud's name, where one run rents in several: leases there are
            charged and revoked by them. The other fields are what policies count on, for all.
    """

    name: str
    period_s: float
    minimum_s: float = 0.0
    charged: Charged = Charged.AT_PERIOD_START
    refund: Refund = Refund.NOTHING
    notice_s: float = 120.0
    price_revokes: bool = False
    max_lifetime_s: float = math.inf
    round_s: float = 0.0
    on_demand: Billing | None = None
    clouds: tuple[tuple[str, Billing], ...] = ()

    def of(self, cloud: str) -> Billing:
        """The rule of leases in a cloud: its own, or else this one."""
        return next((rule for name, rule in self.clouds if name == cloud), self)

    def with_least_notice(self, notice_s: float) -> Billing:
        """The rule, with notices that are no shorter than so many seconds."""
        clouds = tuple((name, rule.with_least_notice(notice_s)) for name, rule in self.clouds)
        return replace(self, notice_s=max(self.notice_s, notice_s), clouds=clouds)

    @property
    def has_rounds(self) -> bool:
        """True if any cloud's prices are set by an auction in rounds."""
        return self.round_s > 0.0 or any(rule.has_rounds for _, rule in self.clouds)

    def cleared(self, prices: PriceSeries) -> PriceSeries:
        """The prices at which a market's leases are given, revoked and charged: of its rounds, if it has any."""
        return prices.in_rounds(self.round_s) if self.round_s else prices

    def given_s(self, asked_s: float) -> float:
        """Time at which a requested machine is given, seconds since 1970: at once, or as the next round starts."""
        return round_start_s(asked_s, self.round_s) if self.round_s else asked_s

    def bill(self, prices: PriceSeries, start_s: float, end_s: float, ending: LeaseEnding) -> Bill:
        """Charge a lease that ran from `start_s` to `end_s`.

        Args:
            prices: The market's prices, known from `start_s` on; for `Charged.ON_DEMAND` the list price.
            start_s: When charging began, seconds since 1970.
            end_s: When the lease ended.
            ending: Whether the user released it or the provider revoked it.

        Raises:
            InputError: The lease ends before it starts, or its price is unknown.
        """
        if end_s < start_s:
            raise InputError(f"lease ends at {iso(end_s)}, before it starts at {iso(start_s)}")
        # Whole microseconds, so that a lease of exactly n periods is not charged for n + 1.
        start_us, used_us = round(start_s * _US), round(end_s * _US) - round(start_s * _US)
        period_us = round(self.period_s * _US)
        periods = -(-max(used_us, round(self.minimum_s * _US)) // period_us)
        prices = self.cleared(prices)
        if self.charged is Charged.AT_PERIOD_START:
            times, found = prices.between(start_us / _US, (start_us + periods * period_us) / _US)
            times_s, prices_usd = times.tolist(), found.tolist()
        else:
            times_s, prices_usd = [start_s], [prices.at(start_s)]
        charges = _charges(times_s, prices_usd, start_us, period_us, periods)
        if ending is LeaseEnding.RELEASED:
            return Bill(charges, 0.0)
        return Bill(charges, self._refund_usd(charges, used_us, period_us))

    def _refund_usd(self, charges: tuple[Charge, ...], used_us: int, period_us: int) -> float:
        if self.refund is Refund.WITHIN_FIRST_HOUR and used_us < HOUR_S * _US:
            return math.fsum(charge.usd for charge in charges)
        if self.refund is Refund.LAST_PARTIAL_PERIOD and used_us % period_us:
            return charges[-1].price_usd_per_hour * self.period_s / HOUR_S
        return 0.0


class OpenBill:
    """Cost of a lease that goes on, asked again and again: each change of the price is added up once.

    Args:
        billing: The charging rule, by the price at the start of each period.
        prices: The market's prices, known from `start_s` on.
        start_s: When charging began, seconds since 1970.
    """

    def __init__(self, billing: Billing, prices: PriceSeries, start_s: float) -> None:
        self.prices, self.start_s = prices, start_s
        self._billing, self._cleared = billing, billing.cleared(prices)
        self._start_us, self._period_us = round(start_s * _US), round(billing.period_s * _US)
        # Exact sum of all periods before the last change of the price, and that change, by time and period.
        self._sums: list[float] = []
        self._since_s, self._since = self._start_us / _US, 0
        self._periods = 0

    def usd(self, end_s: float) -> float:
        """Cost of the lease if it is released at `end_s`, as `Billing.bill` has it, USD.

        Raises:
            InputError: Its price is unknown.
        """
        used_us = max(round(end_s * _US) - self._start_us, round(self._billing.minimum_s * _US))
        periods = -(-used_us // self._period_us)
        until_s = (self._start_us + periods * self._period_us) / _US
        times_s, prices = (found.tolist() for found in self._cleared.between(self._since_s, until_s))
        if periods < max(self._periods, 1) or not times_s or times_s[0] > self._since_s or math.isnan(sum(prices)):
            return self._billing.bill(self.prices, self.start_s, end_s, LeaseEnding.RELEASED).usd
        first = [self._since, *(_first_period(time_s, self._start_us, self._period_us) for time_s in times_s[1:])]
        for (begins, ends), price in zip(pairwise(first), prices, strict=False):
            self._sums = _exact_sum(self._sums, _period_usd(price, ends - begins, self._period_us))
        self._since_s, self._since, self._periods = times_s[-1], first[-1], periods
        return math.fsum([*self._sums, _period_usd(prices[-1], periods - first[-1], self._period_us)])


def _exact_sum(sums: list[float], value: float) -> list[float]:
    """Numbers without a rounding error whose sum is that of others and a value, so that `fsum` is exact later."""
    found = []
    for other in sums:
        if abs(value) < abs(other):
            value, other = other, value
        total = value + other
        if (lost := other - (total - value)) != 0.0:
            found.append(lost)
        value = total
    return [*found, value]


def _period_usd(price: float, periods: int, period_us: int) -> float:
    return price * (periods * period_us / _US) / HOUR_S


def _first_period(time_s: float, start_us: int, period_us: int) -> int:
    """The first period that begins at or after a time: period k begins at k * period_us."""
    return -((start_us - round(time_s * _US)) // period_us)


def _charges(
    times_s: list[float], prices_usd: list[float], start_us: int, period_us: int, periods: int
) -> tuple[Charge, ...]:
    """Return one charge for each price at which periods from `start_us` begin."""
    if not periods:
        return ()
    if not times_s or round(times_s[0] * _US) > start_us or any(map(math.isnan, prices_usd)):
        raise InputError(f"no price is known at {iso(start_us / _US)}, when a lease is charged")
    first = [_first_period(time_s, start_us, period_us) for time_s in times_s]
    return tuple(
        Charge(
            (start_us + k * period_us) / _US,
            (start_us + n * period_us) / _US,
            price,
            _period_usd(price, n - k, period_us),
        )
        for k, n, price in zip(first, [*first[1:], periods], prices_usd, strict=True)
        if n > k
    )


PRESETS = {
    preset.name: preset
    for preset in (
        Billing("ec2-hourly", HOUR_S, refund=Refund.LAST_PARTIAL_PERIOD, price_revokes=True),
        Billing("ec2-second", 1.0, minimum_s=60.0, refund=Refund.WITHIN_FIRST_HOUR, price_revokes=True),
        Billing(
            "gcp-preemptible",
            1.0,
            minimum_s=60.0,
            charged=Charged.AT_LEASE_START,
            notice_s=30.0,
            max_lifetime_s=DAY_S,
        ),
        Billing("gcp-spot", 1.0, minimum_s=60.0, notice_s=30.0),
        Billing("azure-spot", 1.0, notice_s=30.0, price_revokes=True),
        Billing("mithril-auction", 1.0, notice_s=300.0, price_revokes=True, round_s=120.0),
        Billing("per-second", 1.0, notice_s=0.0),
        Billing("on-demand", 1.0, minimum_s=60.0, charged=Charged.ON_DEMAND, notice_s=0.0),
    )
}

# Policies count on the least that the clouds give: no refund, the shortest notice.
PRESETS["by-cloud"] = replace(
    PRESETS["gcp-spot"],
    name="by-cloud",
    clouds=(("aws", PRESETS["ec2-second"]), ("azure", PRESETS["azure-spot"]), ("gcp", PRESETS["gcp-spot"])),
)

ON_DEMAND = PRESETS["on-demand"]
# EC2's on-demand rule until October 2017.
ON_DEMAND_HOURLY = Billing("on-demand-hourly", HOUR_S, charged=Charged.ON_DEMAND, notice_s=0.0)


def billing_preset(name: str) -> Billing:
    """The preset of that name.

    Raises:
        InputError: There is none; the message lists the presets.
    """
    try:
        return PRESETS[name]
    except KeyError:
        raise unknown_name("billing preset", name, PRESETS) from None
