"""Servers that applications share (3.5): a job that fills a part of one is put where others have left it room."""

from __future__ import annotations

from collections.abc import Iterable

from ebbtide.market.leases import LeaseState
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View
from ebbtide.policies.exosphere.trials import is_alone

# Shares are sums of fractions such as 0.1.
_ROUNDING = 1e-9
_COMING = (LeaseState.REQUESTED, LeaseState.STARTING)


class Sharing:
    """The free parts of servers, in one decision.

    A job is put on a server that runs, the one that it fits best. Where such a server is on its way, it waits for
    that: trainings cannot begin before it has booted, and by then others may have ended.

    Args:
        view: What is known; up to date after every action.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        # The free part of each server that has a job which leaves some, by lease id; found when first asked for.
        self._free: dict[int, float] | None = None
        self._seen = 0

    def place_for(self, job: JobView) -> LeaseView | None:
        """A server with room for a job, which is reserved for it; one that has not booted is to be waited for.

        Args:
            job: The job, which has no server; of several, those with lower ids are asked for first.

        Returns:
            The server; None: there is none, so that one has to be rented.
        """
        if not shares(job):
            return None
        for other in self._view.jobs[self._seen : job.job_id]:
            # Those before it that wait for a server have part of it.
            if shares(other) and not other.is_finished and not self._view.leases_of(other.job_id):
                self._reserve(other, _COMING)
        self._seen = max(self._seen, job.job_id + 1)
        return self._reserve(job, (LeaseState.RUNNING,)) or self._reserve(job, _COMING)

    def rented(self, job: JobView) -> None:
        """Servers were rented for a job, or taken from the free list: those after it may share them."""
        for lease in self._view.leases_of(job.job_id) if shares(job) else ():
            self._rooms.setdefault(lease.lease_id, 1.0 - job.job.share)

    @property
    def _rooms(self) -> dict[int, float]:
        if self._free is None:
            self._free = {}
            for job in self._view.jobs:
                for lease in () if job.is_finished else self._view.leases_of(job.job_id):
                    # Machines of several are filled whole.
                    left = self._free.get(lease.lease_id, 1.0)
                    self._free[lease.lease_id] = left - (job.job.share if is_alone(job) else 1.0)
        return self._free

    def _reserve(self, job: JobView, states: Iterable[LeaseState]) -> LeaseView | None:
        found = None
        for lease_id, free in sorted(self._rooms.items(), key=lambda room: (room[1], room[0])):
            lease = self._view.lease(lease_id)
            fits = free >= job.job.share - _ROUNDING and lease.state in states
            if fits and self._view.steps_per_s(job.job, lease.market) > 0.0:
                found = lease
                break
        if found is not None:
            self._rooms[found.lease_id] -= job.job.share
        return found


def shares(job: JobView) -> bool:
    """Whether a job leaves room for others on its server."""
    return is_alone(job) and job.job.share < 1.0 - _ROUNDING


def has_others(view: View, job: JobView, lease_id: int) -> bool:
    """Whether a server has jobs besides this one."""
    return any(
        lease.lease_id == lease_id
        for other in view.jobs
        if other.job_id != job.job_id and not other.is_finished
        for lease in view.leases_of(other.job_id)
    )
