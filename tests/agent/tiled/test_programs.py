"""Tiled programs against numpy on whole matrices; tiles that are checked; what is begun again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from ebbtide.agent.tiled.tasks import assembled, operation_of, run_here, run_task, write_inputs
from ebbtide.agent.tiled.tiles import DamagedTileError, TileStore
from ebbtide.errors import InputError
from ebbtide.jobs.tiled.gnmf import Gnmf
from ebbtide.jobs.tiled.program import TileName
from ebbtide.jobs.tiled.rsvd import Rsvd
from ebbtide.storage.objects import FolderStore


@pytest.fixture
def tiles(tmp_path: Path) -> TileStore:
    return TileStore(FolderStore(tmp_path))


@pytest.mark.parametrize("power", [0, 1, 2])
def test_the_products_are_those_of_whole_matrices(tiles: TileStore, power: int) -> None:
    program = Rsvd(rows=3, columns=2, sketch_rows=2, tile=8, power=power)
    write_inputs(program, tiles)
    run_here(program, tiles)
    a, g = assembled(tiles, "A", 3, 2), assembled(tiles, "G", 2, 3)
    expected = g @ np.linalg.matrix_power(a @ a.T, power) @ a
    assert assembled(tiles, program.result, 2, 2) == pytest.approx(expected, rel=1e-10)


def test_the_factors_are_those_of_multiplicative_updates(tiles: TileStore) -> None:
    program = Gnmf(rows=3, columns=4, tile=16, topics=3, iterations=4, density=0.2)
    write_inputs(program, tiles)
    run_here(program, tiles)
    v, w, h = assembled(tiles, "V", 3, 4), assembled(tiles, "W0", 3, 1), assembled(tiles, "H0", 1, 4)
    errors = [np.linalg.norm(v - w @ h)]
    for n in range(1, 5):
        h = h * (w.T @ v) / (w.T @ w @ h)
        w = w * (v @ h.T) / (w @ h @ h.T)
        errors.append(np.linalg.norm(v - w @ h))
        assert assembled(tiles, f"H{n}", 1, 4) == pytest.approx(h, rel=1e-9)
        assert assembled(tiles, f"W{n}", 3, 1) == pytest.approx(w, rel=1e-9)
    # Lee and Seung: no update makes the error larger.
    assert errors == sorted(errors, reverse=True)


def test_no_two_tasks_write_one_tile_and_none_reads_what_is_made_beside_it() -> None:
    for program in (Rsvd(rows=3, columns=2, power=2), Gnmf(rows=2, columns=3, iterations=2)):
        there = {name for name, _ in program.inputs()}
        for job in program.jobs:
            outputs = {task.output for task in job.tasks}
            assert len(outputs) == len(job.tasks)
            assert not outputs & there
            assert all(set(names) <= there for task in job.tasks for names in task.operands)
            there |= outputs


def test_what_is_done_is_not_done_again(tiles: TileStore) -> None:
    program = Rsvd(rows=2, columns=2, tile=4)
    assert write_inputs(program, tiles) == 6
    assert write_inputs(program, tiles) == 0
    task = program.jobs[0].tasks[0]
    assert run_task(task, tiles)
    assert not run_task(task, tiles)


@pytest.mark.parametrize(
    "tile", [np.arange(6.0).reshape(2, 3), csr_array(np.diag([1.0, 0.0, 2.0])), np.empty((0, 2))]
)
@pytest.mark.parametrize("cached", [0, 2])
def test_a_tile_is_read_as_it_was_written(tmp_path: Path, tile: object, cached: int) -> None:
    store = TileStore(FolderStore(tmp_path), cached=cached)
    name = TileName("M", 1, 2)
    assert store.write(name, tile)
    assert not store.write(name, tile)
    for read in (store.read(name), TileStore(FolderStore(tmp_path)).read(name)):
        assert type(read) is type(tile)
        assert (read != tile).sum() == 0
        assert read.shape == tile.shape  # type: ignore[attr-defined]


@pytest.mark.parametrize("harm", ["cut", "changed", "empty"])
def test_damage_is_found_when_a_tile_is_read(tmp_path: Path, tiles: TileStore, harm: str) -> None:
    name = TileName("M", 0, 0)
    tiles.write(name, np.eye(4))
    path = tmp_path / name.key
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes({"cut": content[:-9], "changed": content, "empty": b""}[harm])
    with pytest.raises(DamagedTileError, match="tile M/0-0.tile is damaged"):
        tiles.read(name)
    tiles.discard(name)
    assert not tiles.has(name)


def test_an_operation_is_one_of_ours_or_a_function_of_the_user_s() -> None:
    assert operation_of("math:hypot")(3.0, 4.0) == 5.0
    with pytest.raises(InputError, match="no operation 'sum'; there are product, .*, or module:function"):
        operation_of("sum")
    with pytest.raises(InputError, match="operation 'math:no' cannot be imported"):
        operation_of("math:no")


@pytest.mark.parametrize("tile", [np.eye(3), csr_array(np.eye(3))])
def test_a_tile_in_memory_cannot_be_changed_in_place(tmp_path: Path, tile: object) -> None:
    store, name = TileStore(FolderStore(tmp_path), cached=2), TileName("M", 0, 0)
    store.write(name, tile)
    for read in (store.read(name), TileStore(FolderStore(tmp_path), cached=2).read(name)):
        with pytest.raises(ValueError, match="read-only"):
            read *= 2.0
    tile *= 3.0  # type: ignore[operator]  # the caller's own is not what is kept
    assert store.read(name).sum() == 3.0
