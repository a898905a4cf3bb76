"""The progress of a job during a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ebbtide.jobs.job import Job
from ebbtide.jobs.transfers import Cargo, Transfer
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Place


@dataclass(slots=True, eq=False)
class JobProgress:
    """Progress of one job of a run. The engine and the provider write it; policies read it.

    Attributes:
        job_id: Index of the job in the run, from 0.
        job: The job itself: steps, speed and checkpoints.
        steps_saved: Steps in the newest complete checkpoint.
        steps_done: Steps done, saved or not; unsaved ones are lost if a machine ends without a save.
        steps_run: Steps run in all; lost steps are run and counted again.
        steps_lost: Steps run but lost before they were saved.
        checkpoints: Number of complete checkpoints so far.
        restores: Number of times that training was started or resumed on new machines.
        moving_s: Seconds spent on saving and restoring, counted when begun.
        training_s: Seconds spent on training, summed over groups of machines.
        steps_on: Steps run by lease id; those of a gang in equal parts.
        leases: Leases assigned to the job, in order of assignment.
        saved_at: Place of its newest checkpoint: that of the job's bucket, else of the machine that saved it.
        saved_bytes: Size of its newest checkpoint as it was stored, in bytes; 0: as the job declares it.
        transfers: Transfers of its checkpoints and dataset between places.
        stopped: Whether the policy ended it before its last step.
        finished_s: When its last checkpoint was complete, seconds since 1970; NaN before.
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
    saved_bytes: int = 0
    transfers: list[Transfer] = field(default_factory=list)
    stopped: bool = False
    finished_s: float = math.nan

    @property
    def is_finished(self) -> bool:
        """True if the job is done or stopped."""
        return not math.isnan(self.finished_s)

    @property
    def steps_left(self) -> float:
        return self.job.steps - self.steps_done

    @property
    def checkpoint_bytes(self) -> int:
        """Size of a checkpoint in bytes: that of the newest as it was stored, else what the job says."""
        declared = self.job.checkpoint.size_bytes if self.job.checkpoint else 0
        return self.saved_bytes or declared

    def gang(self, usable: Sequence[Lease], on: Sequence[Lease]) -> list[Lease]:
        """Choose the machines to train on as one; none if they are fewer than the job needs.

        While one of its machines is under notice, the job stays as it is until as many others are there. It never
        begins on such a machine.

        Args:
            usable: Leases of the booted machines that it is given and that have time left.
            on: Leases of the machines that it is on.
        """
        steady = [lease for lease in usable if lease.state is LeaseState.RUNNING]
        if len(steady) < len(on) and all(lease in usable for lease in on):
            return list(on)
        if len(steady) > 1:
            steady.sort(key=lambda lease: lease not in on)
        return steady[: self.job.most_machines] if len(steady) >= self.job.least_machines else []

    def saved_on(self, lease: Lease, now_s: float, size_bytes: int = 0, uploaded_bytes: int | None = None) -> None:
        """Record where a complete checkpoint lies, and its upload if that is another region.

        Args:
            lease: Lease of the machine that saved it.
            now_s: The present moment, seconds since 1970.
            size_bytes: Its size as it is stored; 0: not known, so that of the job counts.
            uploaded_bytes: Bytes uploaded for it; None: all of it.
        """
        if self.job.bucket is None:
            self.saved_at = lease.market.place
            return
        self.saved_at, self.saved_bytes = self.job.bucket.place, size_bytes
        self.upload_from(lease, now_s, self.checkpoint_bytes if uploaded_bytes is None else uploaded_bytes)

    def upload_from(self, lease: Lease, now_s: float, size_bytes: int) -> None:
        """Record an upload to the job's bucket, if it has one in another region than the machine."""
        bucket, place = self.job.bucket, lease.market.place
        if bucket is not None and bucket.place != place and size_bytes:
            self.transfers.append(
                Transfer(now_s, lease.lease_id, Cargo.CHECKPOINT, size_bytes, place, bucket.place)
            )

    def download_to(self, lease: Lease, now_s: float) -> None:
        """Record that the newest checkpoint is downloaded to a machine, if it lies in another region."""
        if self.job.checkpoint is not None and self.saved_at not in (None, lease.market.place):
            self._move(Cargo.CHECKPOINT, self.checkpoint_bytes, self.saved_at, lease, now_s)

    def begin_on(self, leases: Sequence[Lease], now_s: float, *, downloads: bool = True) -> float:
        """Record that the job starts or resumes on machines, and the transfers of data to their places.

        Args:
            leases: Leases of the machines that it runs on.
            now_s: The present moment, seconds since 1970.
            downloads: Whether they are to have the newest checkpoint; if not, it is said later if they had it.

        Returns:
            Seconds to wait for the dataset before the restore.
        """
        self.restores += 1
        waiting_s = 0.0
        for lease in leases:
            place = lease.market.place
            dataset = self.job.dataset
            if downloads:
                self.download_to(lease, now_s)
            if dataset is not None and not self.has_dataset(place.cloud):
                self._move(Cargo.DATASET, dataset.size_bytes, dataset.home, lease, now_s)
                waiting_s = dataset.copy_s
        return waiting_s

    def has_dataset(self, cloud: str) -> bool:
        """Return whether the dataset is already in a cloud, or the job has none."""
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
        # Machines of one gang in one place download the data once.
        known = any(
            (transfer.time_s, transfer.cargo, transfer.destination) == (now_s, cargo, place)
            for transfer in self.transfers
        )
        if source is not None and not known:
            self.transfers.append(Transfer(now_s, lease.lease_id, cargo, size_bytes, source, place))
