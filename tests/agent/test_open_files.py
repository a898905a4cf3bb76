"""Files that stay open on purpose do not hold up checkpoints, and those that are being saved do."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from ebbtide.agent.logs import is_log
from ebbtide.agent.open_files import KeptOpen, copy_databases
from ebbtide.storage.checkpoints.tree import Tree, copy_tree, tree_of


def tree_at(folder: Path) -> Tree:
    found = tree_of(folder)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "name", ["events.out.tfevents.1700000000.host.1.0", "log.csv", "a/train.log", "m.jsonl", "s.db"]
)
def test_logs_may_stay_open(tmp_path: Path, name: str) -> None:
    assert is_log(name)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("1")
    (tmp_path / "model.pt").write_text("1")
    tree = tree_at(tmp_path)
    opened = {entry.inode: 1 for entry in tree.of("file") if entry.path == name}
    kept = KeptOpen()
    assert kept.look(tree, opened, 0.0) == [name]
    assert kept.look(tree, opened, 3.0) == []
    assert kept.paths == {name}
    # Once it is closed, it counts like any other.
    assert kept.look(tree, {}, 4.0) == []
    assert kept.paths == frozenset()


def test_sidecars_of_databases_never_hold_up_a_checkpoint(tmp_path: Path) -> None:
    for name in ("s.db", "s.db-wal", "s.db-shm"):
        (tmp_path / name).write_text("1")
    tree = tree_at(tmp_path)
    kept = KeptOpen()
    # They come and go with each change, so waiting for how long they have been open would never end.
    assert kept.look(tree, {entry.inode: 1 for entry in tree.of("file")}, 0.0) == ["s.db"]
    assert kept.paths == {"s.db-wal", "s.db-shm"}


def test_other_files_stay_open_on_purpose_only_if_they_hardly_grow(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"x")
    (inode,) = {entry.inode for entry in tree_at(tmp_path).of("file")}
    kept = KeptOpen()
    for second in range(60):
        # A large file, which takes a minute to be written.
        with path.open("ab") as file:
            file.write(b"x" * (1 << 20))
        assert kept.look(tree_at(tmp_path), {inode: 1}, float(second)) == ["model.bin"]
    assert kept.look(tree_at(tmp_path), {inode: 1}, 70.0) == ["model.bin"]
    assert kept.look(tree_at(tmp_path), {inode: 1}, 90.0) == []


def test_databases_are_copied_as_of_one_moment(tmp_path: Path) -> None:
    folder, copy = tmp_path / "here", tmp_path / "copy"
    folder.mkdir()
    with contextlib.closing(sqlite3.connect(folder / "study.db")) as study:
        study.execute("PRAGMA journal_mode=WAL")
        study.execute("CREATE TABLE trials (value REAL)")
        study.execute("INSERT INTO trials VALUES (0.25)")
        study.commit()
        study.execute("INSERT INTO trials VALUES (0.5)")
        tree = tree_at(folder)
        copy_tree(tree, folder, copy)
        copy_databases(tree, folder, copy)
    assert sorted(path.name for path in copy.iterdir()) == ["study.db"]
    with contextlib.closing(sqlite3.connect(copy / "study.db")) as found:
        assert found.execute("SELECT value FROM trials").fetchall() == [(0.25,)]


@pytest.mark.parametrize("name", ["model.txt", "lgbm_100.txt", "step.txt", "a/checkpoint.txt"])
def test_a_model_or_step_that_is_kept_as_text_is_no_log(name: str) -> None:
    assert not is_log(name)
    assert all(map(is_log, ("log.txt", "train_steps.log", "epoch_losses.txt", "model/metrics.txt")))
