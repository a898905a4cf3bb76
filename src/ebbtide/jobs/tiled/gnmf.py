"""GNMF: a word-document matrix factored by multiplicative updates, V = W H (Lee and Seung; Cümülön-D, 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from ebbtide.jobs.parsing import Frozen
from ebbtide.jobs.tiled.program import TiledJob, TileName, TileTask
from ebbtide.jobs.tiled.rsvd import Count, Seed, Side
from ebbtide.market.price_series import Floats


class Gnmf(Frozen):
    """So many iterations of H <- H o W'V / W'WH and W <- W o VH' / WHH': four jobs each.

    Attributes:
        rows: Of tiles of V: documents.
        columns: Of tiles of V: words.
        tile: Side of a tile.
        topics: Of the factorisation: columns of W, rows of H.
        iterations: Number of updates of W and H.
        density: Share of V's elements that are not zero.
        seed: Of the matrices' elements.
    """

    rows: Count
    columns: Count
    tile: Side = 128
    topics: Count = 10
    iterations: Count = 1
    density: Annotated[float, Field(gt=0, le=1)] = 0.05
    seed: Seed = 0

    @property
    def name(self) -> str:
        return "gnmf"

    @property
    def results(self) -> tuple[str, str]:
        """The factors W and H after the last iteration."""
        return f"W{self.iterations}", f"H{self.iterations}"

    @property
    def jobs(self) -> list[TiledJob]:
        return [job for number in range(1, self.iterations + 1) for job in self._iteration(number)]

    def _iteration(self, n: int) -> Iterator[TiledJob]:
        old_w, old_h = _row(f"W{n - 1}", self.rows), _column(f"H{n - 1}", self.columns)
        new_w, new_h = _row(f"W{n}", self.rows), _column(f"H{n}", self.columns)
        w_v, v_h = _column(f"WV{n}", self.columns), _row(f"VH{n}", self.rows)
        gram_w, gram_h = TileName(f"WW{n}", 0, 0), TileName(f"HH{n}", 0, 0)
        v = [[TileName("V", row, column) for column in range(self.columns)] for row in range(self.rows)]
        products = [
            TileTask("left transposed", (old_w, tuple(row[j] for row in v)), w_v[j]) for j in range(self.columns)
        ]
        yield TiledJob(f"products for H {n}", (*products, TileTask("left transposed", (old_w, old_w), gram_w)))
        updates = [
            TileTask("updated columns", ((old_h[j],), (w_v[j],), (gram_w,)), new_h[j]) for j in range(self.columns)
        ]
        yield TiledJob(f"update of H {n}", tuple(updates))
        products = [TileTask("right transposed", (tuple(v[i]), new_h), v_h[i]) for i in range(self.rows)]
        yield TiledJob(f"products for W {n}", (*products, TileTask("right transposed", (new_h, new_h), gram_h)))
        updates = [
            TileTask("updated rows", ((old_w[i],), (v_h[i],), (gram_h,)), new_w[i]) for i in range(self.rows)
        ]
        yield TiledJob(f"update of W {n}", tuple(updates))

    def inputs(self) -> Iterator[tuple[TileName, Callable[[], Any]]]:
        for row in range(self.rows):
            yield TileName("W0", row, 0), partial(self._uniform, 0, row, (self.tile, self.topics))
            for column in range(self.columns):
                yield TileName("V", row, column), partial(self._counts, row, column)
        for column in range(self.columns):
            yield TileName("H0", 0, column), partial(self._uniform, 1, column, (self.topics, self.tile))

    def _uniform(self, matrix: int, place: int, shape: tuple[int, int]) -> Floats:
        return np.random.default_rng([self.seed, matrix, place]).uniform(0.1, 1.0, shape)

    def _counts(self, row: int, column: int) -> Any:
        """Tile of V, drawn at random: counts of words in documents."""
        from scipy.sparse import csr_array

        draws = np.random.default_rng([self.seed, 2, row, column])
        sizes = (self.tile, self.tile)
        there = draws.uniform(size=sizes) < self.density
        return csr_array(np.where(there, draws.poisson(2.0, sizes) + 1.0, 0.0))


def _row(matrix: str, count: int) -> tuple[TileName, ...]:
    return tuple(TileName(matrix, place, 0) for place in range(count))


def _column(matrix: str, count: int) -> tuple[TileName, ...]:
    return tuple(TileName(matrix, 0, place) for place in range(count))
