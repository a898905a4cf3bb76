"""Baseline policies, to compare the others with: on-demand machines and simple spot rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ebbtide._utc import MINUTE_S
from ebbtide.errors import InputError
from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import Action, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View

_RETRY_S = 5 * MINUTE_S


@dataclass(frozen=True)
class OnDemand:
    """On-demand machines of the type whose list price is lowest for each step."""

    name: str = "on-demand"
    wakes_on: frozenset[Wake] = frozenset()

    def decide(self, view: View) -> Iterable[Action]:
        def usd_per_step(job: JobView, market: Market) -> float:
            price = view.on_demand_price(market)
            return math.inf if price is None else price / view.steps_per_s(job.job, market)

        for job in _jobs_short_of_machines(view):
            market = _best(view, job, usd_per_step)
            if market is None or math.isinf(usd_per_step(job, market)):
                names = sorted({market.instance_type for market in _usable(view, job)})
                raise InputError(
                    f"no on-demand price is known for {', '.join(names) or 'any instance type here'}, "
                    "so policy on-demand cannot be costed"
                )
            yield _request(view, job, market, on_demand=True)


@dataclass(frozen=True)
class CheapestSpot:
    """SpotTune's baseline "Single-Spot Tune (Cheapest)" (IV-A4).

    The machine with the lowest price per hour, held to the end without a max price: no price revokes it.
    """

    name: str = "cheapest-spot"
    wakes_on: frozenset[Wake] = frozenset()

    def decide(self, view: View) -> Iterable[Action]:
        yield from _single_spot(view, lambda _job, market: view.price(market))


@dataclass(frozen=True)
class FastestSpot:
    """SpotTune's baseline "Single-Spot Tune (Fastest)" (IV-A4).

    The fastest machine, in its cheapest zone, held to the end without a max price: no price revokes it.
    """

    name: str = "fastest-spot"
    wakes_on: frozenset[Wake] = frozenset()

    def decide(self, view: View) -> Iterable[Action]:
        yield from _single_spot(view, lambda job, market: (-view.steps_per_s(job.job, market), view.price(market)))


@dataclass(frozen=True)
class Reactive:
    """The market with the lowest cost per step now; after a revocation, the cheapest one at that time.

    The max price is the on-demand price, the usual advice of the auction era, or twice the current price where the
    on-demand price is unknown. On a revocation notice the next machine is requested at once, so that it boots
    while the last one saves. While every market is above its max price, the policy waits and retries every five
    minutes.

    Attributes:
        max_price_ratio: The max price as a multiple of the on-demand price.
    """

    max_price_ratio: float = 1.0
    name: str = "reactive"
    wakes_on: frozenset[Wake] = frozenset()

    def decide(self, view: View) -> Iterable[Action]:
        for job in _jobs_short_of_machines(view):
            affordable = [
                market for market in _usable(view, job) if view.price(market) <= self._max_price(view, market)
            ]
            if not affordable:
                yield WakeAt(view.now_s + _RETRY_S)
                continue
            market = min(affordable, key=lambda m: (view.price(m) / view.steps_per_s(job.job, m), m))
            yield _request(view, job, market, max_price=self._max_price(view, market))

    def _max_price(self, view: View, market: Market) -> float:
        list_price = view.on_demand_price(market)
        return 2 * view.price(market) if list_price is None else self.max_price_ratio * list_price


def _single_spot(view: View, rank: Callable[[JobView, Market], object]) -> Iterator[Action]:
    """Rent the best market by `rank`, without a max price: only a lack of capacity can revoke the machine."""
    for job in _jobs_short_of_machines(view):
        if any(event.wake is Wake.LAUNCH_FAILED for event in view.events):
            # No capacity: another request now would be refused again.
            yield WakeAt(view.now_s + _RETRY_S)
            continue
        market = _best(view, job, rank)
        if market is None:
            yield WakeAt(view.now_s + _RETRY_S)
        else:
            yield _request(view, job, market)


def _jobs_short_of_machines(view: View) -> Iterator[JobView]:
    """Unfinished jobs with fewer machines than they need, not counting machines with a revocation notice."""
    for job in view.jobs:
        steady = [lease for lease in view.leases_of(job.job_id) if math.isinf(lease.revoke_at_s)]
        if not job.is_finished and len(steady) < job.job.machines:
            yield job


def _usable(view: View, job: JobView) -> list[Market]:
    return [market for market in view.markets if view.steps_per_s(job.job, market) > 0]


def _best(view: View, job: JobView, rank: Callable[[JobView, Market], object]) -> Market | None:
    """The market of lowest rank; ties are broken by name."""
    return min(_usable(view, job), key=lambda market: (rank(job, market), market), default=None)


def _request(
    view: View, job: JobView, market: Market, *, max_price: float = math.inf, on_demand: bool = False
) -> Request:
    steady = sum(math.isinf(lease.revoke_at_s) for lease in view.leases_of(job.job_id))
    return Request(market, max_price, on_demand, job=job.job_id, count=job.job.machines - steady)
