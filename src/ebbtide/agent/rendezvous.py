"""Commands, environment variables and checkpoint parts of a machine that trains as one with others (a gang)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ebbtide.agent import dask_cluster, spark
from ebbtide.agent.config import Assignment
from ebbtide.agent.machine import RentedMachine, checkpoints_of
from ebbtide.agent.mpi import as_one_of, is_mpi, meeting_port
from ebbtide.agent.protocol import covered
from ebbtide.errors import DamagedCheckpointError
from ebbtide.storage.checkpoints.manifest import Manifest
from ebbtide.trial import MACHINES, RANK, SECRET, STORE

# Each module has the command of head and workers, and the variable by which these find each other.
_FRAMEWORKS = {"spark": spark, "dask": dask_cluster}


def command_of(assignment: Assignment) -> tuple[str, ...]:
    """Return the command that this machine runs; for `mpirun` and in a cluster it depends on the rank."""
    if assignment.framework:
        return tuple(_FRAMEWORKS[assignment.framework].as_one_of(assignment.arguments, assignment.rank))
    if assignment.machines > 1 and is_mpi(assignment.arguments):
        return tuple(as_one_of(assignment.arguments, assignment.rank))
    return assignment.arguments


def neighbours(assignment: Assignment, key: bytes, store: str) -> dict[str, str]:
    """Environment variables by which the programs of several machines find each other; none for one machine.

    `torchrun train.py` needs no options: PET_* sets them. Programs started without torchrun get the variables that
    `torch.distributed` reads, for one process per machine.

    Args:
        assignment: The assignment.
        key: The machine's key, which covers the secret that the machines share.
        store: Storage of the run, a folder or `s3://bucket/prefix`, which programs on a cluster may use, too.
    """
    of_secret = {}
    if assignment.secret:
        known = covered(bytes.fromhex(assignment.secret), key, assignment.trial_id, assignment.attempt)
        of_secret = {SECRET: known.hex()}
    if assignment.framework:
        port_of = _FRAMEWORKS[assignment.framework].meeting_port(assignment.port)
        return {**of_secret, **port_of, MACHINES: ",".join(assignment.addresses), STORE: store}
    if assignment.machines == 1:
        return {}
    count, rank, port = str(assignment.machines), str(assignment.rank), str(assignment.port)
    first = assignment.addresses[0]
    return {
        **of_secret,
        **meeting_port(assignment.port + 1),
        MACHINES: ",".join(assignment.addresses),
        RANK: rank,
        "MASTER_ADDR": first,
        "MASTER_PORT": port,
        "WORLD_SIZE": count,
        "RANK": rank,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "PET_NNODES": count,
        "PET_NODE_RANK": rank,
        "PET_MASTER_ADDR": first,
        "PET_MASTER_PORT": port,
    }


def restore_parts(
    machine: RentedMachine, parts: Sequence[tuple[str, int]], folder: Path, *, skips_damaged: bool = True
) -> Manifest | None:
    """Put the parts of a whole checkpoint into a folder; those after the first only where files are missing.

    A part that is damaged for good is set aside, so that its checkpoint no longer counts as whole.

    Args:
        machine: The machine, with its storage.
        parts: Id of a trial and number of its checkpoint; none: training starts from the beginning.
        folder: Folder whose content is replaced.
        skips_damaged: Whether a part that is damaged, or that storage lacks, is so for good.

    Returns:
        The manifest of the first part; None: there are no parts.

    Raises:
        MissingPartError: Storage lacks a part.
        DamagedCheckpointError: A part is damaged.
        OSError: Storage does not answer.
    """
    first = None
    for trial_id, number in parts:
        store = checkpoints_of(machine, trial_id)
        try:
            manifest = store.manifest(number)
            if first is None:
                store.fetch(manifest, folder)
                first = manifest
            else:
                store.add(manifest, folder)
        except DamagedCheckpointError as error:
            if skips_damaged:
                store.set_aside(number, str(error))
            raise
    return first
