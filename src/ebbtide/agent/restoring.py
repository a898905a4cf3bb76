"""Restoring a training on this machine, in a thread of its own: its newest checkpoint, code, and inputs."""

from __future__ import annotations

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
from ebbtide.errors import DamagedCheckpointError, LostCheckpointError, StorageError
from ebbtide.storage.checkpoints.manifest import Manifest
from ebbtide.storage.checkpoints.store import CheckpointStore, CheckpointWriter, stored_tree
from ebbtide.storage.checkpoints.tree import Tree

_LOGGER = logging.getLogger(__name__)

_RETRY_S = 1.0
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
    runtime, lacks_s = machine.runtime, math.inf
    store = CheckpointStore(machine.objects, assignment.trial_id, runtime, expected=assignment.expected)
    damaged = 0
    while not is_over():
        lacks = ""
        try:
            lacks = _lacks(store, assignment)
            if lacks:
                raise StorageError(lacks)
            for number in assignment.aside:
                store.set_aside(number, "training failed from it")
            if assignment.code:
                try:
                    unpack(machine.objects, assignment.code, code)
                except tarfile.TarError as error:
                    lacks = f"the code in storage is not used: {error}"
                    raise
            try:
                fetch_inputs(machine.objects, assignment.inputs, inputs_beside(code))
            except DamagedInputError as error:
                lacks, damaged = str(error), damaged + 1
                raise
            except LostCheckpointError as error:
                lacks = f"{error}: is it mounted?"
                raise
            writer = store.begin_writing(config.machine, attempt=assignment.attempt, machines=assignment.machines)
            if assignment.resume is None:
                # Keep the previous checkpoint, too, until training has made a step from the newest.
                writer.kept = frozenset(each.number for each in islice(store.manifests(), 2))
                bad = [found for number in sorted(store.aside()) if (found := store.read(number))]
                best = store.best(assignment.direction) if assignment.direction else None
                trees = tuple(map(stored_tree, bad[-_MOST_BAD:]))
                manifest = store.restore(folder)
            else:
                trees, best = (), None
                manifest = restore_parts(machine, assignment.resume, folder)
            if manifest is not None:
                writer.knows(manifest)
            return Restoration(writer, manifest, bad=trees, best=best)
        except DamagedCheckpointError as error:
            # The controller decides which whole checkpoint to resume from instead.
            return Restoration(None, problem=str(error))
        except Exception as error:
            _LOGGER.warning("trial %s is not restored yet: %s", assignment.trial_id, error)
            if not lacks:
                lacks_s = math.inf
            elif math.isinf(lacks_s):
                lacks_s = runtime.monotonic_s()
                say(f"ebbtide: {lacks}; asked again")
            elif runtime.monotonic_s() - lacks_s > min(LACKS_S, config.controller_limit_s):
                return Restoration(None, problem=lacks)
            if damaged >= MOST_DAMAGED:
                return Restoration(None, problem=lacks)
            runtime.sleep(_RETRY_S)
    return None


def _lacks(store: CheckpointStore, assignment: Assignment) -> str:
    """Return why storage cannot be the run's: the expected checkpoint is missing; empty: nothing is missing."""
    expected = assignment.expected
    if expected in assignment.aside or max(store.stored(), default=0) >= expected:
        return ""
    return f"storage has no checkpoint {expected} of trial {assignment.trial_id}, which was stored: is it mounted?"
