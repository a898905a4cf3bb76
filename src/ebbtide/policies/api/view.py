"""View that a policy gets: the present and the past, never the future or the provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ebbtide.jobs.job import Job
from ebbtide.market.billing import Billing
from ebbtide.market.catalogue import InstanceType
from ebbtide.market.markets import Market, Place
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.events import Event
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.api.quotes import Quotes
from ebbtide.policies.api.records import JobView, LeaseView

# The key, in a policy's memory, of when its run began, seconds since 1970. Deadlines count from then. It is there
# already where a policy is asked for the first time in the middle of a run.
STARTED_S = "started_s"


class View(Quotes, Protocol):
    """The world at one moment."""

    @property
    def now_s(self) -> float:
        """The time, seconds since 1970."""
        ...

    @property
    def events(self) -> Sequence[Event]:
        """Events that woke the policy."""
        ...

    def past_prices(self, market: Market, duration_s: float) -> tuple[Floats, Floats]:
        """Change points of the last `duration_s`, the price in force at their beginning carried in."""
        ...

    def mean_price(self, market: Market, duration_s: float) -> float:
        """The time-weighted mean of the last `duration_s`; the price now where there is no past."""
        ...

    @property
    def leases(self) -> Sequence[LeaseView]:
        """The open ones, by id."""
        ...

    def lease(self, lease_id: int) -> LeaseView:
        """Any lease of this run, open or ended."""
        ...

    @property
    def jobs(self) -> Sequence[JobView]:
        """All jobs of this run; a job's place is its id."""
        ...

    def leases_of(self, job_id: int) -> Sequence[LeaseView]:
        """The open leases assigned to a job or on their way to it."""
        ...

    def machine(self, market: Market) -> InstanceType:
        """Instance type of a market: its cores, memory and accelerators."""
        ...

    def egress_usd(self, size_bytes: int, source: Place, destination: Place) -> float:
        """Egress cost of a transfer from one place to another, USD."""
        ...

    def seen_steps_per_s(self, job: Job, market: Market) -> float | None:
        """Steps a second as seen there; None: not seen yet. In a replay rates are known from the start."""
        ...

    def measured(self, job_id: int) -> tuple[Floats, Floats]:
        """Steps and metric of a job's validations so far; empty if it tells none."""
        ...

    @property
    def goals(self) -> Goals:
        """Goals of the work of this policy: its deadline, budget and the like."""
        ...

    @property
    def billing(self) -> Billing:
        """Billing rules for spot leases."""
        ...

    @property
    def spent_usd(self) -> float:
        """Money spent so far, USD; open leases are counted as if released now."""
        ...

    @property
    def random(self) -> np.random.Generator:
        """Random numbers of this decision; the same for the same seed and decision."""
        ...

    @property
    def memory(self) -> dict[str, Any]:
        """Plain values carried from decision to decision."""
        ...


def run_started_s(view: View) -> float:
    """Start of a policy's run, seconds since 1970: its first decision, or an earlier time (`STARTED_S`)."""
    return float(view.memory.setdefault(STARTED_S, view.now_s))
