"""Tasks of tiled programs, as a worker carries them out: each reads tiles, and computes and writes one."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from operator import add
from typing import Any

import numpy as np

from ebbtide.agent.tiled.tiles import DamagedTileError, Tile, TileStore
from ebbtide.errors import InputError, MissingObjectError
from ebbtide.jobs.tiled.program import OPERATIONS, TiledProgram, TileName, TileTask
from ebbtide.storage.objects import object_store

# Lower bound of the divisor in updates of factors, as is usual for multiplicative updates.
_LEAST_DIVISOR = 1e-12

# Number of tiles that a worker keeps in memory.
_CACHED_TILES = 64


def write_inputs(program: TiledProgram, tiles: TileStore) -> int:
    """Write the missing inputs of a program; returns how many tiles were written."""
    return sum(tiles.write(name, make()) for name, make in program.inputs() if not tiles.has(name))


def run_task(task: TileTask, tiles: TileStore) -> bool:
    """Make a tile, unless it exists; returns whether it was made.

    Args:
        task: The task to carry out.
        tiles: Tiles with its operands, to which its output is added.

    Raises:
        DamagedTileError: An operand is damaged, or is missing, since it was damaged and removed.
        InputError: There is no such operation.
    """
    if tiles.has(task.output):
        return False
    operands = [[_read(tiles, name) for name in names] for names in task.operands]
    return tiles.write(task.output, operation_of(task.operation)(*operands))


def _read(tiles: TileStore, name: TileName) -> Tile:
    try:
        return tiles.read(name)
    except MissingObjectError:
        raise DamagedTileError(name) from None


def run_timed(task: TileTask, store: str) -> float | None:
    """On a worker: carry out a task; returns the seconds that it took; None: its tile existed.

    Args:
        task: The task to carry out.
        store: Where its tiles are: a folder, or s3://bucket/prefix.
    """
    began_s = time.monotonic()
    was_made = run_task(task, _tiles_of(store))
    return time.monotonic() - began_s if was_made else None


@lru_cache(maxsize=4)
def _tiles_of(store: str) -> TileStore:
    return TileStore(object_store(store), cached=_CACHED_TILES)


def operation_of(name: str) -> Callable[..., Any]:
    """Return the function that computes a tile: one of `OPERATIONS`, or `module:function` of the user's.

    Raises:
        InputError: There is no operation of this name.
    """
    module, colon, function = name.partition(":")
    if not colon:
        if name not in OPERATIONS:
            raise InputError(
                f"there is no operation {name!r}; there are {', '.join(OPERATIONS)}, or module:function"
            )
        return _FUNCTIONS[name]
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InputError(f"operation {name!r} cannot be imported: {error}") from None
    return found


def run_here(program: TiledProgram, tiles: TileStore) -> None:
    """Carry out the remaining tasks of a program, in this process."""
    for job in program.jobs:
        for task in job.tasks:
            run_task(task, tiles)


def assembled(tiles: TileStore, matrix: str, rows: int, columns: int) -> np.ndarray:
    """Assemble a dense matrix from its rows and columns of tiles."""

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


_FUNCTIONS: dict[str, Callable[..., Any]] = dict(
    zip(OPERATIONS, (_product, _left_transposed, _right_transposed, _updated_columns, _updated_rows), strict=True)
)
