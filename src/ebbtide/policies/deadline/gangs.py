"""Machines that work as one for a job with a deadline: so many of one market, which a table takes for a zone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.base.compiled_records import LONG_AGO_S
from ebbtide.jobs.job import Coupling, Job
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import Action, Assign, Release, Request
from ebbtide.policies.api.reasons import Reason
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View

# Numbers of machines between the least and the most that an elastic job is planned for.
_MOST_SIZES = 4


@dataclass(frozen=True)
class Gang:
    """Machines of one market that work as one; one machine is a gang, too.

    Attributes:
        market: The market.
        machines: Their number.
    """

    market: Market
    machines: int = 1

    def __str__(self) -> str:
        return str(self.market) if self.machines == 1 else f"{self.machines} x {self.market}"


def sizes_of(job: Job) -> tuple[int, ...]:
    """Numbers of machines that a job is planned for, the most first; of an elastic job up to four, evenly spaced.

    Jobs whose machines need not work as one are planned for one machine.
    """
    if job.coupling is not Coupling.GANG:
        return (1,)
    most, least = job.most_machines, job.least_machines
    count = min(most - least + 1, _MOST_SIZES)
    return tuple(round(most - (most - least) * place / max(count - 1, 1)) for place in range(count))


def steady_leases(view: View, job: JobView) -> list[LeaseView]:
    """The job's open machines that are not about to be taken."""
    return [lease for lease in view.leases_of(job.job_id) if math.isinf(lease.revoke_at_s)]


def coming_leases(view: View, own: dict[str, Any]) -> list[LeaseView]:
    """The open machines of a gang that is on its way, not about to be taken.

    Args:
        view: What the policy sees.
        own: What the policy remembers of the job.
    """
    leases = [view.lease(lease_id) for lease_id in own.get("coming", ())]
    return [lease for lease in leases if lease.is_open and math.isinf(lease.revoke_at_s)]


def request_gang(view: View, own: dict[str, Any], request: Request) -> Iterator[Action]:
    """Request machines that the job gets together, once all have booted: each that came alone would begin it anew.

    Args:
        view: What the policy sees.
        own: What the policy remembers of the job.
        request: For no job.
    """
    known = {lease.lease_id for lease in view.leases}
    yield request
    own["coming"] = [lease.lease_id for lease in view.leases if lease.lease_id not in known]


def brought_together(
    view: View, job: JobView, own: dict[str, Any], takes: Callable[[Market, int], bool]
) -> Iterator[Action]:
    """Give a job the machines that were on their way, if as many came as were asked for; else give them back.

    The machines of other markets are released then. So are those that are left of a gang, if they are too few.

    Args:
        view: What the policy sees.
        job: A job of several machines.
        own: What the policy remembers of the job.
        takes: Whether the job is to move to so many spot machines of a market, fewer than were asked for.
    """
    held, coming = steady_leases(view, job), coming_leases(view, own)
    if len(held) < job.job.least_machines and len(held) == len(view.leases_of(job.job_id)):
        # With those that are about to be taken it works on until they are.
        rest = Reason("too few of the machines that work as one are left")
        yield from (Release(lease.lease_id, because=rest) for lease in held)
        held = []
    if not coming:
        own.pop("coming", None)
        return
    if not all(lease.is_charged for lease in coming):
        # Some may still be refused.
        return
    beside = [
        lease for lease in held if (lease.market, lease.on_demand) == (coming[0].market, coming[0].on_demand)
    ]
    # What joins machines of its market is welcome in any number.
    enough = job.job.least_machines if beside or not held else max(own["asked"], job.job.least_machines)
    together = [*beside, *coming]
    given = len(together)
    if given < enough and not (
        given >= job.job.least_machines and not coming[0].on_demand and takes(coming[0].market, given)
    ):
        few = Reason("too few of the machines that were to work as one have come")
        yield from (Release(lease.lease_id, because=few) for lease in coming)
        del own["coming"]
    elif all(lease.is_booted for lease in coming):
        yield Assign(job.job_id, [lease.lease_id for lease in together])
        moved = Reason("its job has moved to other machines")
        yield from (Release(lease.lease_id, because=moved) for lease in held if lease not in beside)
        del own["coming"]


def given_back(view: View, memory: dict[str, Any]) -> Iterator[Action]:
    """Release machines that are on their way to jobs that are finished.

    Args:
        view: What the policy sees.
        memory: What the policy remembers of all jobs.
    """
    for job_id, own in memory["jobs"].items():
        if own.get("coming") and view.jobs[int(job_id)].is_finished:
            done = Reason("its job is done")
            yield from (Release(lease.lease_id, because=done) for lease in coming_leases(view, own))
            del own["coming"]


def note_refusal(
    refused: dict[str, float],
    gangs: Sequence[Gang],
    market: Market,
    given: int,
    now_s: float,
    waits_s: float = 0.0,
) -> None:
    """Note in a policy's memory that a market has no more than `given` machines now.

    Args:
        refused: When each gang was refused, seconds since 1970, by its name.
        gangs: The gangs that a job is planned for.
        market: The market.
        given: Number of machines that it gave, or that are left.
        now_s: The time, seconds since 1970.
        waits_s: For how much longer than after any refusal it is not asked again: what it gives in part is paid
            for, each time.
    """
    for gang in gangs:
        if gang.market == market and gang.machines > given:
            refused[str(gang)] = now_s + waits_s


def refused_s(refused: dict[str, float], gangs: Sequence[Gang], gang: Gang) -> float:
    """Last refusal of a gang or of fewer machines of its market, seconds since 1970; `LONG_AGO_S`: never."""
    smaller = [other for other in gangs if other.market == gang.market and other.machines <= gang.machines]
    times_s = [refused.get(str(other), LONG_AGO_S) for other in (*smaller, Gang(gang.market))]
    return max(times_s)


def largest_within(gangs: Sequence[Gang], market: Market, machines: int) -> int:
    """The place of the largest gang of a market that so many machines make up; if none, of the smallest."""
    places = [place for place, gang in enumerate(gangs) if gang.market == market]
    fitting = [place for place in places if gangs[place].machines <= machines]
    if fitting:
        return max(fitting, key=lambda place: gangs[place].machines)
    return min(places, key=lambda place: gangs[place].machines)


def taken_among(view: View, lease_ids: Sequence[int]) -> int:
    """Number of these machines that the provider has revoked, or has given notice of."""
    leases = [view.lease(lease_id) for lease_id in lease_ids]
    return sum(lease.state is LeaseState.REVOKED or math.isfinite(lease.revoke_at_s) for lease in leases)


def gangs_of(own: dict[str, Any]) -> tuple[Gang, ...]:
    """The gangs that a job is planned for, from what a policy remembers of it."""
    markets = [Market(*fields) for fields in own["zones"]]
    # Runs that began before gangs were known have one machine.
    numbers = own.get("machines") or [1] * len(markets)
    return tuple(Gang(market, number) for market, number in zip(markets, numbers, strict=True))
