"""The driver of a tiled program on a cluster of this process: what is done again, what is made again, what fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebbtide.agent.tiled.driver import Driver, DriverProgress, earlier_times, write_results
from ebbtide.agent.tiled.tasks import assembled, run_task, write_inputs
from ebbtide.agent.tiled.tiles import TileStore
from ebbtide.errors import InputError
from ebbtide.jobs.tiled.program import TiledJob, TileName, TileTask
from ebbtide.jobs.tiled.rsvd import Rsvd
from ebbtide.storage.objects import FolderStore

distributed = pytest.importorskip("distributed")

RSVD = Rsvd(rows=3, columns=2, sketch_rows=2, tile=8, power=1)
STEPS = {"product 1": 10, "product 2": 20, "product 3": 10}
ALL = 2 * 2 * 10 + 2 * 3 * 20 + 2 * 2 * 10


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            dashboard_address="127.0.0.1:0",
            protocol="tcp://",
            host="127.0.0.1",
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as made,
    ):
        yield made


def drive(
    client: Any, program: Any, folder: Path, steps: dict[str, int] = STEPS
) -> tuple[DriverProgress, list[int]]:
    progress, told = DriverProgress(steps), []
    Driver(client, program, str(folder), progress, lambda: told.append(progress.step)).run()
    return progress, told


def expected(tiles: TileStore) -> np.ndarray:
    a, g = assembled(tiles, "A", 3, 2), assembled(tiles, "G", 2, 3)
    found: np.ndarray = g @ a @ a.T @ a
    return found


def test_all_tasks_are_done_and_each_is_told_of(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the cluster takes longer to tell a duration.
    monkeypatch.setattr("ebbtide.agent.tiled.driver._TOLD_WITHIN_S", 120.0)
    progress, told = drive(client, RSVD, tmp_path / "tiles")
    assert progress.step == ALL
    assert told == sorted(told)
    assert {job: count for job, (count, _) in progress.times.items()} == {
        "product 1": 4,
        "product 2": 6,
        "product 3": 4,
    }
    assert all(seconds > 0 for seconds in progress.mean_s.values())
    tiles = TileStore(FolderStore(tmp_path / "tiles"))
    monkeypatch.chdir(tmp_path)
    write_results(RSVD, tiles)
    assert np.load("P3.npy", allow_pickle=False) == pytest.approx(expected(tiles), rel=1e-10)


def test_only_what_is_missing_is_made(client: Any, tmp_path: Path) -> None:
    tiles = TileStore(FolderStore(tmp_path))
    write_inputs(RSVD, tiles)
    for task in RSVD.jobs[0].tasks[:3]:
        run_task(task, tiles)
    progress, told = drive(client, RSVD, tmp_path)
    assert told[0] == 30
    assert progress.step == ALL
    assert progress.times["product 1"][0] == 1
    again, _ = drive(client, RSVD, tmp_path)
    assert again.times == {}
    assert again.step == ALL


@pytest.mark.parametrize("key", ["A/1-0.tile", "P1/1-1.tile", "P2/0-2.tile"])
def test_a_damaged_tile_is_made_again(client: Any, tmp_path: Path, key: str) -> None:
    """One that it begins with, or one that an earlier job has made."""
    tiles = TileStore(FolderStore(tmp_path))
    write_inputs(RSVD, tiles)
    done = {"A": 0, "P1": 1, "P2": 2}[key.partition("/")[0]]
    for job in RSVD.jobs[:done]:
        for task in job.tasks:
            run_task(task, tiles)
    path = tmp_path / key
    path.write_bytes(path.read_bytes()[:-3] + b"abc")
    progress, _ = drive(client, RSVD, tmp_path)
    assert progress.step == ALL
    assert assembled(tiles, "P3", 2, 2) == pytest.approx(expected(tiles), rel=1e-10)


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_a_result_that_nothing_reads_is_checked_too(client: Any, tmp_path: Path, harm: str) -> None:
    drive(client, RSVD, tmp_path)
    path = tmp_path / "P3/0-1.tile"
    if harm == "damaged":
        path.write_bytes(path.read_bytes()[:-3] + b"abc")
    else:
        path.unlink()
    progress, _ = drive(client, RSVD, tmp_path)
    assert progress.step == ALL
    tiles = TileStore(FolderStore(tmp_path))
    assert assembled(tiles, "P3", 2, 2) == pytest.approx(expected(tiles), rel=1e-10)


def test_times_of_an_earlier_run_count(tmp_path: Path) -> None:
    progress = DriverProgress(STEPS, {"product 1": (3, 6.0)})
    progress.done("product 1", TileName("P1", 0, 0), 10.0)
    progress.done("product 1", TileName("P1", 0, 0), 10.0)  # told twice, done once
    assert (progress.step, progress.mean_s) == (10, {"product 1": 4.0})
    kept = tmp_path / "done.json"
    assert earlier_times(kept) == {}
    kept.write_text(json.dumps({"step": 10, "times": progress.times}))
    assert earlier_times(kept) == progress.times


def test_a_task_that_fails_ends_the_program(client: Any, tmp_path: Path) -> None:
    wrong = Rsvd(rows=1, columns=1, tile=4)

    class Wrong:
        name, results = "wrong", ("B",)
        jobs = (TiledJob("only", (TileTask("math:hypot", ((TileName("A", 0, 0),),), TileName("B", 0, 0)),)),)
        inputs = wrong.inputs

    with pytest.raises(InputError, match="task B/0-0.tile failed: must be real number"):
        drive(client, Wrong(), tmp_path, {"only": 1})


def test_a_tile_that_nothing_makes_ends_the_program(client: Any, tmp_path: Path) -> None:
    bad = TileTask("product", ((TileName("A", 0, 0),), (TileName("A", 9, 9),)), TileName("B", 0, 0))

    class Bad:
        name, results = "bad", ("B",)
        jobs = (TiledJob("only", (bad,)),)

        @staticmethod
        def inputs() -> list[Any]:
            return [(TileName("A", 0, 0), lambda: np.eye(2))]

    with pytest.raises(InputError, match=r"task B/0-0.tile needs tile A/9-9.tile, which nothing makes"):
        drive(client, Bad(), tmp_path, {"only": 1})
