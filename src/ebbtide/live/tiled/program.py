"""Programs of tiled tasks: jobs in order, each of tasks that do not talk to each other (Cümülön-D, 2)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Protocol

import numpy as np

from ebbtide.jobs.job import SpeedupTable
from ebbtide.jobs.workflow import Workflow, WorkflowJob
from ebbtide.live.tiled.tiles import Tile, TileName, TileStore

# Below this a factor's update divides by it instead, as is usual for multiplicative updates.
_LEAST_DIVISOR = 1e-12


@dataclass(frozen=True)
class TileTask:
    """What makes one tile.

    Attributes:
        operation: Name of what is computed, one of `OPERATIONS`.
        operands: The tiles of each operand, in order.
        output: What it writes; no other task does.
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
    """A program on tiled matrices."""

    @property
    def name(self) -> str:
        """For tables."""
        ...

    @property
    def jobs(self) -> Sequence[TiledJob]:
        """In order."""
        ...

    def inputs(self) -> Iterable[tuple[TileName, Callable[[], Tile]]]:
        """The tiles that it begins with, and how each is made: always the same."""
        ...


def write_inputs(program: TiledProgram, tiles: TileStore) -> int:
    """Write what a program begins with, unless it is there; how many tiles were written."""
    return sum(tiles.write(name, make()) for name, make in program.inputs() if not tiles.has(name))


def workflow_of(program: TiledProgram, task_h: float, most: int, *, start_work_h: float = 0.0) -> Workflow:
    """A program as a cookbook sees it: with n machines, a job of T equal tasks takes ceil(T / n) tasks' time.

    Args:
        program: What is to be done.
        task_h: How long a machine takes for a task.
        most: Largest number of machines at once.
        start_work_h: Spent on each machine that is added.
    """
    jobs = []
    for job in program.jobs:
        count = len(job.tasks)
        table = {n: count / math.ceil(count / n) for n in range(1, most + 1)}
        jobs.append(WorkflowJob(name=job.name, work_h=count * task_h, speedup=SpeedupTable(table=table)))
    # A machine that goes loses the task that it is at: half of one in the mean.
    return Workflow(name=program.name, jobs=tuple(jobs), start_work_h=start_work_h, stop_work_h=task_h / 2)


def run_task(task: TileTask, tiles: TileStore, *, least_s: float = 0.0) -> bool:
    """Make a tile, unless it is there; whether it was made.

    Args:
        task: The task to carry out.
        tiles: Where its operands are, and its output is to be.
        least_s: Take no less time than this: a machine of a described speed.

    Raises:
        DamagedTileError: An operand is damaged.
    """
    if tiles.has(task.output):
        return False
    began_s = time.monotonic()
    operands = [[tiles.read(name) for name in names] for names in task.operands]
    tile = OPERATIONS[task.operation](*operands)
    time.sleep(max(least_s - (time.monotonic() - began_s), 0.0))
    return tiles.write(task.output, tile)


def run_here(program: TiledProgram, tiles: TileStore) -> None:
    """Do what is left of a program, in this process."""
    for job in program.jobs:
        for task in job.tasks:
            run_task(task, tiles)


def assembled(tiles: TileStore, matrix: str, rows: int, columns: int) -> np.ndarray:
    """A matrix of so many rows and columns of tiles, whole and dense."""

    def dense(row: int, column: int) -> Any:
        tile = tiles.read(TileName(matrix, row, column))
        return tile if isinstance(tile, np.ndarray) else tile.toarray()

    return np.block([[dense(row, column) for column in range(columns)] for row in range(rows)])


def _product(left: Sequence[Any], right: Sequence[Any]) -> Any:
    return _dense(reduce(add, (a @ b for a, b in zip(left, right, strict=True))))


def _left_transposed(left: Sequence[Any], right: Sequence[Any]) -> Any:
    return _product([tile.T for tile in left], right)


def _right_transposed(left: Sequence[Any], right: Sequence[Any]) -> Any:
    return _product(left, [tile.T for tile in right])


def _updated_columns(factor: Sequence[Any], products: Sequence[Any], gram: Sequence[Any]) -> Any:
    """H o (W'V) / (W'W H)."""
    return factor[0] * products[0] / np.maximum(gram[0] @ factor[0], _LEAST_DIVISOR)


def _updated_rows(factor: Sequence[Any], products: Sequence[Any], gram: Sequence[Any]) -> Any:
    """W o (VH') / (W HH')."""
    return factor[0] * products[0] / np.maximum(factor[0] @ gram[0], _LEAST_DIVISOR)


def _dense(tile: Any) -> np.ndarray:
    return tile if isinstance(tile, np.ndarray) else np.asarray(tile.toarray())


OPERATIONS: dict[str, Callable[..., Any]] = {
    "product": _product,
    "left transposed": _left_transposed,
    "right transposed": _right_transposed,
    "updated columns": _updated_columns,
    "updated rows": _updated_rows,
}
