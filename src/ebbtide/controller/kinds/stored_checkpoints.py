"""Checkpoints of trainings in storage, as a controller asks for them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.controller.kinds.state import TrialState
from ebbtide.errors import DamagedCheckpointError
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.checkpoints.whole import Whole, best_whole, newest_attempt, newest_whole
from ebbtide.storage.objects import ObjectStore


class StoredCheckpoints(Protocol):
    """The checkpoints of trainings. All methods raise `OSError` if storage does not answer."""

    def has(self, trial_id: str, number: int) -> bool:
        """Return whether the checkpoint of a number is complete and not set aside.

        Args:
            trial_id: Id under which a machine saves.
            number: Number of the checkpoint.
        """
        ...

    def size_bytes(self, trial_id: str, number: int) -> tuple[int, int]:
        """The size of a checkpoint, and the part of it that was uploaded, in bytes; 0: not known."""
        ...

    def newest_whole(self, trial: TrialState, *, skips_damaged: bool) -> Whole | None:
        """The newest checkpoint that all machines of a training have stored; None: there is none.

        Args:
            trial: The training.
            skips_damaged: Whether an older one is taken where storage lacks the newest, or gives it damaged.

        Raises:
            LostCheckpointError: Storage lacks the newest, or gives it damaged.
        """
        ...

    def best_whole(self, trial: TrialState, direction: str, *, skips_damaged: bool) -> Whole | None:
        """The one with the best value of the metric; None: none has a known value.

        Args:
            trial: The training.
            direction: Whether a lower or a higher value is better, `minimize` or `maximize`.
            skips_damaged: Whether those that cannot be read are passed over.

        Raises:
            LostCheckpointError: One that may be the best cannot be read.
        """
        ...

    def newest_attempt(self, trial: TrialState) -> int:
        """Number of the last assignment of which there is a checkpoint; 0: there is none."""
        ...


@dataclass(frozen=True)
class ObjectCheckpoints:
    """Checkpoints in object storage: implements `StoredCheckpoints`.

    Attributes:
        objects: The storage.
        runtime: Reads those of several machines at once.
    """

    objects: ObjectStore
    runtime: Runtime = RUNTIME

    def has(self, trial_id: str, number: int) -> bool:
        return CheckpointStore(self.objects, trial_id, self.runtime).has(number)

    def size_bytes(self, trial_id: str, number: int) -> tuple[int, int]:
        # Sizes are for accounts of transfers, which are estimates: without them the run goes on.
        with suppress(DamagedCheckpointError, OSError):
            found = CheckpointStore(self.objects, trial_id, self.runtime).manifest(number)
            return found.size_bytes, found.size_bytes if found.uploaded_bytes is None else found.uploaded_bytes
        return 0, 0

    def newest_whole(self, trial: TrialState, *, skips_damaged: bool) -> Whole | None:
        expected = {} if skips_damaged else trial.stored_parts
        return newest_whole(
            self.objects,
            _ids_of(trial),
            expected=expected,
            savers=() if expected else trial.savers,
            aside=trial.aside,
            skips_damaged=skips_damaged,
            runtime=self.runtime,
        )

    def best_whole(self, trial: TrialState, direction: str, *, skips_damaged: bool) -> Whole | None:
        return best_whole(self.objects, _ids_of(trial), direction, self.runtime, skips_damaged=skips_damaged)

    def newest_attempt(self, trial: TrialState) -> int:
        return newest_attempt(self.objects, _ids_of(trial), self.runtime)


def _ids_of(trial: TrialState) -> list[str]:
    """Ids under which the machines of a training save, by rank."""
    return [trial.id_of(rank) for rank in range(trial.progress.job.most_machines)]
