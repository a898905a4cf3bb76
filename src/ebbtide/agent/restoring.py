"""Restoring a training on this machine, in a thread of its own: its newest checkpoint, code, and inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.agent.folders import on_own_disk, unpack
from ebbtide.agent.inputs import fetch_inputs, inputs_beside
from ebbtide.agent.machine import RentedMachine
from ebbtide.agent.patience import LACKS_S, Patience
from ebbtide.agent.rendezvous import restore_parts
from ebbtide.errors import DamagedCheckpointError, LostCheckpointError, MissingPartError
from ebbtide.storage.checkpoints.manifest import Manifest
from ebbtide.storage.checkpoints.store import CheckpointStore, CheckpointWriter, best_of, stored_tree
from ebbtide.storage.checkpoints.tree import Tree

_LOGGER = logging.getLogger(__name__)

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
        of_machine: Whether the reason is one of this machine.
    """

    writer: CheckpointWriter | None
    manifest: Manifest | None = None
    problem: str = ""
    bad: tuple[Tree, ...] = ()
    best: Manifest | None = None
    of_machine: bool = False


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
    limit_s = min(LACKS_S, config.controller_limit_s)
    restoring = _Restoring(config, machine, assignment, folder, code)
    patience = Patience(machine.runtime, limit_s, say)
    while not is_over():
        try:
            return restoring.once()
        except Exception as error:
            _LOGGER.warning("trial %s is not restored yet: %s", assignment.trial_id, error)
            is_damaged = isinstance(error, DamagedCheckpointError)
            if is_damaged and restoring.skips_damaged and assignment.resume is not None:
                # The controller decides which whole checkpoint to resume from instead.
                return Restoration(None, problem=str(error))
            given_up = patience.ends_with(error)
            if given_up is None:
                continue
            if restoring.skips_damaged or not (is_damaged or isinstance(error, LostCheckpointError)):
                return Restoration(None, problem=given_up.problem, of_machine=given_up.of_machine)
            # The newest, or a part of it, is damaged or gone for good: an older one is better than none.
            restoring.skips_damaged, patience = True, Patience(machine.runtime, limit_s, say)
    return None


class _Restoring:
    """The restoring of one training, which is tried until it succeeds.

    Attributes:
        skips_damaged: Whether an older checkpoint is restored where the newest is damaged or incomplete.
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
        self.skips_damaged = False

    def once(self) -> Restoration:
        """Try once.

        Raises:
            DamagedCheckpointError: A checkpoint is damaged, or storage lacks a part of it.
            DamagedInputError: What a needed job has stored is damaged.
            OSError: Storage lacks what it had, or does not answer, or this machine's disk is full.
            tarfile.TarError: The code in storage is gone, or damaged.
        """
        assignment, store = self._assignment, self._store
        self._check_is_there()
        for number in assignment.aside:
            store.set_aside(number, "training failed from it")
        with on_own_disk():
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
            known = list(store.manifests())
            writer.unread = frozenset(store.unreadable(each.number for each in known))
            if assignment.resume is None:
                # Keep the previous checkpoint, too, until training has made a step from the newest.
                newest = islice(self._known.manifests(skips_damaged=self.skips_damaged), 2)
                writer.kept = frozenset(each.number for each in newest)
                bad = [found for number in sorted(store.aside()) if (found := store.read(number))]
                best = best_of(known, assignment.direction)
                trees = tuple(map(stored_tree, bad[-_MOST_BAD:]))
                with on_own_disk():
                    manifest = self._known.restore(
                        self._folder, skips_missing=self.skips_damaged, skips_damaged=self.skips_damaged
                    )
                if manifest is None:
                    self._check_is_there()
                    self._check_is_none()
            else:
                with on_own_disk():
                    manifest = restore_parts(
                        self._machine, assignment.resume, self._folder, skips_damaged=self.skips_damaged
                    )
        except (LostCheckpointError, MissingPartError):
            # The writer may have seen a store that was not the run's.
            self._writer = None
            raise
        if manifest is not None:
            writer.knows(manifest)
        return Restoration(writer, manifest, bad=trees, best=best)

    @property
    def _known(self) -> CheckpointStore:
        """The checkpoints to restore from: those that are there, if the newest has been missing for long."""
        if not self.skips_damaged or self._assignment.resume is not None:
            return self._store
        there = CheckpointStore(self._machine.objects, self._assignment.trial_id, self._machine.runtime)
        return there if any(True for _ in there.manifests()) else self._store

    def _check_is_none(self) -> None:
        """Raise `DamagedCheckpointError` if there are checkpoints, but none can be read."""
        store = self._known
        if any(map(store.is_stored, store.stored() - store.aside())):
            raise DamagedCheckpointError(f"no checkpoint of trial {store.trial_id} can be read")

    def _check_is_there(self) -> None:
        """Raise `LostCheckpointError` if storage lacks the newest checkpoint; after a while, if it lacks all."""
        if self._assignment.expected not in self._assignment.aside:
            self._known.check_is_there()
