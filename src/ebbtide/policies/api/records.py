"""Jobs and leases as a policy sees them: up to date at every look, and not to be written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from ebbtide.jobs.job import Job
from ebbtide.jobs.progress import JobProgress
from ebbtide.jobs.transfers import Transfer
from ebbtide.market.leases import Lease
from ebbtide.market.leases import LeaseState as LeaseState
from ebbtide.market.markets import Market, Place


class ReadOnly:
    """Base of what a policy is shown: no attribute can be set, and none leads to what it reads (see `hidden`)."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name} cannot be set: what a policy sees is read-only; it answers with actions")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name} cannot be deleted: what a policy sees is read-only; it answers with actions")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} is good for one run; keep its numbers instead")


def hidden(cls: type, name: str) -> tuple[Callable[[Any], Any], Callable[[Any, Any], None]]:
    """Take a slot's name away from a class: reading and writing it is left to who has these two functions."""
    slot = cls.__dict__[name]
    delattr(cls, name)
    return slot.__get__, slot.__set__


class LeaseView(ReadOnly):
    """A rented machine, as a policy sees it. Two views are equal if they are of the same lease.

    Attributes:
        lease_id: Number of the lease, counted from 0 within a run.
        market: The market that it is rented in.
        max_price_usd_per_hour: The most that is paid, USD per hour; infinity: whatever the market asks.
        on_demand: Whether it is rented at the list price and never revoked.
        requested_s: When it was requested, seconds since 1970.
        state: Where the lease is in its life.
        started_s: When charging began, seconds since 1970; NaN before.
        running_s: When the machine had booted, seconds since 1970; NaN before.
        revoke_at_s: After a revocation notice: when it will be taken, seconds since 1970; else infinity.
        ended_s: When it was released or revoked, seconds since 1970; NaN before.
        is_open: Whether the machine is rented or on its way.
        is_charged: Whether charging has begun.
        is_booted: Whether the machine is up and rented, with a notice or without.
    """

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease) -> None:
        _set_lease(self, lease)

    def __repr__(self) -> str:
        return f"<lease {self.lease_id}: {self.market}, {self.state}>"

    @property
    def lease_id(self) -> int:
        return _lease(self).lease_id

    @property
    def market(self) -> Market:
        return _lease(self).market

    @property
    def max_price_usd_per_hour(self) -> float:
        return _lease(self).max_price_usd_per_hour

    @property
    def on_demand(self) -> bool:
        return _lease(self).on_demand

    @property
    def requested_s(self) -> float:
        return _lease(self).requested_s

    @property
    def state(self) -> LeaseState:
        return _lease(self).state

    @property
    def started_s(self) -> float:
        return _lease(self).started_s

    @property
    def running_s(self) -> float:
        return _lease(self).running_s

    @property
    def revoke_at_s(self) -> float:
        return _lease(self).revoke_at_s

    @property
    def ended_s(self) -> float:
        return _lease(self).ended_s

    @property
    def is_open(self) -> bool:
        return _lease(self).is_open

    @property
    def is_charged(self) -> bool:
        return _lease(self).is_charged

    @property
    def is_booted(self) -> bool:
        return _lease(self).is_booted


_lease: Callable[[LeaseView], Lease]
_lease, _set_lease = hidden(LeaseView, "_lease")


class JobView(ReadOnly):
    """Job of a run and its progress, as a policy sees it.

    Attributes:
        job_id: Index of the job among the run's jobs, from 0.
        job: The job as its user described it.
        steps_saved: Steps in the newest complete checkpoint.
        steps_done: Those and the steps run since, which are lost if a machine goes unsaved.
        steps_run: All steps that were ever run; those lost were run more than once.
        steps_lost: Steps that were run and lost before they were saved.
        checkpoints: Number of complete checkpoints so far.
        restores: How often training was started or resumed on new machines.
        moving_s: Seconds spent on saving and restoring.
        training_s: Seconds spent on training, summed over the groups of machines.
        steps_on: Steps run by lease id; those of a gang in equal parts.
        leases: The machines that are assigned to it, in order of assignment.
        saved_at: Place of its newest checkpoint; None before the first.
        checkpoint_bytes: Size of its newest checkpoint as far as known, else of any, in bytes.
        transfers: Checkpoints and datasets that moved between regions.
        stopped: Whether a policy ended it before its last step.
        finished_s: When its last checkpoint was complete, seconds since 1970; NaN before.
        is_finished: Whether nothing is left to do: done or stopped.
        steps_left: Steps that are still to be run.
    """

    __slots__ = ("_known", "_progress")

    def __init__(self, progress: JobProgress, job: Job, leases: Callable[[Lease], LeaseView]) -> None:
        _set_progress(self, progress)
        _set_known(self, (job, leases))

    def __repr__(self) -> str:
        return f"<job {self.job_id}: {self.job.name}, {self.steps_done:g} of {self.job.steps:g} steps>"

    def has_dataset(self, cloud: str) -> bool:
        """Return whether a cloud needs no copy of the job's dataset: there is none, or the cloud has it."""
        return _progress(self).has_dataset(cloud)

    @property
    def job_id(self) -> int:
        return _progress(self).job_id

    @property
    def job(self) -> Job:
        job: Job = _known(self)[0]
        return job

    @property
    def steps_saved(self) -> float:
        return _progress(self).steps_saved

    @property
    def steps_done(self) -> float:
        return _progress(self).steps_done

    @property
    def steps_run(self) -> float:
        return _progress(self).steps_run

    @property
    def steps_lost(self) -> float:
        return _progress(self).steps_lost

    @property
    def checkpoints(self) -> int:
        return _progress(self).checkpoints

    @property
    def restores(self) -> int:
        return _progress(self).restores

    @property
    def moving_s(self) -> float:
        return _progress(self).moving_s

    @property
    def training_s(self) -> float:
        return _progress(self).training_s

    @property
    def steps_on(self) -> Mapping[int, float]:
        return MappingProxyType(dict(_progress(self).steps_on))

    @property
    def leases(self) -> Sequence[LeaseView]:
        return tuple(map(_known(self)[1], _progress(self).leases))

    @property
    def saved_at(self) -> Place | None:
        return _progress(self).saved_at

    @property
    def checkpoint_bytes(self) -> int:
        return _progress(self).checkpoint_bytes

    @property
    def transfers(self) -> Sequence[Transfer]:
        return tuple(_progress(self).transfers)

    @property
    def stopped(self) -> bool:
        return _progress(self).stopped

    @property
    def finished_s(self) -> float:
        return _progress(self).finished_s

    @property
    def is_finished(self) -> bool:
        return not math.isnan(_progress(self).finished_s)

    @property
    def steps_left(self) -> float:
        return _progress(self).steps_left


_progress: Callable[[JobView], JobProgress]
_progress, _set_progress = hidden(JobView, "_progress")
_known, _set_known = hidden(JobView, "_known")
