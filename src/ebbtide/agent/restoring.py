"""Restoring a training on this machine, in a thread of its own: its newest checkpoint, code, and inputs."""

from __future__ import annotations

import errno
import logging
import math
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.agent.folders import unpack
from ebbtide.agent.inputs import LACKS_S, MOST_DAMAGED, DamagedInputError, fetch_inputs, inputs_beside
from ebbtide.agent.machine import RentedMachine
from ebbtide.agent.rendezvous import restore_parts
from ebbtide.errors import DamagedCheckpointError, LostCheckpointError, MissingPartError
from ebbtide.storage.checkpoints.manifest import Manifest
from ebbtide.storage.checkpoints.store import CheckpointStore, CheckpointWriter, stored_tree
from ebbtide.storage.checkpoints.tree import Tree

_LOGGER = logging.getLogger(__name__)

_RETRY_S, _FULL_RETRY_S = 1.0, 30.0
# Errors of a disk that has no room.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Of the checkpoints that training failed from, this many are considered, the newest.
_MOST_BAD = 8


@dataclass(frozen=True)
class Restoration:
    """Result of restoring a training.

    Attributes:
        writer: Writer of its next checkpoints; None: it cannot be restored.
        manifest: Checkpoint that is now in its folder; None: it starts from the beginning.
        problem: Reason why it cannot be restored; empty: it is restored.
        bad: Checkpoints from which training has failed before its first step.
        best: Stored checkpoint with the best value of its metric; None: there is none.
    """

    writer: CheckpointWriter | None
    manifest: Manifest | None = None
    problem: str = ""
    bad: tuple[Tree, ...] = ()
    best: Manifest | None = None


def restored(
    config: AgentConfig,
    machine: RentedMachine,
    assignment: Assignment,
    folder: Path,
    code: Path,
    *,
    is_over: Callable[[], bool],
    say: Callable[[str], None],
) -> Restoration | None:
    """Restore a training, trying again until storage answers.

    Args:
        config: The configuration of the machine.
        machine: The machine.
        assignment: The assignment to restore.
        folder: Folder for its checkpoint.
        code: Folder for the user's code, if it has any.
        is_over: Whether nobody waits for it any more.
        say: Called with a line for its log.

    Returns:
        The result; None: nobody waits for it any more.
    """
    runtime, limit_s = machine.runtime, min(LACKS_S, config.controller_limit_s)
    restoring = _Restoring(config, machine, assignment, folder, code)
    since_s, told, damaged = math.inf, "", 0
    while not is_over():
        try:
            return restoring.once()
        except Exception as error:
            _LOGGER.warning("trial %s is not restored yet: %s", assignment.trial_id, error)
            lasting = _lasting(error)
            damaged += isinstance(error, DamagedInputError)
            if _is_damage(error):
                # The controller decides which whole checkpoint to resume from instead.
                return Restoration(None, problem=str(error))
            since_s = min(since_s, runtime.monotonic_s()) if lasting else math.inf
            if lasting and lasting != told:
                told = lasting
                say(f"ebbtide: {lasting}; asked again")
            if damaged >= MOST_DAMAGED or runtime.monotonic_s() - since_s > limit_s:
                if restoring.skips_missing or not isinstance(error, MissingPartError):
                    return Restoration(None, problem=lasting)
                # It is missing for good: an older checkpoint is better than none.
                restoring.skips_missing, since_s = True, math.inf
            # Each try may download many gigabytes.
            runtime.sleep(_FULL_RETRY_S if _is_full(error) else _RETRY_S)
    return None


class _Restoring:
    """The restoring of one training, which is tried until it succeeds.

    Attributes:
        skips_missing: Whether a checkpoint of which storage lacks a part counts as damaged.
    """

    def __init__(
        self, config: AgentConfig, machine: RentedMachine, assignment: Assignment, folder: Path, code: Path
    ) -> None:
        self._config, self._machine, self._assignment = config, machine, assignment
        self._folder, self._code = folder, code
        self._store = CheckpointStore(
            machine.objects, assignment.trial_id, machine.runtime, expected=assignment.expected
        )
        self._writer: CheckpointWriter | None = None
        self.skips_missing = False

    def once(self) -> Restoration:
        """Try once.

        Raises:
            DamagedCheckpointError: A checkpoint is damaged, or storage lacks a part of it.
            DamagedInputError: What a needed job has stored is damaged.
            OSError: Storage lacks what it had, or does not answer, or this machine's disk is full.
            tarfile.TarError: The code in storage is gone, or damaged.
        """
        assignment, store = self._assignment, self._store
        if assignment.expected not in assignment.aside:
            store.check_is_there()
        for number in assignment.aside:
            store.set_aside(number, "training failed from it")
        if assignment.code:
            unpack(self._machine.objects, assignment.code, self._code)
        fetch_inputs(self._machine.objects, assignment.inputs, inputs_beside(self._code))
        # A claim is left in storage by each writer, so tries that fail on this machine's side share one.
        writer = self._writer = self._writer or store.begin_writing(
            self._config.machine, attempt=assignment.attempt, machines=assignment.machines
        )
        trees: tuple[Tree, ...] = ()
        best = None
        try:
            if assignment.resume is None:
                # Keep the previous checkpoint, too, until training has made a step from the newest.
                writer.kept = frozenset(each.number for each in islice(store.manifests(), 2))
                bad = [found for number in sorted(store.aside()) if (found := store.read(number))]
                best = store.best(assignment.direction) if assignment.direction else None
                trees = tuple(map(stored_tree, bad[-_MOST_BAD:]))
                manifest = store.restore(self._folder, skips_missing=self.skips_missing)
                if manifest is None and assignment.expected not in assignment.aside:
                    store.check_is_there()
            else:
                manifest = restore_parts(
                    self._machine, assignment.resume, self._folder, skips_missing=self.skips_missing
                )
        except (LostCheckpointError, MissingPartError):
            # The writer may have seen a store that was not the run's.
            self._writer = None
            raise
        if manifest is not None:
            writer.knows(manifest)
        return Restoration(writer, manifest, bad=trees, best=best)


def _is_damage(error: Exception) -> bool:
    return isinstance(error, DamagedCheckpointError) and not isinstance(error, MissingPartError)


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in _FULL


def _lasting(error: Exception) -> str:
    """Return what is wrong in words if waiting alone is unlikely to help; empty: storage does not answer."""
    if isinstance(error, LostCheckpointError | MissingPartError | DamagedInputError):
        return str(error)
    if isinstance(error, tarfile.TarError):
        return f"the code in storage is not used: {error}"
    if _is_full(error):
        return f"the machine's disk is too small: {error}"
    return ""
