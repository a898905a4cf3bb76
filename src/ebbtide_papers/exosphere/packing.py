"""Savings from shared machines among applications that come and go (ExoSphere 3.5, 6.3, Figure 11).

The paper's arrivals, from a Eucalyptus cloud, are not available. These are generated: random arrivals, most of
them small and some large, as is usual in such traces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market
from ebbtide.policies.exosphere.allocation import CoresAndMemory, Server, allocate
from ebbtide_papers.reproduction import ratio

# How long idle machines are kept, seconds: twice the start time of a new one (5).
FREE_LIST_S = 600.0

_CORES = (1, 2, 4, 8, 16)
_CORES_CHANCE = (0.35, 0.3, 0.2, 0.1, 0.05)
_BETWEEN_S = 300.0
_MEDIAN_S = 3600.0
_SPREAD = 1.0
_MEDIAN_GIB_PER_CORE = 2.0


@dataclass(frozen=True)
class ArrivingApplication:
    """An application that arrives and leaves.

    Attributes:
        arrives_s: Arrival, seconds from the beginning.
        lasts_s: Duration of its stay, seconds.
        wanted: Cores and memory it needs.
        draw: Uniform random number in 0 to 1 that selects its portfolio.
    """

    arrives_s: float
    lasts_s: float
    wanted: CoresAndMemory
    draw: float


def arrivals(count: int, seed: int) -> list[ArrivingApplication]:
    """Random applications, in order of arrival."""
    draws = np.random.default_rng(seed)
    times_s = np.cumsum(draws.exponential(_BETWEEN_S, count))
    cores = draws.choice(_CORES, count, p=_CORES_CHANCE)
    per_core = draws.lognormal(np.log(_MEDIAN_GIB_PER_CORE), 0.6, count)
    lasts_s = draws.lognormal(np.log(_MEDIAN_S), _SPREAD, count)
    which = draws.uniform(size=count)
    return [
        ArrivingApplication(
            float(time_s), float(last_s), CoresAndMemory(float(vcpus), float(vcpus * gib)), float(draw)
        )
        for time_s, last_s, vcpus, gib, draw in zip(times_s, lasts_s, cores, per_core, which, strict=True)
    ]


def packing_usd(
    applications: Sequence[ArrivingApplication],
    portfolios: Sequence[tuple[float, Mapping[Market, float]]],
    usd_per_hour: Mapping[Market, float],
    catalogue: Catalogue,
    *,
    shared: bool,
) -> float:
    """The cost of all machines, USD, charged by the second.

    Args:
        applications: The applications, in order of arrival.
        portfolios: Share of the applications with each portfolio, summing to 1, and its weights.
        usd_per_hour: Price of a machine, USD per hour, by market.
        catalogue: Instance types and their list prices.
        shared: Use free resources on others' machines; else only machines without an application.
    """
    pool: dict[int, Server] = {}
    whole: dict[int, CoresAndMemory] = {}
    rented_s: dict[int, float] = {}
    users: dict[int, int] = {}
    idle_until_s: dict[int, float] = {}
    leaving: list[tuple[float, int, dict[int, CoresAndMemory]]] = []
    total, numbered = 0.0, 0

    def end_idle(now_s: float) -> float:
        usd = 0.0
        for number in [number for number, end_s in idle_until_s.items() if end_s <= now_s]:
            usd += (idle_until_s.pop(number) - rented_s.pop(number)) / HOUR_S * usd_per_hour[pool[number].market]
            del pool[number], users[number], whole[number]
        return usd

    def leave(until_s: float) -> float:
        usd = 0.0
        while leaving and leaving[0][0] <= until_s:
            now_s, _, taken = heappop(leaving)
            usd += end_idle(now_s)
            for number, part in taken.items():
                pool[number] = replace(pool[number], free=pool[number].free.plus(part))
                users[number] -= 1
                if not users[number]:
                    pool[number] = replace(pool[number], free=whole[number])
                    idle_until_s[number] = now_s + FREE_LIST_S
        return usd

    for order, application in enumerate(applications):
        now_s = application.arrives_s
        total += leave(now_s) + end_idle(now_s)
        numbers = [number for number in pool if shared or not users[number]]
        asked = _shares(portfolios, application.draw)
        found = allocate(asked, application.wanted, catalogue.machine_of, [pool[n] for n in numbers])
        for place in range(len(numbers), len(found.servers)):
            server = found.servers[place]
            numbers.append(numbered)
            whole[numbered] = server.free.plus(found.taken[place])
            rented_s[numbered], users[numbered] = now_s, 0
            numbered += 1
        taken = {}
        for place, part in found.taken.items():
            number = numbers[place]
            pool[number] = found.servers[place]
            users[number] += 1
            idle_until_s.pop(number, None)
            taken[number] = part
        heappush(leaving, (now_s + application.lasts_s, order, taken))
    return total + leave(np.inf) + end_idle(np.inf)


def packing_reduction(
    portfolios: Mapping[str, Mapping[Market, float]],
    usd_per_hour: Mapping[Market, float],
    catalogue: Catalogue,
    *,
    count: int = 2_000,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """Figure 11: costs with own and with shared machines, by the mix of risk aversions.

    Args:
        portfolios: Weights by market, of `low`, `medium` and `high` risk aversion.
        usd_per_hour: Price of a machine, USD per hour, by market.
        catalogue: Instance types and their list prices.
        count: The number of applications.
        seed: Seed of all random numbers.
    """
    spreads = {
        "all low": (1.0, 0.0, 0.0),
        "all high": (0.0, 0.0, 1.0),
        "equal": (1 / 3, 1 / 3, 1 / 3),
        "1:2:1": (0.25, 0.5, 0.25),
    }
    applications = arrivals(count, seed)
    found = {}
    for name, parts in spreads.items():
        mix = list(zip(parts, (portfolios[kind] for kind in ("low", "medium", "high")), strict=True))
        alone, together = (
            packing_usd(applications, mix, usd_per_hour, catalogue, shared=shared) for shared in (False, True)
        )
        found[name] = {"private_usd": alone, "shared_usd": together, "reduction": 1.0 - ratio(together, alone)}
    return found


def _shares(portfolios: Sequence[tuple[float, Mapping[Market, float]]], draw: float) -> Mapping[Market, float]:
    """The weights of the portfolio that an application's draw selects."""
    reached = 0.0
    for part, weights in portfolios:
        reached += part
        if draw < reached:
            return weights
    return portfolios[-1][1]
