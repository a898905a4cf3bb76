"""Baseline policies, to compare the others with: on-demand machines and simple spot rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ebbtide.base.utc import MINUTE_S
from ebbtide.errors import InputError
from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import Action, Hold, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.reasons import Reason
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View
from ebbtide.policies.field_checks import check_fields

_RETRY_S = 5 * MINUTE_S


@dataclass(frozen=True)
class OnDemand:
    """On-demand machines of the type whose list price is lowest for each step."""

    name: str = "on-demand"
    wakes_on: frozenset[Wake] = frozenset()

    def __post_init__(self) -> None:
        check_fields(self)

    def decide(self, view: View) -> Iterable[Action]:
        def list_price(market: Market) -> float:
            price = view.on_demand_price(market)
            return math.inf if price is None else price

        offers = _Offers(view, list_price)
        for job in _jobs_short_of_machines(view):
            best = offers.best(job, lambda price, steps_per_s: price / steps_per_s)
            if best is None or math.isinf(best[0]):
                names = sorted({market.instance_type for market in _usable(view, job)})
                raise InputError(
                    f"no on-demand price is known for {', '.join(names) or 'any instance type here'}, "
                    "so policy on-demand cannot be costed"
                )
            yield _request(view, job, best[1], "lowest list price for each step", on_demand=True)


@dataclass(frozen=True)
class CheapestSpot:
    """SpotTune's baseline "Single-Spot Tune (Cheapest)" (IV-A4).

    The machine with the lowest price per hour, held to the end without a max price: no price revokes it.
    """

    name: str = "cheapest-spot"
    wakes_on: frozenset[Wake] = frozenset()

    def __post_init__(self) -> None:
        check_fields(self)

    def decide(self, view: View) -> Iterable[Action]:
        yield from _single_spot(view, lambda price, _steps_per_s: price, "lowest price per hour (SpotTune, IV-A4)")


@dataclass(frozen=True)
class FastestSpot:
    """SpotTune's baseline "Single-Spot Tune (Fastest)" (IV-A4).

    The fastest machine, in its cheapest zone, held to the end without a max price: no price revokes it.
    """

    name: str = "fastest-spot"
    wakes_on: frozenset[Wake] = frozenset()

    def __post_init__(self) -> None:
        check_fields(self)

    def decide(self, view: View) -> Iterable[Action]:
        why = "fastest machine, in its cheapest zone (SpotTune, IV-A4)"
        yield from _single_spot(view, lambda price, steps_per_s: (-steps_per_s, price), why)


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

    def __post_init__(self) -> None:
        check_fields(self, positive=("max_price_ratio",))

    def decide(self, view: View) -> Iterable[Action]:
        offers = _Offers(
            view,
            view.price,
            lambda market, price: price <= self._max_price(view, market),
        )
        for job in _jobs_short_of_machines(view):
            best = offers.best(job, lambda price, steps_per_s: price / steps_per_s)
            if best is None:
                yield Hold(job.job_id, Reason("every market is above its max price"))
                yield WakeAt(view.now_s + _RETRY_S)
                continue
            most = self._max_price(view, best[1])
            yield _request(view, job, best[1], "lowest spot price for each step now", max_price=most)

    def _max_price(self, view: View, market: Market) -> float:
        list_price = view.on_demand_price(market)
        return 2 * view.price(market) if list_price is None else self.max_price_ratio * list_price


class _Offers:
    """Of each instance type the market with the lowest price: jobs need not look at every market.

    Args:
        view: What is known now.
        price: Gives the price of a market.
        takes: Whether a market counts at its price; by default all do.
    """

    def __init__(
        self,
        view: View,
        price: Callable[[Market], float],
        takes: Callable[[Market, float], bool] = lambda _market, _price: True,
    ) -> None:
        self._view, self._price, self._takes = view, price, takes
        self._cheapest: list[tuple[float, Market]] | None = None

    def best(self, job: JobView, rank: Callable[[float, float], Any]) -> tuple[Any, Market] | None:
        """The market of lowest rank for a job, and its rank; ties are broken by name. None: it can run on none.

        Args:
            job: A job of the run.
            rank: Gives a rank, which does not fall as the price rises, by price and steps per second.
        """
        if self._cheapest is None:
            # Most decisions need no market at all.
            self._cheapest = self._cheapest_of_types()
        found = []
        for price, market in self._cheapest:
            steps_per_s = self._view.steps_per_s(job.job, market)
            if steps_per_s > 0:
                found.append((rank(price, steps_per_s), market))
        return min(found, default=None)

    def _cheapest_of_types(self) -> list[tuple[float, Market]]:
        cheapest: dict[tuple[str, str], tuple[float, Market]] = {}
        for market in self._view.markets:
            offer = self._price(market), market
            kind = market.cloud, market.instance_type
            if self._takes(market, offer[0]) and (kind not in cheapest or offer < cheapest[kind]):
                cheapest[kind] = offer
        return list(cheapest.values())


def _single_spot(view: View, rank: Callable[[float, float], Any], why: str) -> Iterator[Action]:
    """Rent the best market by `rank`, without a max price: only a lack of capacity can revoke the machine."""
    offers = _Offers(view, view.price)
    for job in _jobs_short_of_machines(view):
        if any(event.wake is Wake.LAUNCH_FAILED for event in view.events):
            # No capacity: another request now would be refused again.
            yield Hold(
                job.job_id, Reason("the market has just refused a machine: it is asked again in five minutes")
            )
            yield WakeAt(view.now_s + _RETRY_S)
            continue
        best = offers.best(job, rank)
        if best is None:
            yield WakeAt(view.now_s + _RETRY_S)
        else:
            yield _request(view, job, best[1], why)


def _jobs_short_of_machines(view: View) -> Iterator[JobView]:
    """Unfinished jobs with fewer machines than they need, not counting machines with a revocation notice."""
    for job in view.jobs:
        steady = [lease for lease in view.leases_of(job.job_id) if math.isinf(lease.revoke_at_s)]
        if not job.is_finished and len(steady) < job.job.most_machines:
            yield job


def _usable(view: View, job: JobView) -> list[Market]:
    return [market for market in view.markets if view.steps_per_s(job.job, market) > 0]


def _request(
    view: View, job: JobView, market: Market, why: str, *, max_price: float = math.inf, on_demand: bool = False
) -> Request:
    steady = sum(math.isinf(lease.revoke_at_s) for lease in view.leases_of(job.job_id))
    count = job.job.most_machines - steady
    return Request(market, max_price, on_demand, job=job.job_id, count=count, because=Reason(why))
