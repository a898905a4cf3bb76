"""Programs of tiled tasks: jobs in order, each of tasks that do not talk to each other (Cümülön-D, 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ebbtide.jobs.job import Phase, Phases, SpeedupTable

# Names of the operations that Ebbtide has; `live.tiled.tasks` has what they do.
OPERATIONS = ("product", "left transposed", "right transposed", "updated columns", "updated rows")


@dataclass(frozen=True, order=True)
class TileName:
    """Name of a tile: its matrix and its place there.

    Attributes:
        matrix: Name of the tile's matrix.
        row: Row of tiles, counted from 0.
        column: Column of tiles, counted from 0.
    """

    matrix: str
    row: int
    column: int

    @property
    def key(self) -> str:
        return f"{self.matrix}/{self.row}-{self.column}.tile"


@dataclass(frozen=True)
class TileTask:
    """Task that computes one tile.

    Attributes:
        operation: Name of the operation: one of `OPERATIONS`, or a user's function, `module:function`, which is
            called with the list of tiles of each operand.
        operands: The tiles of each operand, in order.
        output: The tile that the task writes; no other task writes it.
    """

    operation: str
    operands: tuple[tuple[TileName, ...], ...]
    output: TileName


@dataclass(frozen=True)
class TiledJob:
    """Tasks that can be done in any order, once the jobs before are done."""

    name: str
    tasks: tuple[TileTask, ...]


class TiledProgram(Protocol):
    """A program on tiled matrices. A user's own is a class that is called with its parameters."""

    @property
    def name(self) -> str:
        """For tables."""
        ...

    @property
    def jobs(self) -> Sequence[TiledJob]:
        """In order."""
        ...

    @property
    def results(self) -> Sequence[str]:
        """Names of the matrices that come out."""
        ...

    def inputs(self) -> Iterable[tuple[TileName, Callable[[], Any]]]:
        """The tiles that it begins with, and how each is made: always the same.

        A tile is a numpy array, or a sparse array of SciPy by rows (`csr_array`).
        """
        ...


def speedup_of(program: TiledProgram, most: int, task_s: Mapping[str, float] | None = None) -> Phases:
    """Speedup of several machines, job by job: T equal tasks take n machines the time of ceil(T / n).

    Args:
        program: Program of jobs of tasks.
        most: Largest number of machines at once.
        task_s: Seconds of a task, by name of its job; None: the tasks of all jobs take equally long.
    """
    phases = []
    for job in program.jobs:
        count = len(job.tasks)
        table = {n: count / math.ceil(count / n) for n in range(1, most + 1)}
        share = count * (1.0 if task_s is None else task_s[job.name])
        phases.append(Phase(share=share, speedup=SpeedupTable(table=table)))
    return Phases(phases=tuple(phases))
