"""Fetching what several machines that trained as one have stored: all of it, and of one moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.agent.folders import outputs_id
from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.errors import InputError
from ebbtide.jobs.sweep import Sweep
from ebbtide.runs.fetching import fetch_trial, ranks_of_trial
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import FolderStore


def gang(place: Path, machines: object) -> RunFolder:
    sweep = Sweep(name="g", command="python train.py", machines=machines, max_trial_steps=100)  # type: ignore[arg-type]
    folder = RunFolder(place / "g")
    settings = LiveSettings(
        "g", "local", "reactive", sweep.model_dump(mode="json"), ".", str(place / "store"), {}, 7
    )
    folder.begin(settings)
    return folder


def saved(place: Path, rank: int, step: int, metric: float | None = None, **files: str) -> None:
    written = place / f"{rank}-{step}"
    written.mkdir()
    for name, content in files.items():
        (written / name).write_text(content)
    trial_id = "g-000" + (f"-r{rank}" if rank else "")
    store = CheckpointStore(FolderStore(place / "store"), trial_id)
    store.begin_writing("m", attempt=1, machines=2).save(written, step, oldest=0, metric=metric)


@pytest.mark.parametrize("machines", [2, {"min": 1, "max": 2}], ids=["gang", "elastic"])
def test_the_shares_of_all_machines_are_fetched(tmp_path: Path, machines: object) -> None:
    folder = gang(tmp_path, machines)
    for step in (1, 2):
        saved(tmp_path, 0, step, shard0=f"a{step}")
        saved(tmp_path, 1, step, shard1=f"b{step}")
    # The first machine alone has stored a later one, which is not whole.
    saved(tmp_path, 0, 3, shard0="a3")
    found = fetch_trial(folder, "g-000", tmp_path / "got", ranks=ranks_of_trial(folder, 0))
    assert found.step == 2
    there = tmp_path / "got" / "g-000" / "checkpoint"
    assert {path.name: path.read_text() for path in there.iterdir()} == {"shard0": "a2", "shard1": "b2"}


def test_the_best_whole_checkpoint_is_fetched(tmp_path: Path) -> None:
    folder = gang(tmp_path, 2)
    for step, loss in ((1, 0.5), (2, 0.3), (3, 0.4)):
        saved(tmp_path, 0, step, loss, shard0=f"a{step}")
        saved(tmp_path, 1, step, shard1=f"b{step}")
    ranks = ranks_of_trial(folder, 0)
    best = fetch_trial(folder, "g-000", tmp_path / "best", best="minimize", ranks=ranks)
    assert (best.step, best.metric) == (2, 0.3)
    there = tmp_path / "best" / "g-000" / "checkpoint"
    assert {path.name: path.read_text() for path in there.iterdir()} == {"shard0": "a2", "shard1": "b2"}
    assert fetch_trial(folder, "g-000", tmp_path / "newest", ranks=ranks).step == 3


def test_a_damaged_share_is_told(tmp_path: Path) -> None:
    folder = gang(tmp_path, 2)
    saved(tmp_path, 0, 1, shard0="a")
    saved(tmp_path, 1, 1, shard1="b")
    objects = FolderStore(tmp_path / "store")
    (part,) = objects.keys("trials/g-000-r1/data/")
    (tmp_path / "store" / part).write_text("c")
    with pytest.raises(
        InputError,
        match="of trial g-000 cannot be fetched: shard1 of checkpoint 1 of trial g-000-r1 is not what was saved",
    ):
        fetch_trial(folder, "g-000", tmp_path / "got", ranks=2)
    assert not (tmp_path / "got" / "g-000").exists()


def test_a_single_checkpoint_that_is_damaged_is_told_and_leaves_no_folder(tmp_path: Path) -> None:
    """Before, the trial had "no checkpoint", and the folder that was left kept the next fetch from succeeding."""
    folder = gang(tmp_path, 1)
    saved(tmp_path, 0, 1, weights="w")
    folder.log_of("g-000").parent.mkdir(parents=True, exist_ok=True)
    folder.log_of("g-000").write_text("printed")
    (part,) = FolderStore(tmp_path / "store").keys("trials/g-000/data/")
    (tmp_path / "store" / part).write_text("c")
    with pytest.raises(InputError, match="weights of checkpoint 1 of trial g-000 is not what was saved"):
        fetch_trial(folder, "g-000", tmp_path / "got")
    (tmp_path / "store" / part).write_text("w")
    assert fetch_trial(folder, "g-000", tmp_path / "got").step == 1


def test_outputs_that_lack_a_part_keep_back_no_checkpoint_and_are_fetched_later(tmp_path: Path) -> None:
    """Before, the later fetch was refused, since its folder held something else."""
    folder = gang(tmp_path, 1)
    saved(tmp_path, 0, 1, weights="w")
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "table.csv").write_text("1")
    objects = FolderStore(tmp_path / "store")
    CheckpointStore(objects, outputs_id("g-000")).begin_writing("m").save(tmp_path / "outputs", 1)
    (part,) = objects.keys(f"trials/{outputs_id('g-000')}/data/")
    content = objects.get(part)
    objects.delete(part)
    found = fetch_trial(folder, "g-000", tmp_path / "got")
    assert (found.step, found.outputs) == (1, {})
    assert (tmp_path / "got" / "g-000" / "checkpoint" / "weights").read_text() == "w"
    assert found.problem.startswith("the outputs of trial g-000 cannot be fetched: table.csv of checkpoint 1")
    objects.put_once(part, content)
    found = fetch_trial(folder, "g-000", tmp_path / "got")
    assert (found.is_new, found.outputs, found.problem) == (True, {"table.csv": 1}, "")
    # What is there is kept though it cannot be read again.
    objects.delete(part)
    again = fetch_trial(folder, "g-000", tmp_path / "got")
    assert (again.is_new, again.outputs, bool(again.problem)) == (False, {"table.csv": 1}, True)
