"""Machines that work as one for a job with a deadline: so many of one market, which a table takes for a zone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide._compiled_records import LONG_AGO_S
from ebbtide.jobs.job import Coupling, Job
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import Action, Assign, Release
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


def kept_together(view: View, job: JobView, asked: int) -> Iterator[Action]:
    """Leave a job the machines of one market: those that came last, if as many came as were asked for.

    Machines that are too few are given back as soon as the others have been refused.

    Args:
        view: What the policy sees.
        job: A job of several machines.
        asked: Number of machines that the last request was to bring together.
    """
    groups: dict[tuple[Market, bool], list[LeaseView]] = {}
    for lease in steady_leases(view, job):
        groups.setdefault((lease.market, lease.on_demand), []).append(lease)
    by_age = sorted(groups.values(), key=lambda group: max(lease.requested_s for lease in group))
    if not by_age or not all(lease.is_charged for lease in by_age[-1]):
        # Some may still be refused.
        return
    new, before = by_age[-1], by_age[:-1]
    least = job.job.least_machines
    if len(new) < (max(asked, least) if before else least):
        yield from (Release(lease.lease_id) for lease in new)
    elif before and all(lease.is_booted for lease in new):
        yield Assign(job.job_id, [lease.lease_id for lease in new])
        yield from (Release(lease.lease_id) for group in before for lease in group)


def note_refusal(
    refused: dict[str, float], gangs: Sequence[Gang], market: Market, given: int, now_s: float
) -> None:
    """Note in a policy's memory that a market has no more than `given` machines now.

    Args:
        refused: When each gang was refused, seconds since 1970, by its name.
        gangs: The gangs that a job is planned for.
        market: The market.
        given: Number of machines that it gave, or that are left.
        now_s: The time, seconds since 1970.
    """
    for gang in gangs:
        if gang.market == market and gang.machines > given:
            refused[str(gang)] = now_s


def refused_s(refused: dict[str, float], gangs: Sequence[Gang], gang: Gang) -> float:
    """When a gang, or fewer machines of its market, were last refused, seconds since 1970; long ago: never."""
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
    """How many of some machines the provider has taken, or is about to."""
    leases = [view.lease(lease_id) for lease_id in lease_ids]
    return sum(lease.state is LeaseState.REVOKED or math.isfinite(lease.revoke_at_s) for lease in leases)


def gangs_of(own: dict[str, Any]) -> tuple[Gang, ...]:
    """The gangs that a job is planned for, from what a policy remembers of it."""
    markets = [Market(*fields) for fields in own["zones"]]
    # Runs that began before gangs were known have one machine.
    numbers = own.get("machines") or [1] * len(markets)
    return tuple(Gang(market, number) for market, number in zip(markets, numbers, strict=True))
