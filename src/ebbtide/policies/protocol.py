"""The policy protocol: what wakes a policy, what it may answer, and the one function it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ebbtide.market.markets import Market

if TYPE_CHECKING:
    from ebbtide.policies.view import View


class Wake(StrEnum):
    """Why a policy is asked. The first group is always delivered; the second to those who ask for it."""

    START = "start"
    RUNNING = "running"  # a lease has booted
    LAUNCH_FAILED = "launch_failed"  # a request was refused: its price, or no capacity
    NOTICE = "notice"  # a lease will be revoked
    ENDED = "ended"  # a lease was revoked or released
    MILESTONE = "milestone"  # a job reached a step asked for by WakeAtStep
    FINISHED = "finished"  # a job is done or stopped
    TIMER = "timer"  # a time asked for by WakeAt

    PRICE = "price"  # some market's price was set anew
    PERIOD_END = "period_end"  # a lease's charge period is about to end
    SAVED = "saved"  # a checkpoint is complete


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        wake: What.
        time_s: When, seconds since 1970.
        lease_id: To which lease, or -1.
        job_id: To which job, or -1.
        market: In which market, for `PRICE`.
        detail: In words: why a launch failed, how a lease ended.
    """

    wake: Wake
    time_s: float
    lease_id: int = -1
    job_id: int = -1
    market: Market | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """Rent machines.

    Attributes:
        market: What.
        max_price_usd_per_hour: Pay no more; infinity: whatever the market asks.
        on_demand: At the list price instead, never revoked.
        job: The job to assign each to as soon as it has booted, if any.
        count: How many.
        keep: Go on renting it when that job is done; else it is released then.
    """

    market: Market
    max_price_usd_per_hour: float = math.inf
    on_demand: bool = False
    job: int | None = None
    count: int = 1
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Give a machine back; with `save`, once the jobs on it are checkpointed or have moved."""

    lease_id: int
    save: bool = True


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


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Ask again at this time."""

    time_s: float


@dataclass(frozen=True, slots=True)
class WakeAtStep:
    """Ask again when a job has done so many steps."""

    job: int
    step: int


Action = Request | Release | Assign | Save | Stop | WakeAt | WakeAtStep


@runtime_checkable
class Policy(Protocol):
    """Decides what to rent.

    A frozen dataclass whose fields are its parameters. `decide` depends on the view and on `view.memory` alone,
    so that a live controller can be stopped and started between any two calls.
    """

    @property
    def name(self) -> str:
        """Its name in tables, for the command line and for tags."""
        ...

    @property
    def wakes_on(self) -> frozenset[Wake]:
        """What wakes it beyond what is always delivered."""
        ...

    def decide(self, view: View) -> Iterable[Action]:
        """Answer the events of `view`."""
        ...
