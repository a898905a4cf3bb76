"""Fetching an array's results: what is there already, what belongs to another, and what is damaged."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from ebbtide.agent import results
from ebbtide.agent.results import TaskResult, TaskResults
from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.errors import InputError
from ebbtide.jobs.array import Array
from ebbtide.runs.fetched_results import LINES, fetch_results
from ebbtide.storage.objects import FolderStore


def array(place: Path, run: str, tasks: int = 3, fingerprint: str = "") -> RunFolder:
    work = Array(name=run, command="python task.py {task}", tasks=tuple("abc"[:tasks]))
    folder = RunFolder(place / run)
    store = place / f"objects-{run}"
    settings = LiveSettings(
        run, "local", "reactive", work.model_dump(mode="json"), ".", str(store), {}, 7, fingerprint=fingerprint
    )
    folder.begin(settings)
    stored = TaskResults(FolderStore(store), f"{run}-000")
    for number in range(tasks):
        written = place / f"{run}-{number}"
        written.mkdir()
        if number != 1:
            (written / "out.txt").write_text(f"{run} {number}")
        stored.keep(TaskResult(number, "abc"[number], "m", 1, 1.0, "printed"), written)
    return folder


def test_results_are_fetched_once_and_a_folder_that_was_removed_again(tmp_path: Path) -> None:
    folder, into = array(tmp_path, "one"), tmp_path / "into"
    assert fetch_results(folder, into).new == 3
    assert fetch_results(folder, into).new == 0
    (into / "2" / "out.txt").unlink()
    (into / "2").rmdir()
    # A process that was killed had begun the next line.
    with (into / LINES).open("a") as lines:
        lines.write('{"task": ')
    assert fetch_results(folder, into).new == 1
    assert (into / "2" / "out.txt").read_text() == "one 2"
    found = [json.loads(line) for line in (into / LINES).read_text().splitlines()]
    assert [(line["array"], line["task"], line["folder"]) for line in found] == [
        ("one-000", 0, "0"),
        ("one-000", 1, None),
        ("one-000", 2, "2"),
    ]


def test_the_results_of_another_array_are_not_taken_for_its_own(tmp_path: Path) -> None:
    into = tmp_path / "into"
    fetch_results(array(tmp_path, "one"), into)
    with pytest.raises(InputError, match="has results of one-000, not of two-000"):
        fetch_results(array(tmp_path, "two"), into)
    assert (into / "0" / "out.txt").read_text() == "one 0"


def test_the_results_of_a_former_run_with_the_same_name_are_not_those_of_the_new_one(tmp_path: Path) -> None:
    """Before, none of the new run's results were fetched, and the old files were taken for them."""
    into = tmp_path / "into"
    for name, fingerprint in (("monday", "0a1b2c3d"), ("tuesday", "99999999")):
        (tmp_path / name).mkdir()
        folder = array(tmp_path / name, "one", fingerprint=fingerprint)
        if name == "monday":
            assert fetch_results(folder, into).new == 3
    with pytest.raises(InputError, match="results of another run with the id of one-99999999"):
        fetch_results(folder, into)


def test_results_of_an_earlier_version_which_did_not_name_the_run_are_refused(tmp_path: Path) -> None:
    folder, into = array(tmp_path, "one"), tmp_path / "into"
    fetch_results(folder, into)
    found = [json.loads(line) for line in (into / LINES).read_text().splitlines()]
    earlier = "".join(json.dumps({key: line[key] for key in line if key != "run"}) + "\n" for line in found)
    (into / LINES).write_text(earlier)
    with pytest.raises(InputError, match="results that an earlier Ebbtide fetched; move it away"):
        fetch_results(folder, into)
    assert (into / LINES).read_text() == earlier


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    into = tmp_path / "into"
    (into / "2").mkdir(parents=True)
    (into / "2" / "thesis.tex").write_text("ten years")
    (into / LINES).write_text("")
    with pytest.raises(InputError, match="has a 2 that is no result of one-000"):
        fetch_results(array(tmp_path, "one"), into)
    assert (into / "2" / "thesis.tex").read_text() == "ten years"


def test_one_damaged_result_does_not_keep_back_the_others(tmp_path: Path) -> None:
    folder, into = array(tmp_path, "one"), tmp_path / "into"
    store = FolderStore(tmp_path / "objects-one")
    store.delete(next(store.keys("results/one-000/files/0/")))
    found = fetch_results(folder, into)
    assert (found.new, found.problems) == (2, ("the files of task 0 are not in storage any more",))
    assert (into / "2" / "out.txt").read_text() == "one 2"


def test_a_file_that_cannot_be_written_here_does_not_keep_back_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a name that the file system refuses ended every fetch at its task."""
    folder, into, unpack = array(tmp_path, "one"), tmp_path / "into", results.unpack
    error = OSError(errno.EILSEQ, "Illegal byte sequence")

    def refuses(archive: Path, coming: Path, task: int) -> None:
        if task == 0:
            raise error
        unpack(archive, coming, task)

    monkeypatch.setattr(results, "unpack", refuses)
    found = fetch_results(folder, into)
    assert found.new == 2
    assert found.problems == (f"result of task 0 cannot be written here: {error}",)
    assert not list(into.glob(".*"))
    error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        fetch_results(folder, into)
