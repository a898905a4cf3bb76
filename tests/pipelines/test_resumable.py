"""Stages that are killed between mapped tasks and run again: results are kept for the same inputs, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from flows.resumable import KEPT, inputs_digest, resumable

ROOT = Path(__file__).parents[2]

# A stage of three items, which notes those that it computes, and ends itself at one that is named.
STAGE = """
import os, signal, sys
from pathlib import Path
from prefect import flow, task
from flows.resumable import KEEP_RESULT, Item, resumable

KILLED, VALUE = sys.argv[1:]

@task(**KEEP_RESULT)
def square(item: Item) -> dict[str, float]:
    if item.name == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    with Path("computed.txt").open("a") as file:
        file.write(item.name)
    return {"of": ord(item.name), "root": ord(item.name) ** 0.5}

@flow
def stage() -> None:
    with resumable("squares", "abc", VALUE, [Path("data.txt")]) as items:
        print([square(item) for item in items])

stage()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stage.py").write_text(STAGE)
    (tmp_path / "data.txt").write_text("1")
    return tmp_path


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_killed_stage_computes_what_is_missing(folder: Path, prefect_server: str) -> None:
    def run(killed: str = "-", value: str = "1") -> str:
        """Run the stage; returns the items that it computed."""
        (folder / "computed.txt").write_text("")
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PREFECT_API_URL": prefect_server}
        done = subprocess.run(
            [sys.executable, "stage.py", killed, value],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == (0 if killed == "-" else -9), done.stderr
        if killed == "-":
            told = [{"of": ord(item), "root": ord(item) ** 0.5} for item in "abc"]
            assert done.stdout.strip() == str(told)
            assert not list((folder / KEPT).glob("*"))
        return (folder / "computed.txt").read_text()

    assert run() == "abc"
    assert run() == "abc"
    assert run(killed="c") == "ab"
    assert run() == "c"
    # Of other values, and of other data.
    assert run(killed="c") == "ab"
    assert run(value="2") == "abc"
    assert run(killed="b") == "a"
    (folder / "data.txt").write_text("2")
    assert run(killed="c") == "ab"
    # A write that the kill has cut off.
    (kept,) = (folder / KEPT).glob("squares/*/1-b")
    kept.write_bytes(kept.read_bytes()[:-20])
    assert run() == "bc"


def test_names_that_are_paths_stay_in_the_folder_of_their_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with resumable("stage", ["../../a.py:A", "..", "a", "a"], []) as items:
        kept = [(KEPT / item.key).resolve() for item in items]
    assert {path.parent.parent for path in kept} == {(KEPT / "stage").resolve()}
    assert len(set(kept)) == 4


def test_a_digest_depends_on_values_and_on_files(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("1")
    first = inputs_digest({"seed": 1}, [file])
    assert inputs_digest({"seed": 1}, [file]) == first
    assert inputs_digest({"seed": 2}, [file]) != first
    assert inputs_digest({"seed": 1}, []) != first
    file.write_text("2")
    assert inputs_digest({"seed": 1}, [file]) != first
