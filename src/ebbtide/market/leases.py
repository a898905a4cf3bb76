"""Leases: rented machines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from ebbtide.market.markets import Market


class LeaseState(StrEnum):
    """Where a lease is in its life. Charging begins with `STARTING`."""

    REQUESTED = "requested"
    STARTING = "starting"
    RUNNING = "running"
    NOTICED = "noticed"
    REVOKED = "revoked"
    RELEASED = "released"
    FAILED = "failed"  # to launch


_OPEN = {LeaseState.REQUESTED, LeaseState.STARTING, LeaseState.RUNNING, LeaseState.NOTICED}


@dataclass(slots=True, eq=False)
class Lease:
    """One rented machine. The engine and the provider write it; policies read it.

    Attributes:
        lease_id: Counted from 0 within a run.
        market: What is rented.
        max_price_usd_per_hour: Infinity: whatever the market asks. Ignored if on demand.
        on_demand: Rented at the list price, never revoked.
        requested_s: When it was asked for.
        state: Where it is.
        started_s: When charging began.
        running_s: When the machine had booted.
        revoke_at_s: Once noticed: when it will be taken.
        ended_s: When it was released or revoked.
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
        """Whether the machine is ours or on its way."""
        return self.state in _OPEN

    @property
    def is_charged(self) -> bool:
        """Whether the lease costs or has cost anything: charging has begun."""
        return not math.isnan(self.started_s)

    @property
    def is_booted(self) -> bool:
        """Whether the machine is up and ours, noticed or not."""
        return self.state in (LeaseState.RUNNING, LeaseState.NOTICED) and not math.isnan(self.running_s)
