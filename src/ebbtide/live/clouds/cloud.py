"""What a controller needs of a cloud: machines that start an agent by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries


@dataclass(frozen=True)
class Instance:
    """A machine, or the wish for one, as the cloud has it.

    Attributes:
        token: What it was asked for with; asking again with it gives no other.
        state: Where it is in its life; never `NOTICED`, since its agent is told that.
        started_s: When charging began; NaN: it has not. Seconds since 1970 by the cloud's clock, as all here.
        running_s: When it had booted.
        ended_s: When it was taken or given back.
        why: In words, where it failed or was taken.
    """

    token: str
    state: LeaseState
    started_s: float
    running_s: float
    ended_s: float
    why: str = ""


@dataclass(frozen=True)
class Wanted:
    """A machine to be rented.

    Attributes:
        token: Unique; the same again is the same machine.
        market: What.
        max_price_usd_per_hour: Infinity: whatever the market asks.
        on_demand: At the list price.
        agent: The configuration of its agent, but for what the cloud knows best.
    """

    token: str
    market: Market
    max_price_usd_per_hour: float
    on_demand: bool
    agent: Mapping[str, Any]


class Cloud(Protocol):
    """Rents machines of one run.

    All methods may raise `CloudError`.
    """

    @property
    def now_s(self) -> float:
        """The cloud's clock, seconds since 1970."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether its time is at an end: a replayed history is."""
        ...

    @property
    def markets(self) -> Sequence[Market]:
        """Those with a price now."""
        ...

    def prices(self, market: Market) -> PriceSeries:
        """Of a market, up to now at least."""
        ...

    def time_of(self, epoch_s: float) -> float:
        """The cloud's time at a moment of this machine's clock."""
        ...

    def launch(self, wanted: Wanted) -> None:
        """Ask for a machine, once, however often it is called."""
        ...

    def terminate(self, token: str) -> float | None:
        """Give it back; returns when, by the cloud's clock. None: there is no such machine."""
        ...

    def instances(self) -> Sequence[Instance]:
        """All of the run, ended ones included."""
        ...
