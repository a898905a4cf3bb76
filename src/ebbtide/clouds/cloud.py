"""Interface between a controller and a cloud, whose machines start an agent when they boot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ebbtide.errors import CloudError
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries


@dataclass(frozen=True)
class Instance:
    """A machine, or a request for one, as the cloud reports it. Times are seconds since 1970 by the cloud's clock.

    Attributes:
        token: Id of the request; a second request with the same id rents no second machine.
        state: State of its lease; never `NOTICED`, since notices go to the agent.
        started_s: Time at which charging began; NaN: not yet.
        running_s: Time at which the machine had booted; NaN: not yet.
        ended_s: Time at which it was revoked or released; NaN: not yet, or the cloud does not say when.
        why: Reason in words, if it failed or was revoked; else empty.
        listed_s: Time of this listing; NaN: just now. An earlier time if its part of the cloud does not answer.
        address: Address at which other machines of its region reach it; empty: not known yet.
        needs_user: Whether it failed for a reason that only the user can change.
    """

    token: str
    state: LeaseState
    started_s: float
    running_s: float
    ended_s: float
    why: str = ""
    listed_s: float = math.nan
    address: str = ""
    needs_user: bool = False


@dataclass(frozen=True)
class MachineRequest:
    """A request for a machine.

    Attributes:
        token: Unique id of the request; a repeated request with it rents no second machine.
        market: Market in which the machine is to be rented.
        max_price_usd_per_hour: Maximum price in USD an hour; infinity: any price.
        on_demand: Whether it is rented on demand, at the list price.
        agent: Configuration of its agent, without the fields that the cloud fills in.
    """

    token: str
    market: Market
    max_price_usd_per_hour: float
    on_demand: bool
    agent: Mapping[str, Any]


class Cloud(Protocol):
    """Rents the machines of one run.

    All methods may raise `CloudError`.
    """

    @property
    def now_s(self) -> float:
        """The cloud's clock, seconds since 1970."""
        ...

    @property
    def is_over(self) -> bool:
        """True if the cloud's time has ended, which happens only to a replayed price history."""
        ...

    @property
    def markets(self) -> Sequence[Market]:
        """Markets that have a price now."""
        ...

    def prices(self, market: Market) -> PriceSeries:
        """Prices of a market, at least up to now."""
        ...

    def time_of(self, epoch_s: float) -> float:
        """Convert a time of this machine's clock to the cloud's clock, both in seconds since 1970."""
        ...

    def launch(self, wanted: MachineRequest) -> None:
        """Request a machine; calls with the same token after the first do nothing."""
        ...

    def terminate(self, token: str) -> float | None:
        """Release a machine; returns the time of its end by the cloud's clock. None: there is no such machine."""
        ...

    def instances(self) -> Sequence[Instance]:
        """All machines of the run, ended ones included."""
        ...


@runtime_checkable
class CloudOfParts(Protocol):
    """Cloud in parts, such as regions; for a silent one, `instances` gives the machines of its last answer."""

    def is_silent(self, market: Market) -> bool:
        """Return whether the part that rents in a market did not answer the last listing."""
        ...


def is_silent(cloud: object, market: Market) -> bool:
    """Return whether the part of a cloud that rents in a market did not answer the last listing."""
    return isinstance(cloud, CloudOfParts) and cloud.is_silent(market)


@contextmanager
def before_request() -> Iterator[None]:
    """Mark errors of a cloud by which no machine was requested, so that none can exist."""
    try:
        yield
    except CloudError as error:
        error.is_unsent = True
        raise
