"""Events: what can happen, and so wake a policy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ebbtide.market.markets import Market


class Wake(StrEnum):
    """Kinds of events: the first group always wakes a policy, the second only one that asks for it in `wakes_on`.

    A replay never has `REBALANCE`: no price history holds such recommendations.
    """

    START = "start"
    RUNNING = "running"  # a lease has booted
    LAUNCH_FAILED = "launch_failed"  # a request was refused: its price, or no capacity
    NOTICE = "notice"  # a lease will be revoked
    ENDED = "ended"  # a lease was revoked or released
    MILESTONE = "milestone"  # a job reached a step asked for by WakeAtStep
    FINISHED = "finished"  # a job is done or stopped
    TIMER = "timer"  # a time asked for by WakeAt

    PRICE = "price"  # the price of some market changed
    PERIOD_END = "period_end"  # a lease's charge period is about to end
    SAVED = "saved"  # a checkpoint is complete
    REBALANCE = "rebalance"  # the provider recommends to leave a lease: a likelihood of its end, not a command
    STOP_REQUESTED = "stop_requested"  # the run's user wants it to end: no policy is asked


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        wake: The kind of event that happened.
        time_s: When it happened, seconds since 1970.
        lease_id: Id of the lease that it happened to, or -1.
        job_id: Id of the job that it happened to, or -1.
        market: The market whose price changed, for `PRICE`; else None.
        detail: In words: why a launch failed, how a lease ended.
    """

    wake: Wake
    time_s: float
    lease_id: int = -1
    job_id: int = -1
    market: Market | None = None
    detail: str = ""
