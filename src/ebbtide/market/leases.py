"""Leases: rented machines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from ebbtide.market.markets import Market


class LeaseState(StrEnum):
    """The state of a lease. Charging begins with `STARTING`."""

    REQUESTED = "requested"
    STARTING = "starting"
    RUNNING = "running"
    NOTICED = "noticed"
    REVOKED = "revoked"
    RELEASED = "released"
    FAILED = "failed"  # it could not be launched


_OPEN = {LeaseState.REQUESTED, LeaseState.STARTING, LeaseState.RUNNING, LeaseState.NOTICED}


@dataclass(slots=True, eq=False)
class Lease:
    """A rented machine. The engine and the provider write it; policies read it.

    Attributes:
        lease_id: Number of the lease within a run, from 0.
        market: Market in which the machine is rented.
        max_price_usd_per_hour: The highest price accepted, USD per hour; infinity accepts any. Ignored on demand.
        on_demand: Whether the machine is rented at the list price and never revoked.
        requested_s: Time of the request, seconds since 1970.
        state: Current state of the lease.
        started_s: Time at which charging began, seconds since 1970; NaN before.
        running_s: Time at which the machine had booted, seconds since 1970; NaN before.
        revoke_at_s: Time at which the machine will be revoked, seconds since 1970; infinity before a notice.
        ended_s: Time of release or revocation, seconds since 1970; NaN before.
    """

    lease_id: int
    market: Market
    max_price_usd_per_hour: float
    on_demand: bool
    requested_s: float
    state: LeaseState = LeaseState.REQUESTED
    started_s: float = math.nan
    running_s: float = math.nan
    revoke_at_s: float = math.inf
    ended_s: float = math.nan

    @property
    def is_open(self) -> bool:
        """True if the machine has been requested or is rented, and has not ended."""
        return self.state in _OPEN

    @property
    def is_charged(self) -> bool:
        """True if charging has begun."""
        return not math.isnan(self.started_s)

    @property
    def is_booted(self) -> bool:
        """True if the machine has booted and has not ended, with or without a revocation notice."""
        return self.state in (LeaseState.RUNNING, LeaseState.NOTICED) and not math.isnan(self.running_s)
