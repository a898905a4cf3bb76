"""A program of one's own: the powers of a matrix by tiles, each product a job, and a function of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ebbtide.jobs.tiled.program import TiledJob, TileName, TileTask


def scaled_product(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of the products of tiles, halved, so that powers do not grow without limit."""
    return 0.5 * sum(a @ b for a, b in zip(left, right, strict=True))


@dataclass(frozen=True)
class Powers:
    """A^n / 2^(n-1), for a matrix of `size` by `size` tiles."""

    size: int
    tile: int = 64
    exponent: int = 3
    name: str = "powers"

    @property
    def results(self) -> list[str]:
        return [f"A{self.exponent}"]

    @property
    def jobs(self) -> list[TiledJob]:
        places = range(self.size)
        return [
            TiledJob(
                f"power {n}",
                tuple(
                    TileTask(
                        "powers:scaled_product",
                        (
                            tuple(TileName(f"A{n - 1}", row, k) for k in places),
                            tuple(TileName("A1", k, column) for k in places),
                        ),
                        TileName(f"A{n}", row, column),
                    )
                    for row in places
                    for column in places
                ),
            )
            for n in range(2, self.exponent + 1)
        ]

    def inputs(self) -> Iterator[tuple[TileName, Callable[[], np.ndarray]]]:
        for row in range(self.size):
            for column in range(self.size):
                yield TileName("A1", row, column), partial(self._part, row, column)

    def _part(self, row: int, column: int) -> np.ndarray:
        draws = np.random.default_rng([row, column]).standard_normal((self.tile, self.tile))
        return draws / np.sqrt(self.tile * self.size)
