"""Machines for a portfolio, and sharing of their free resources (ExoSphere 3.4, 3.5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ebbtide.errors import InputError
from ebbtide.market.catalogue import InstanceType
from ebbtide.market.markets import Market

# Smaller amounts are rounding errors and need no machine.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class CoresAndMemory:
    """An amount of cores and memory.

    Attributes:
        vcpus: Number of cores, fractions allowed.
        memory_gib: Amount of memory, GiB.
    """

    vcpus: float
    memory_gib: float

    def __post_init__(self) -> None:
        if not (self.vcpus >= 0.0 and self.memory_gib >= 0.0):
            raise InputError(f"{self.vcpus} cores and {self.memory_gib} GiB; neither can be negative")

    def times(self, factor: float) -> CoresAndMemory:
        return CoresAndMemory(self.vcpus * factor, self.memory_gib * factor)

    def without(self, other: CoresAndMemory) -> CoresAndMemory:
        """The difference, not below 0."""
        return CoresAndMemory(max(self.vcpus - other.vcpus, 0.0), max(self.memory_gib - other.memory_gib, 0.0))

    def least(self, other: CoresAndMemory) -> CoresAndMemory:
        return CoresAndMemory(min(self.vcpus, other.vcpus), min(self.memory_gib, other.memory_gib))

    def plus(self, other: CoresAndMemory) -> CoresAndMemory:
        return CoresAndMemory(self.vcpus + other.vcpus, self.memory_gib + other.memory_gib)

    @property
    def is_nothing(self) -> bool:
        return self.vcpus <= _ROUNDING and self.memory_gib <= _ROUNDING


@dataclass(frozen=True)
class Server:
    """A rented machine and its free resources.

    Attributes:
        market: The market it was rented in.
        free: Resources not given to any application.
    """

    market: Market
    free: CoresAndMemory


@dataclass(frozen=True)
class ApplicationShare:
    """The resources that an application gets.

    Attributes:
        new: Number of machines to rent, by market.
        servers: All machines afterwards, old ones first, with the resources then free on each.
        taken: Resources that the application uses on each of these machines, by index in `servers`.
        surplus: Share of the newly rented resources that was not needed, the larger of cores' and memory's.
    """

    new: Mapping[Market, int]
    servers: tuple[Server, ...]
    taken: Mapping[int, CoresAndMemory]
    surplus: float


def server_count(share: float, wanted: CoresAndMemory, machine: CoresAndMemory) -> int:
    """Machines needed in a market for its share of the wanted resources (Equation 8, rounded up)."""
    return math.ceil(machines_needed(share, wanted, machine) - _ROUNDING)


def machines_needed(share: float, wanted: CoresAndMemory, machine: CoresAndMemory) -> float:
    """Machines needed in a market for its share of the wanted resources (Equation 8), as a fraction."""
    return max(share * wanted.vcpus / machine.vcpus, share * wanted.memory_gib / machine.memory_gib)


def allocate(
    shares: Mapping[Market, float],
    wanted: CoresAndMemory,
    machine_of: Callable[[Market], InstanceType],
    servers: Sequence[Server] = (),
) -> ApplicationShare:
    """Meet a portfolio's demand in each market, first from free resources, then with new machines (3.5).

    Args:
        shares: Share of the resources in each market; they sum to 1.
        wanted: Resources that the application wants.
        machine_of: Gives the instance type of a market.
        servers: Machines already rented and shared; none: a cluster of its own.

    Raises:
        InputError: The shares do not sum to 1, or a machine is not in the catalogue.
    """
    if abs(math.fsum(shares.values()) - 1.0) > 1e-6:
        raise InputError(f"shares sum to {math.fsum(shares.values()):g}; they must to 1")
    found, new, all_taken = list(servers), {}, {}
    asked, rented = [0.0, 0.0], [0.0, 0.0]
    for market, share in shares.items():
        kind = machine_of(market)
        machine = CoresAndMemory(kind.vcpus, kind.memory_gib)
        missing = wanted.times(share)
        for place in _best_fit(found, market, missing):
            taken = found[place].free.least(missing)
            if taken.is_nothing:
                continue
            found[place] = replace(found[place], free=found[place].free.without(taken))
            all_taken[place] = taken
            missing = missing.without(taken)
        count = 0 if missing.is_nothing else server_count(1.0, missing, machine)
        if not count:
            continue
        new[market] = count
        asked = [asked[0] + missing.vcpus, asked[1] + missing.memory_gib]
        rented = [rented[0] + count * machine.vcpus, rented[1] + count * machine.memory_gib]
        for _ in range(count):
            taken = machine.least(missing)
            missing = missing.without(taken)
            all_taken[len(found)] = taken
            found.append(Server(market, machine.without(taken)))
    parts = [1.0 - need / have for need, have in zip(asked, rented, strict=True) if need > _ROUNDING]
    surplus = max(parts, default=0.0)
    return ApplicationShare(new, tuple(found), all_taken, surplus)


def _best_fit(servers: Sequence[Server], market: Market, missing: CoresAndMemory) -> Iterable[int]:
    """Indices of a market's machines with free resources, those that fit the missing ones best first (3.5)."""
    here = [n for n, server in enumerate(servers) if server.market == market and not server.free.is_nothing]

    def fits(place: int) -> float:
        free = servers[place].free
        parts = [(free.vcpus, missing.vcpus), (free.memory_gib, missing.memory_gib)]
        return min((have / need for have, need in parts if need > _ROUNDING), default=0.0)

    return sorted(here, key=fits, reverse=True)
