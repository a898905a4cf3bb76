"""The state of ExoSphere's master: an account per application, and the list of servers without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import MARKET_FIELDS, Market
from ebbtide.policies.api.view import View
from ebbtide.policies.exosphere.allocation import CoresAndMemory
from ebbtide.policies.exosphere.applications import PortfolioRequest, RentedServer
from ebbtide.policies.exosphere.portfolio import Holding


class ApplicationAccount:
    """The state of one application, kept as plain values in the policy's memory, so that it survives a restart."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    @classmethod
    def in_memory(cls, memory: dict[str, Any], job_id: int) -> ApplicationAccount:
        """The account of a job."""
        return cls(memory.setdefault("applications", {}).setdefault(str(job_id), {}))

    @property
    def is_new(self) -> bool:
        """True if the application has not begun yet."""
        return not self._values

    def begin(self, now_s: float) -> None:
        """Set the initial state."""
        self._values.update(
            application={},
            wanted=[0.0, 0.0],
            holdings=[],
            request=None,
            servers=[],
            lost=[],
            expensive=[],
            at_risk=[],
            calls=[],
            closed=[],
            next_call_s=now_s,
        )

    @property
    def of_application(self) -> dict[str, Any]:
        """The application's own memory."""
        found: dict[str, Any] = self._values.setdefault("application", {})
        return found

    @property
    def wanted(self) -> CoresAndMemory:
        """Resources that the cluster should have."""
        return CoresAndMemory(*self._values["wanted"])

    @wanted.setter
    def wanted(self, resources: CoresAndMemory) -> None:
        self._values["wanted"] = [resources.vcpus, resources.memory_gib]

    @property
    def request(self) -> PortfolioRequest | None:
        """The last portfolio request; None before the first."""
        kept = self._values["request"]
        if kept is None:
            return None
        return PortfolioRequest(
            **kept
            | {"resources": CoresAndMemory(**kept["resources"]), "instance_types": tuple(kept["instance_types"])}
        )

    @request.setter
    def request(self, request: PortfolioRequest) -> None:
        self._values["request"] = asdict(request) | {"instance_types": list(request.instance_types)}

    @property
    def price_threshold(self) -> float:
        """Share of the bid above which no server is rented."""
        request = self.request
        return request.price_threshold if request else 1.0

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """The markets of the portfolio."""
        return tuple(Holding(Market(*kept[:-2]), kept[-2], kept[-1]) for kept in self._values.get("holdings", ()))

    @holdings.setter
    def holdings(self, holdings: Iterable[Holding]) -> None:
        self._values["holdings"] = [
            [*_fields(holding.market), holding.share, holding.bid_usd_per_hour] for holding in holdings
        ]

    @property
    def servers(self) -> list[int]:
        """Lease ids of the application's servers at the last update."""
        found: list[int] = self._values["servers"]
        return found

    @servers.setter
    def servers(self, lease_ids: list[int]) -> None:
        self._values["servers"] = lease_ids

    def drop(self, lease_id: int) -> None:
        """Remove a server that is released."""
        self.servers = [other for other in self.servers if other != lease_id]

    @property
    def next_call_s(self) -> float:
        """Time of the next regular up-call about the portfolio, seconds since 1970."""
        return float(self._values["next_call_s"])

    @next_call_s.setter
    def next_call_s(self, time_s: float) -> None:
        self._values["next_call_s"] = time_s

    def newly_lost(self, leaving: Iterable[RentedServer]) -> list[RentedServer]:
        """The leaving or lost servers that were not reported before."""
        lost = [server for server in leaving if server.lease_id not in self._values["lost"]]
        self._values["lost"] += [server.lease_id for server in lost]
        return lost

    def newly(self, kind: str, servers: Sequence[RentedServer]) -> list[RentedServer]:
        """The servers that were not of this kind at the last call."""
        before = self._values[kind]
        self._values[kind] = [server.lease_id for server in servers]
        return [server for server in servers if server.lease_id not in before]

    def call_at(self, time_s: float) -> None:
        """Record a time at which the application wants to be called."""
        if time_s not in self._values["calls"]:
            self._values["calls"].append(time_s)

    def is_due(self, now_s: float) -> bool:
        """Return whether a call was due by now, and remove the calls that were."""
        later = [time_s for time_s in self._values["calls"] if time_s > now_s]
        due = len(later) < len(self._values["calls"])
        self._values["calls"] = later
        return due

    def close(self, market: Market, until_s: float) -> None:
        """Avoid a market until a time, because a launch failed there."""
        self._values["closed"].append([*_fields(market), until_s])

    def closed(self, now_s: float) -> set[Market]:
        """Markets to avoid now."""
        self._values["closed"] = [kept for kept in self._values["closed"] if kept[-1] > now_s]
        return {Market(*kept[:-1]) for kept in self._values["closed"]}


class FreeList:
    """Servers kept for later applications (5), with the time each is kept until, by lease id."""

    def __init__(self, until_s: dict[str, float], given_back: list[int]) -> None:
        self._until_s = until_s
        self._given_back = given_back

    @classmethod
    def in_memory(cls, memory: dict[str, Any]) -> FreeList:
        """The free list of a run."""
        return cls(memory.setdefault("free", {}), memory.setdefault("given_back", []))

    def never(self, lease_id: int) -> None:
        """Exclude a released server: it stays until its work is saved, but no application may get it."""
        self._given_back.append(lease_id)

    def until_s(self, lease_id: int) -> float:
        """Time until which a server is kept, seconds since 1970."""
        return self._until_s[str(lease_id)]

    def enter(self, idle: Iterable[int], until_s: float) -> Iterator[int]:
        """Add idle servers and remove those in use again; yields the ids of the added ones."""
        now_idle = {str(lease_id) for lease_id in idle if lease_id not in self._given_back}
        for known in set(self._until_s) - now_idle:
            del self._until_s[known]
        for lease_id in sorted(now_idle - set(self._until_s), key=int):
            self._until_s[lease_id] = until_s
            yield int(lease_id)

    def expired(self, now_s: float) -> list[int]:
        """Ids of the servers whose time is over."""
        return [int(lease_id) for lease_id, until_s in self._until_s.items() if until_s <= now_s]

    def take(self, view: View, counts: Counter[Market]) -> list[int]:
        """Take servers for an application, up to `counts` in each market; returns their lease ids."""
        taken: list[int] = []
        left = Counter(counts)
        for lease_id in [int(known) for known in self._until_s]:
            lease = view.lease(lease_id)
            if left[lease.market] > 0 and lease.state is LeaseState.RUNNING:
                left[lease.market] -= 1
                taken.append(lease_id)
                del self._until_s[str(lease_id)]
        return taken


def _fields(market: Market) -> list[str]:
    return [getattr(market, name) for name in MARKET_FIELDS]
