"""The machines of a run, as the cloud lists them: when each was seen last, and whether the cloud answers."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping

from ebbtide.base.runtime import Runtime
from ebbtide.clouds.cloud import Cloud, CloudOfParts, Instance, is_silent
from ebbtide.clouds.parts import PartlySilentError
from ebbtide.errors import CloudError
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market

_LOGGER = logging.getLogger(__name__)

_WARN_AGAIN_S = 60.0

OVER = frozenset({LeaseState.RELEASED, LeaseState.REVOKED, LeaseState.FAILED})


def machine_id(run: str, number: int) -> str:
    """The id of a machine.

    Args:
        run: Id of its run.
        number: Its number in the run, from 0.
    """
    return f"{run}-m{number:04d}"


class MachineList:
    """Machines of one run, as its cloud lists them.

    Args:
        cloud: The cloud that rents them out.
        run: Id of the run, by which machines are named.
        runtime: Gives the time.

    Attributes:
        trouble: Why the cloud or storage did not answer at the last look; empty: both answered.
        seen_s: When the cloud last listed a machine, seconds since 1970 by its clock, by lease id.
        silent_since_s: Since when the part of the cloud that rents in a market has not answered, in monotonic
            seconds, of those that did not answer the last listing.
        first: Number of the first machine in the run's journal: lower numbers belong to a journal that was lost.
    """

    def __init__(self, cloud: Cloud, run: str, runtime: Runtime) -> None:
        self._cloud, self._run, self._runtime = cloud, run, runtime
        self._listed: dict[str, Instance] = {}
        self._listed_s = -math.inf
        # Why the last listing was not complete; None: it was.
        self._problem: CloudError | None = None
        self._warned_s = -math.inf
        # One listing may lack a machine, which keeps its address all the same.
        self._addresses: dict[int, str] = {}
        self.trouble = ""
        self.seen_s: dict[int, float] = {}
        self.silent_since_s: dict[Market, float] = {}
        self.first = 0

    def token(self, lease_id: int) -> str:
        """The id of the machine of a lease."""
        return machine_id(self._run, self.first + lease_id)

    def lease_id_of(self, token: str) -> int | None:
        """The lease id of a machine, below 0 if it was rented before the journal was lost; None: it has no id."""
        number = token.removeprefix(f"{self._run}-m")
        is_one = number.isascii() and number.isdecimal() and token == machine_id(self._run, int(number))
        return int(number) - self.first if is_one else None

    def listed(self, within_s: float = 0.0) -> dict[str, Instance]:
        """Machines by id, as the cloud lists them now, or listed them within the last `within_s` seconds.

        Raises:
            PartlySilentError: A part of the cloud has never answered.
            CloudError: The cloud does not answer.
        """
        if self._runtime.monotonic_s() - self._listed_s >= within_s:
            try:
                self._listed = {instance.token: instance for instance in self._cloud.instances()}
            except CloudError as error:
                self._problem = error
                if isinstance(error, PartlySilentError):
                    self._listed = {instance.token: instance for instance in error.found}
                self._note_silent()
                raise
            self._listed_s, self._problem = self._runtime.monotonic_s(), None
            self._note_silent()
        return self._listed

    def is_heard(self, market: Market) -> bool:
        """Return whether the part of the cloud that rents in a market answered the last listing."""
        is_partly = isinstance(self._problem, PartlySilentError) and isinstance(self._cloud, CloudOfParts)
        return (self._problem is None or is_partly) and not is_silent(self._cloud, market)

    def _note_silent(self) -> None:
        """Note the markets whose part of a cloud that is in parts did not answer the last listing."""
        if not isinstance(self._cloud, CloudOfParts):
            return
        # Each zone is asked for once: there may be thousands of markets.
        heard: dict[tuple[str, str, str], bool] = {}
        now_s, before, found = self._runtime.monotonic_s(), self.silent_since_s, dict[Market, float]()
        for market in self._cloud.markets:
            zone = market.cloud, market.region, market.zone
            if zone not in heard:
                heard[zone] = self.is_heard(market)
            if not heard[zone]:
                found[market] = before.get(market, now_s)
        self.silent_since_s = found

    def see(self, lease_id: int, instance: Instance) -> None:
        """Note that a machine is listed."""
        if not math.isnan(instance.ended_s):
            # The cloud may forget the machine before its end is handled.
            self.seen_s[lease_id] = instance.ended_s
        else:
            self.seen_s[lease_id] = self._cloud.now_s if math.isnan(instance.listed_s) else instance.listed_s

    def address(self, lease_id: int) -> str:
        """The address at which other machines reach a lease's machine; empty: not known yet."""
        instance = self._listed.get(self.token(lease_id))
        if instance is not None and instance.address:
            self._addresses[lease_id] = instance.address
        return self._addresses.get(lease_id, "")

    def last_seen_s(self, lease: Lease) -> float:
        """Time of the last listing of a lease's machine, seconds since 1970; if never, the start of the lease."""
        return max(self.seen_s.get(lease.lease_id, lease.started_s), lease.started_s)

    def seen_of(self, lease_ids: Iterable[int]) -> list[tuple[float, list[int]]]:
        """Pairs of the time of a listing, and the ids of the leases last seen then: most share one listing."""
        return grouped(self.seen_s, lease_ids)

    def troubled(self, error: Exception) -> None:
        """Note that cloud or storage does not answer; log it when it is new, and once a minute."""
        now_s = self._runtime.monotonic_s()
        if str(error) != self.trouble or now_s - self._warned_s >= _WARN_AGAIN_S:
            self._warned_s = now_s
            _LOGGER.warning("%s; asked again", error)
        self.trouble = str(error)


def grouped(values: Mapping[int, float], lease_ids: Iterable[int]) -> list[tuple[float, list[int]]]:
    """Pairs of a value and the ids of the leases that have it; those without a value are left out."""
    found: dict[float, list[int]] = {}
    for lease_id in lease_ids:
        if lease_id in values:
            found.setdefault(values[lease_id], []).append(lease_id)
    return list(found.items())


def end_of(lease: Lease, ended_s: float) -> float:
    """End of a machine by the cloud's clock or ours, which may differ: no earlier than the start of its lease."""
    return max(ended_s, lease.started_s) if lease.is_charged and not math.isnan(ended_s) else ended_s


def note_times(lease: Lease, instance: Instance) -> None:
    """Note when a machine started and had booted, as far as the cloud says."""
    if not math.isnan(instance.started_s):
        lease.started_s = instance.started_s
    if not math.isnan(instance.running_s):
        lease.running_s = instance.running_s
