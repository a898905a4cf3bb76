"""Actions: what a policy may answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ebbtide.market.markets import Market
from ebbtide.policies.api.reasons import Because


@dataclass(frozen=True, slots=True)
class Request:
    """Rent machines.

    Attributes:
        market: The market to rent in.
        max_price_usd_per_hour: The most to pay, USD per hour; infinity: whatever the market asks.
        on_demand: Whether to rent at the list price instead, never revoked.
        job: The job to assign each to as soon as it has booted, if any.
        count: Number of machines to rent.
        keep: Go on renting it when that job is done; else it is released then.
        because: Why, for those who ask; it changes nothing of what is done.
    """

    market: Market
    max_price_usd_per_hour: float = math.inf
    on_demand: bool = False
    job: int | None = None
    count: int = 1
    keep: bool = False
    because: Because = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Release:
    """Give a machine back; with `save`, once the jobs on it are checkpointed or have moved."""

    lease_id: int
    save: bool = True
    because: Because = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Assign:
    """Let a job run on exactly these leases from now on (none: it pauses, saved)."""

    job: int
    leases: Sequence[int]


@dataclass(frozen=True, slots=True)
class Save:
    """Checkpoint a job now."""

    job: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End a job early: checkpoint it, count it as finished."""

    job: int
    because: Because = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Hold:
    """Leave a job as it is for now, and say why: with no machine, on those that it has, or waiting for others."""

    job: int
    because: Because = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the run: save every job, give every machine back, leave unfinished what is unfinished."""

    reason: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Ask again at this time."""

    time_s: float


@dataclass(frozen=True, slots=True)
class WakeAtStep:
    """Ask again when a job has done so many steps."""

    job: int
    step: int


Action = Request | Release | Assign | Save | Stop | Hold | GiveUp | WakeAt | WakeAtStep
