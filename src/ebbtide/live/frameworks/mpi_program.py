"""A small MPI program: the largest eigenvalue of a matrix by power iteration, rows over ranks. Run by `mpi`."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

from ebbtide._files import replacing

_SIZE = 64


def matrix() -> np.ndarray:
    """The same on every rank."""
    values = np.random.default_rng(0).uniform(size=(_SIZE, _SIZE))
    return values + values.T


def main() -> None:
    """Iterate, telling of each; rank 0 saves when the file `save` appears."""
    from mpi4py import MPI

    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--iteration-s", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    world = MPI.COMM_WORLD
    rank, ranks = world.Get_rank(), world.Get_size()
    _tell(rank=rank, pid=os.getpid())
    rows = np.array_split(matrix(), ranks)[rank]
    saved, asked = arguments.folder / "state.npy", arguments.folder / "save"
    begun, vector = 0, np.ones(_SIZE)
    if saved.exists():
        state = np.load(saved, allow_pickle=False)
        begun, vector = int(state[0]), state[1:]
    value = 0.0
    for iteration in range(begun, arguments.iterations):
        time.sleep(arguments.iteration_s)
        product = np.concatenate(world.allgather(rows @ vector))
        value = float(np.linalg.norm(product))
        vector = product / value
        wanted = world.bcast(asked.exists() if rank == 0 else None)
        if rank == 0:
            _tell(iteration=iteration + 1)
            if wanted:
                with replacing(saved) as temporary, temporary.open("wb") as file:
                    np.save(file, np.append(float(iteration + 1), vector), allow_pickle=False)
                asked.unlink(missing_ok=True)
                _tell(saved=iteration + 1)
    if rank == 0:
        _tell(result=value)


def _tell(**said: float) -> None:
    # One write a line: ranks share the launcher's standard output.
    os.write(1, (json.dumps(said) + "\n").encode())


if __name__ == "__main__":
    main()
