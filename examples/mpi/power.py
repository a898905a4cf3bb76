"""The largest eigenvalue of a matrix by power iteration, with its rows spread over the ranks of MPI."""

import argparse
import hashlib
import time

import numpy as np
from mpi4py import MPI

from ebbtide.trial import Trial

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--step-s", type=float, default=0.0, help="seconds that each step takes at least")
parser.add_argument("--size", type=int, default=64)
options = parser.parse_args()

world = MPI.COMM_WORLD
values = np.random.default_rng(0).uniform(size=(options.size, options.size))
rows = np.array_split(values + values.T, world.size)[world.rank]


class Vector:
    """What the iteration depends on; every rank has all of it."""

    ends_at = None

    def __init__(self):
        self.values = np.ones(options.size)

    def save(self, folder, *, within_step):  # noqa: ARG002
        np.save(folder / "vector.npy", self.values)

    def restore(self, folder):
        self.values = np.load(folder / "vector.npy", allow_pickle=False)


vector = Vector()
# All ranks save, and leave, at the same step: they agree on the most that one of them was asked for.
trial = Trial.current(agree=lambda wish: world.allreduce(wish, op=MPI.MAX))
trial.keep(vector)
eigenvalue = 0.0
for _ in trial.steps(options.steps):
    time.sleep(options.step_s)
    product = np.concatenate(world.allgather(rows @ vector.values))
    eigenvalue = float(np.linalg.norm(product))
    vector.values = product / eigenvalue
    trial.report(eigenvalue=eigenvalue)
if world.rank == 0:
    print(
        "vector", hashlib.sha256(vector.values.tobytes()).hexdigest(), "eigenvalue", repr(eigenvalue), flush=True
    )
