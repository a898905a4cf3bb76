"""Logs are told from checkpoints by how they are written, where their names do not say it."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.agent.logs import Logs, is_log
from ebbtide.storage.checkpoints.tree import tree_of

_TIMES_NS = itertools.count(1_700_000_000_000_000_000, 1_000_000_000)


def looked(logs: Logs) -> Logs:
    """A look at the folder, in which each file that a test wrote has a time of its own."""
    tree = tree_of(logs.folder)
    assert tree is not None
    logs.look(tree)
    return logs


def put(path: Path, content: str) -> None:
    """Write a file anew, in place."""
    path.write_text(content)
    stamp(path)


def appended(path: Path, content: str) -> None:
    with path.open("a") as file:
        file.write(content)
    stamp(path)


def replaced(path: Path, content: str) -> None:
    new = path.with_name("new")
    new.write_text(content)
    stamp(new)
    new.replace(path)


def stamp(path: Path) -> None:
    time_ns = next(_TIMES_NS)
    os.utime(path, ns=(time_ns, time_ns))


@pytest.mark.parametrize("name", ["model.csv", "a/weights.db", "coefficients.txt", "table.tsv", "rows.jsonl"])
@pytest.mark.parametrize("write", [put, replaced])
@pytest.mark.parametrize("content", ["9,8,7\n", "9\n", "9,8,7,6,5,4\n"], ids=["as long", "shorter", "longer"])
def test_what_is_written_anew_is_no_log(
    tmp_path: Path, name: str, write: Callable[[Path, str], None], content: str
) -> None:
    path, logs = tmp_path / name, Logs(tmp_path)
    path.parent.mkdir(exist_ok=True)
    write(path, "1,2,3\n")
    assert looked(logs).is_log(name), "its name is all that is known"
    write(path, content)
    assert not looked(logs).is_log(name)
    assert not looked(logs).is_log(name)


def test_what_is_replaced_by_the_same_content_is_no_log(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    for _ in range(2):
        replaced(tmp_path / "model.csv", "1,2,3\n")
        looked(logs)
    assert not logs.is_log("model.csv")


@pytest.mark.parametrize("name", ["data.csv", "a/rows.jsonl", "output.txt"])
def test_what_grows_at_its_end_is_a_log(tmp_path: Path, name: str) -> None:
    path, logs = tmp_path / name, Logs(tmp_path)
    path.parent.mkdir(exist_ok=True)
    put(path, "")
    for row in range(5):
        assert looked(logs).is_log(name)
        appended(path, f"{row},{'x' * 3000}\n")
    assert looked(logs).is_log(name)


def test_a_log_that_a_resumed_program_begins_anew_is_one_again_once_it_grows(tmp_path: Path) -> None:
    path, logs = tmp_path / "data.csv", Logs(tmp_path)
    put(path, "step,value\n1,2\n2,3\n")
    looked(logs)
    put(path, "step,value\n")
    assert not looked(logs).is_log("data.csv")
    appended(path, "1,2\n")
    assert looked(logs).is_log("data.csv")
    put(path, "step,other\n")
    appended(path, "1,2\n")
    assert not looked(logs).is_log("data.csv"), "written anew twice"


def test_a_log_that_is_rotated_stays_one(tmp_path: Path) -> None:
    path, logs = tmp_path / "data.txt", Logs(tmp_path)
    for number in range(1, 4):
        put(path, f"{number}\n")
        assert looked(logs).is_log("data.txt")
        path.rename(tmp_path / f"data.txt.{number}")
        put(path, "")
        assert looked(logs).is_log("data.txt")


@pytest.mark.parametrize(
    "name",
    ["train.log", "metrics.csv", "history.csv", "a/results.csv", "events.out.tfevents.1.host", "stdout.txt"],
)
def test_names_of_logs_alone_count_as_logs_however_they_are_written(tmp_path: Path, name: str) -> None:
    path, logs = tmp_path / name, Logs(tmp_path)
    path.parent.mkdir(exist_ok=True)
    for row in range(3):
        replaced(path, f"{row}\n")
        assert looked(logs).is_log(name)


def test_a_database_changes_in_place_and_is_a_log_until_it_is_replaced(tmp_path: Path) -> None:
    path, logs = tmp_path / "runs.db", Logs(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE runs (value REAL)")
        for row in range(3):
            database.execute("INSERT INTO runs VALUES (?)", (row,))
            database.commit()
            stamp(path)
            assert looked(logs).is_log("runs.db")
        database.execute("DELETE FROM runs")
        database.commit()
        database.execute("VACUUM")
    stamp(path)
    assert looked(logs).is_log("runs.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "new")) as database:
        database.execute("CREATE TABLE weights (value REAL)")
        database.commit()
    (tmp_path / "new").replace(path)
    assert not looked(logs).is_log("runs.db")


def test_other_names_are_no_logs_however_they_are_written(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    put(tmp_path / "model.pt", "1")
    appended(tmp_path / "model.pt", "2")
    assert not looked(logs).is_log("model.pt")
    assert not looked(logs).is_log("model.txt")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("8/vocab.txt", False),
        ("8/commit_success.txt", False),
        ("8/done.txt", False),
        ("iter.txt", False),
        ("notes.txt", True),
        ("iteration_log.txt", True),
        ("completed_metrics.txt", True),
    ],
)
def test_parts_of_checkpoints_that_are_text_are_no_logs(name: str, is_one: bool) -> None:
    assert is_log(name) == is_one
