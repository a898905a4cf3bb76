"""How far a job has come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ebbtide.jobs.job import Job
from ebbtide.jobs.transfers import Cargo, Transfer
from ebbtide.market.leases import Lease
from ebbtide.market.markets import Place


@dataclass(slots=True, eq=False)
class JobProgress:
    """One job of a run. The engine and the provider write it; policies read it.

    Attributes:
        job_id: Its place among the run's jobs, from 0.
        job: What is to be done.
        steps_saved: Steps in the newest complete checkpoint.
        steps_done: Those and what has been run since; lost again if a machine goes unsaved.
        steps_run: All that were ever run; those lost were run more than once.
        steps_lost: Run, but lost before they were saved: run again later.
        checkpoints: Complete ones so far.
        restores: Times that training was started or continued on new machines.
        moving_s: Spent on saving and restoring, as begun.
        training_s: Spent on training, all machines' groups together.
        steps_on: Steps run by lease id; those of a gang in equal parts.
        leases: The machines it was assigned, in order of assignment.
        saved_at: Where its newest checkpoint lies: beside the machine that saved it.
        transfers: What of it has moved from place to place.
        stopped: Ended by the policy before its last step.
        finished_s: When its last checkpoint was complete.
    """

    job_id: int
    job: Job
    steps_saved: float = 0.0
    steps_done: float = 0.0
    steps_run: float = 0.0
    steps_lost: float = 0.0
    checkpoints: int = 0
    restores: int = 0
    moving_s: float = 0.0
    training_s: float = 0.0
    steps_on: dict[int, float] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    saved_at: Place | None = None
    transfers: list[Transfer] = field(default_factory=list)
    stopped: bool = False
    finished_s: float = math.nan

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do: done or stopped."""
        return not math.isnan(self.finished_s)

    @property
    def steps_left(self) -> float:
        return self.job.steps - self.steps_done

    def begin_on(self, leases: Sequence[Lease], now_s: float) -> float:
        """Note that the job begins or goes on, and what has to move to machines that it was not on before.

        Returns:
            Seconds beyond the restore itself: waiting for the dataset.
        """
        self.restores += 1
        waiting_s = 0.0
        for lease in leases:
            place = lease.market.place
            checkpoint, dataset = self.job.checkpoint, self.job.dataset
            if checkpoint is not None and self.saved_at not in (None, place):
                self._move(Cargo.CHECKPOINT, checkpoint.size_bytes, self.saved_at, lease, now_s)
            if dataset is not None and not self.has_dataset(place.cloud):
                self._move(Cargo.DATASET, dataset.size_bytes, dataset.home, lease, now_s)
                waiting_s = dataset.copy_s
        return waiting_s

    def has_dataset(self, cloud: str) -> bool:
        """Whether nothing that it trains on would have to be copied to a cloud."""
        dataset = self.job.dataset
        return (
            dataset is None
            or cloud == dataset.cloud
            or any(
                transfer.cargo is Cargo.DATASET and transfer.destination.cloud == cloud
                for transfer in self.transfers
            )
        )

    def _move(self, cargo: Cargo, size_bytes: int, source: Place | None, lease: Lease, now_s: float) -> None:
        place = lease.market.place
        # Machines of one gang in one place fetch it once.
        known = any(
            (transfer.time_s, transfer.cargo, transfer.destination) == (now_s, cargo, place)
            for transfer in self.transfers
        )
        if source is not None and not known:
            self.transfers.append(Transfer(now_s, lease.lease_id, cargo, size_bytes, source, place))
