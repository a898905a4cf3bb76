"""RSVD-1: the products of a randomised singular value decomposition, G (A A')^k A (Cümülön-D, 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated

import numpy as np
from pydantic import Field

from ebbtide.jobs.parsing import Frozen
from ebbtide.jobs.tiled.program import TiledJob, TileName, TileTask
from ebbtide.market.price_series import Floats

# Larger ones would be more tiles than any run makes, or tiles that no memory holds.
Count = Annotated[int, Field(ge=1, le=1000)]
Side = Annotated[int, Field(ge=1, le=20_000)]
Seed = Annotated[int, Field(ge=0)]


class Rsvd(Frozen):
    """G (A A')^k A from left to right: 2k + 1 products, each a job.

    Attributes:
        rows: Of tiles of A.
        columns: Of tiles of A.
        sketch_rows: Of tiles of G.
        tile: Side of a tile.
        power: Number of power iterations, the paper's k.
        seed: Of the matrices' elements.
    """

    rows: Count
    columns: Count
    sketch_rows: Count = 1
    tile: Side = 128
    power: Annotated[int, Field(ge=0, le=1000)] = 1
    seed: Seed = 0

    @property
    def name(self) -> str:
        return "rsvd-1"

    @property
    def result(self) -> str:
        """The matrix that comes out, of as many tiles as G has rows and A columns."""
        return f"P{2 * self.power + 1}"

    @property
    def results(self) -> tuple[str]:
        """Names of the result matrices: `result` alone."""
        return (self.result,)

    @property
    def jobs(self) -> list[TiledJob]:
        made = []
        for number in range(1, 2 * self.power + 2):
            before = "G" if number == 1 else f"P{number - 1}"
            by_a = number % 2 == 1
            inner, outer = (self.rows, self.columns) if by_a else (self.columns, self.rows)
            tasks = []
            for row in range(self.sketch_rows):
                for column in range(outer):
                    left = tuple(TileName(before, row, k) for k in range(inner))
                    right = tuple(TileName("A", *((k, column) if by_a else (column, k))) for k in range(inner))
                    operation = "product" if by_a else "right transposed"
                    tasks.append(TileTask(operation, (left, right), TileName(f"P{number}", row, column)))
            made.append(TiledJob(f"product {number}", tuple(tasks)))
        return made

    def inputs(self) -> Iterator[tuple[TileName, Callable[[], Floats]]]:
        for row in range(self.rows):
            for column in range(self.columns):
                yield TileName("A", row, column), partial(self._normal, 0, row, column)
        for row in range(self.sketch_rows):
            for column in range(self.rows):
                yield TileName("G", row, column), partial(self._normal, 1, row, column)

    def _normal(self, matrix: int, row: int, column: int) -> Floats:
        draws = np.random.default_rng([self.seed, matrix, row, column])
        tile: Floats = draws.standard_normal((self.tile, self.tile)) / np.sqrt(self.tile * self.rows)
        return tile
