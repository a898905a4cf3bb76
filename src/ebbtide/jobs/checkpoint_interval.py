"""Interval between checkpoints where a revocation notice is too short for one, or there is no notice."""

from __future__ import annotations

import math

from ebbtide.errors import InputError
from ebbtide.jobs.job import Job
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market, Place

# An interval is at least so many times as long as a save.
LEAST_SAVES = 1.5

# Saving begins some seconds after the notice, and must be complete some seconds before the revocation.
_MARGIN_S = 10.0


def best_interval_s(save_s: float, mean_time_to_revocation_s: float) -> float:
    """The interval between saves that loses the least time (Young 1974; ExoSphere 4.2): `sqrt(2 x save x MTTR)`.

    Args:
        save_s: Time that a save takes, seconds.
        mean_time_to_revocation_s: Mean time to revocation (MTTR), seconds.

    Returns:
        Seconds between two saves.

    Raises:
        InputError: A duration is not positive.
    """
    if not save_s > 0 or not mean_time_to_revocation_s > 0:
        raise InputError(
            f"saving takes {save_s:g} s, machines live {mean_time_to_revocation_s:g} s; both must be positive"
        )
    return math.sqrt(2.0 * save_s * mean_time_to_revocation_s)


def interval_s_of(save_s: float, mean_time_to_revocation_s: float) -> float:
    """The best interval between saves (`best_interval_s`), or the shortest that leaves time to train, seconds.

    Raises:
        InputError: A duration is not positive.
    """
    return max(best_interval_s(save_s, mean_time_to_revocation_s), LEAST_SAVES * save_s)


def fits_notice(job: Job, notice_s: float, vcpus: int, place: Place | None = None) -> bool:
    """Return whether a machine with this many vCPUs in a place can save between notice and revocation."""
    return job.checkpoint is not None and job.save_s(vcpus, place) + _MARGIN_S <= notice_s


def saved_periodically(job: Job, vcpus: int, mean_time_to_revocation_s: float, place: Place | None = None) -> Job:
    """The job with checkpoints at the best interval while it trains on machines of a place.

    Raises:
        InputError: The job cannot be checkpointed.
    """
    if job.checkpoint is None:
        raise InputError(f"job {job.name} cannot be checkpointed")
    # A machine that is never revoked saves about once a day.
    lives_s = min(mean_time_to_revocation_s, 86_400.0**2)
    save_s = job.save_s(vcpus, place)
    checkpoint = job.checkpoint.model_copy(update={"interval_s": interval_s_of(save_s, lives_s)})
    return job.model_copy(update={"checkpoint": checkpoint})


def saves_while_training(job: Job) -> bool:
    """Return whether a job is saved periodically, and not only when a machine is released or revoked."""
    return job.checkpoint is not None and job.checkpoint.interval_s is not None


def steps_per_s_with_saves(job: Job, market: Market, catalogue: Catalogue) -> float:
    """Steps a second of a job on one machine of a market, saves in between counted; 0 where it cannot run."""
    rate = job.steps_per_s(market, catalogue)
    if rate <= 0.0 or not saves_while_training(job):
        return rate
    return rate / seconds_per_work_second(job, catalogue.machine_of(market).vcpus, market.place)


def seconds_per_work_second(job: Job, vcpus: int, place: Place | None = None) -> float:
    """Seconds that a second of work takes with periodic saves, on a machine with this many vCPUs in a place.

    1 where the job is saved only when a machine is released or revoked.
    """
    interval_s = job.checkpoint.interval_s if job.checkpoint else None
    if interval_s is None:
        return 1.0
    # A save begins an interval after the last one began.
    trains_s = interval_s - job.save_s(vcpus, place)
    return interval_s / trains_s if trains_s > 0 else math.inf
