"""Servers that applications share (3.5): a job that fills a part of one is put where others have left it room."""

from __future__ import annotations

from ebbtide.market.leases import LeaseState
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View
from ebbtide.policies.exosphere.trials import is_alone

# Shares are sums of fractions such as 0.1.
_ROUNDING = 1e-9
# A server with a notice has no room.
_STAYS = (LeaseState.REQUESTED, LeaseState.STARTING, LeaseState.RUNNING)


class Sharing:
    """The free parts of servers, in one decision.

    A job is put on the server that it fits best. Where that is on its way, the job waits for it: a training cannot
    begin there before it has booted, and elsewhere it would take room that another fits better.

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
                self._reserve(other)
        self._seen = max(self._seen, job.job_id + 1)
        return self._reserve(job)

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

    def _reserve(self, job: JobView) -> LeaseView | None:
        with_room = [number for number, free in self._rooms.items() if free >= job.job.share - _ROUNDING]
        leases = [lease for lease in map(self._view.lease, with_room) if lease.state in _STAYS]
        fits = [lease for lease in leases if self._view.steps_per_s(job.job, lease.market) > 0.0]
        if not fits:
            return None
        # Of servers with as much room, one that runs.
        best = min(fits, key=lambda lease: (self._rooms[lease.lease_id], not lease.is_booted, lease.lease_id))
        self._rooms[best.lease_id] -= job.job.share
        return best


def shares(job: JobView) -> bool:
    """Return whether a job leaves room for others on its server."""
    return is_alone(job) and job.job.share < 1.0 - _ROUNDING


def has_others(view: View, job: JobView, lease_id: int) -> bool:
    """Return whether a server has unfinished jobs besides this one."""
    return any(
        lease.lease_id == lease_id
        for other in view.jobs
        if other.job_id != job.job_id and not other.is_finished
        for lease in view.leases_of(other.job_id)
    )
