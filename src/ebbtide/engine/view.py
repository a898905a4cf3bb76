"""The view that a policy gets: it reads what the engine knows, and what it gives cannot be written, or is a copy.

It keeps mistakes of a policy from changing the books. It is no wall against malice: a policy is Python code in the
same process, and whoever searches the garbage collector or the frames of the stack finds the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ebbtide.jobs.job import Job
from ebbtide.market.billing import Billing
from ebbtide.market.catalogue import InstanceType
from ebbtide.market.leases import Lease
from ebbtide.market.markets import Market, Place
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.events import Event
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.api.records import JobView, LeaseView, ReadOnly, hidden

if TYPE_CHECKING:
    from ebbtide.engine.engine import Engine


class EngineView(ReadOnly):
    """A `View` of one engine's run.

    Args:
        engine: Whose run it shows.
        jobs: Copies of the jobs as the engine's user gave them, by id.
        billing: A copy of the rule by which spot leases are charged.
    """

    __slots__ = ("_billing", "_engine", "_leases", "_shown")

    def __init__(self, engine: Engine, jobs: Sequence[Job], billing: Billing) -> None:
        seen: dict[int, LeaseView] = {}

        def lease_view(lease: Lease) -> LeaseView:
            found = seen.get(lease.lease_id)
            if found is None:
                found = seen[lease.lease_id] = LeaseView(lease)
            return found

        _set_engine(self, engine)
        _set_billing(self, billing)
        _set_leases(self, lease_view)
        _set_shown(
            self,
            tuple(JobView(progress, job, lease_view) for progress, job in zip(engine.jobs, jobs, strict=True)),
        )

    @property
    def now_s(self) -> float:
        return _engine(self).now_s

    @property
    def events(self) -> Sequence[Event]:
        return tuple(_engine(self).events)

    @property
    def markets(self) -> Sequence[Market]:
        markets = _engine(self).markets
        return markets if isinstance(markets, tuple) else tuple(markets)

    def price(self, market: Market) -> float:
        return _engine(self).price(market)

    def on_demand_price(self, market: Market) -> float | None:
        return _engine(self).on_demand_price(market)

    def past_prices(self, market: Market, duration_s: float) -> tuple[Floats, Floats]:
        times_s, usd = _engine(self).past_prices(market, duration_s)
        return _frozen(times_s), _frozen(usd)

    def mean_price(self, market: Market, duration_s: float) -> float:
        return _engine(self).mean_price(market, duration_s)

    @property
    def leases(self) -> Sequence[LeaseView]:
        return tuple(map(_leases(self), _engine(self).leases))

    def lease(self, lease_id: int) -> LeaseView:
        found: LeaseView = _leases(self)(_engine(self).lease(lease_id))
        return found

    @property
    def jobs(self) -> Sequence[JobView]:
        jobs: tuple[JobView, ...] = _shown(self)
        return jobs

    def leases_of(self, job_id: int) -> Sequence[LeaseView]:
        return tuple(map(_leases(self), _engine(self).leases_of(job_id)))

    def steps_per_s(self, job: Job, market: Market) -> float:
        return _engine(self).steps_per_s(job, market)

    def seen_steps_per_s(self, job: Job, market: Market) -> float | None:
        return _engine(self).seen_steps_per_s(job, market)

    def machine(self, market: Market) -> InstanceType:
        return _engine(self).machine(market)

    def egress_usd(self, size_bytes: int, source: Place, destination: Place) -> float:
        return _engine(self).egress_usd(size_bytes, source, destination)

    def measured(self, job_id: int) -> tuple[Floats, Floats]:
        steps, metric = _engine(self).measured(job_id)
        return _frozen(steps), _frozen(metric)

    @property
    def goals(self) -> Goals:
        return _engine(self).goals

    @property
    def billing(self) -> Billing:
        billing: Billing = _billing(self)
        return billing

    @property
    def spent_usd(self) -> float:
        return _engine(self).spent_usd

    @property
    def random(self) -> np.random.Generator:
        return _engine(self).random

    @property
    def memory(self) -> dict[str, Any]:
        return _engine(self).memory


_engine: Callable[[EngineView], Engine]
_engine, _set_engine = hidden(EngineView, "_engine")
_billing, _set_billing = hidden(EngineView, "_billing")
_leases, _set_leases = hidden(EngineView, "_leases")
_shown, _set_shown = hidden(EngineView, "_shown")


def _frozen(values: Floats) -> Floats:
    """A copy of the values, which may be part of the record, not to be written."""
    shown = values.copy()
    shown.flags.writeable = False
    return shown
