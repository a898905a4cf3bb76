"""Rounds of Dynamic Pricing: which job gets which instance type next, and which machines change hands for it.

In each round every job gets the type on which it is owed most time, so that shares of time approach X (Gavel, 5).
A machine of a type that one job leaves and another gets is handed over: no machine is begun for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ebbtide.market.price_series import Floats
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View


@dataclass(frozen=True, eq=False)
class Received:
    """The time that each job has had on each type.

    Attributes:
        hours: Hours of each job on each type, shape (m, n).
        elapsed_h: Hours since the allocation took effect.
    """

    hours: Floats
    elapsed_h: float = 0.0

    @classmethod
    def nothing(cls, shape: tuple[int, int]) -> Received:
        """No time yet, before the first round; shape (m, n)."""
        return cls(np.zeros(shape))

    def after(self, chosen: NDArray[np.int64], round_h: float) -> Received:
        """The times after one more round, with the types that `next_round` chose."""
        hours = self.hours.copy()
        running = np.flatnonzero(chosen >= 0)
        hours[running, chosen[running]] += round_h
        return Received(hours, self.elapsed_h + round_h)


def next_round(shares: Floats, quotas: Floats, received: Received, round_h: float) -> NDArray[np.int64]:
    """The index of each job's type in the next round, or -1 if it waits; shape (m,).

    Pairs are served by the time they are owed: the time X gives them by the end of the round, less what they had.
    A job gets one type, and a type no more jobs than machines. Time that no pair is owed is left idle.

    Args:
        shares: X: share of time of each job on each type, shape (m, n).
        quotas: Number of machines of each type, shape (n,).
        received: Time that the jobs have had so far.
        round_h: Length of a round, hours.
    """
    owed = shares * (received.elapsed_h + round_h) - received.hours
    chosen = np.full(len(shares), -1, dtype=np.int64)
    # With a quota of one and a half machines, some rounds have two.
    used = received.hours.sum(axis=0)
    free = np.where(np.isfinite(quotas), quotas * (received.elapsed_h + round_h) - used, np.inf)
    places = np.minimum(np.floor(free / round_h + 1e-9), np.ceil(quotas))
    for place in np.argsort(-owed, axis=None, kind="stable"):
        job, kind = divmod(int(place), shares.shape[1])
        if owed[job, kind] < round_h / 2.0 - 1e-9:
            break
        if chosen[job] < 0 and places[kind] >= 1.0:
            chosen[job] = kind
            places[kind] -= 1.0
    return chosen


@dataclass(frozen=True)
class Held:
    """A machine that is up and not about to be revoked.

    Attributes:
        lease_id: Its lease.
        kind: Its instance type.
        job: The job that has it; None: no unfinished one.
    """

    lease_id: int
    kind: str
    job: int | None


@dataclass(frozen=True)
class HandOver:
    """Machines that change hands at the beginning of a round.

    Attributes:
        given: The lease that each of these jobs gets.
        paused: Jobs that lose their machine and have no other yet.
        left: Leases that no job has any more.
    """

    given: Mapping[int, int]
    paused: tuple[int, ...]
    left: tuple[int, ...]


def hand_over(
    held: Sequence[Held], kinds: Mapping[int, str], coming: Mapping[int, Collection[str]], full: Collection[str]
) -> HandOver:
    """Give machines to the jobs that have their types in the next round.

    A job keeps a machine of its type. Of the others, those of jobs that wait or are done go to whoever needs them;
    one whose job is to move goes only where no further machine of its type may be rented, as that job stands still
    until it has another.

    Args:
        held: The machines.
        kinds: The type of each unfinished job in the next round; those that wait are missing.
        coming: Types of the machines that are on their way to a job.
        full: Types of which no more machines may be rented.
    """
    owner = {each.lease_id: each.job for each in held}
    has = {each.job for each in held if each.job is not None and kinds.get(each.job) == each.kind}
    needs = [job for job, kind in sorted(kinds.items()) if job not in has and kind not in coming.get(job, ())]
    given: dict[int, int] = {}
    lost: set[int] = set()
    for is_last_resort in (False, True):
        for job in needs:
            if job in given or (is_last_resort and kinds[job] not in full):
                continue
            for each in held:
                holder = owner[each.lease_id]
                moves = holder is not None and holder in kinds
                is_free = each.lease_id not in given.values() and holder not in has and holder != job
                if each.kind == kinds[job] and is_free and (is_last_resort or not moves):
                    given[job] = each.lease_id
                    lost |= {holder} if holder is not None else set()
                    break
    taken = set(given.values())
    # Nobody has those of jobs that wait or are done, and those of jobs that got another.
    without = [each for each in held if each.job not in kinds or each.job in given]
    left = tuple(each.lease_id for each in without if each.lease_id not in taken)
    waiting = {each.job for each in held if each.job is not None and each.job not in kinds}
    return HandOver(given, tuple(sorted((lost | waiting) - set(given))), left)


def steady(view: View, job: JobView) -> list[LeaseView]:
    """A job's machines, running or starting, without a revocation notice."""
    return [lease for lease in view.leases_of(job.job_id) if math.isinf(lease.revoke_at_s)]


def rented_by_others(view: View) -> Counter[str]:
    """Machines of each type that other policies of the run have rented, where there are any."""
    return Counter(lease.market.instance_type for lease in getattr(view, "leases_of_others", ()))
