"""Results of tasks: each is kept once, and is what its task wrote."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.errors import MissingObjectError, StorageError
from ebbtide.live.agent.results import TaskResult, TaskResults
from ebbtide.live.storage import FolderStore

RESULT = TaskResult(3, "c", "run-m0001", 1, 2.5, "printed")
NAMES = ("plain.txt", "with space.txt", "ümlaut.json", "deep/er/file", "-dash", "{task}")


def written(place: Path, content: str = "content") -> Path:
    for name in NAMES:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"{content} of {name}")
    (place / "link").symlink_to("/etc/passwd")
    return place


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def test_a_result_comes_back_with_its_files_and_no_links(store: FolderStore, tmp_path: Path) -> None:
    results = TaskResults(store, "run-000")
    assert results.keep(RESULT, written(tmp_path / "task"))
    assert results.numbers() == {3}
    found = results.result(3)
    assert replace(found, archive="", sha256="", size_bytes=0) == RESULT
    results.fetch(found, tmp_path / "back")
    assert {path.relative_to(tmp_path / "back").as_posix() for path in (tmp_path / "back").rglob("*.*")} >= set(
        NAMES[:3]
    )
    assert all((tmp_path / "back" / name).read_text() == f"content of {name}" for name in NAMES)
    assert not (tmp_path / "back" / "link").exists()


def test_the_second_that_has_done_it_keeps_nothing(store: FolderStore, tmp_path: Path) -> None:
    results = TaskResults(store, "run-000")
    assert results.keep(RESULT, written(tmp_path / "one", "first"))
    late = replace(RESULT, machine="run-m0002", attempt=2)
    assert not results.keep(late, written(tmp_path / "two", "second"))
    # Both may have seen that there is none.
    blind = TaskResults(store, "run-000")
    blind.has = lambda _number: False  # type: ignore[method-assign]
    assert not blind.keep(late, tmp_path / "two")
    assert len(list(store.keys("results/run-000/files/"))) == 1
    assert results.result(3).machine == RESULT.machine


def test_a_write_whose_answer_was_lost_counts(tmp_path: Path) -> None:
    class Lossy(FolderStore):
        def put_once(self, key: str, content: bytes) -> bool:
            assert super().put_once(key, content)
            return False

    results = TaskResults(Lossy(tmp_path / "store"), "run-000")
    assert results.keep(RESULT, written(tmp_path / "task"))
    results.fetch(results.result(3), tmp_path / "back")


def test_without_files_there_is_no_archive(store: FolderStore, tmp_path: Path) -> None:
    results, nothing = TaskResults(store, "run-000"), tmp_path / "nothing"
    nothing.mkdir()
    assert results.keep(RESULT, nothing)
    assert list(store.keys("results/run-000/files/")) == []
    results.fetch(results.result(3), tmp_path / "back")
    assert list((tmp_path / "back").iterdir()) == []


def test_damage_is_told(store: FolderStore, tmp_path: Path) -> None:
    results = TaskResults(store, "run-000")
    with pytest.raises(MissingObjectError):
        results.result(3)
    results.keep(RESULT, written(tmp_path / "task"))
    found = results.result(3)
    (tmp_path / "other").write_bytes(b"other bytes")
    store.put_file(found.archive, tmp_path / "other")
    with pytest.raises(StorageError, match="SHA-256"):
        results.fetch(found, tmp_path / "a")
    store.delete(found.archive)
    with pytest.raises(StorageError, match="not in storage"):
        results.fetch(found, tmp_path / "b")
    store.put_once("results/run-000/done/4", b"[]")
    with pytest.raises(StorageError, match="cannot be read"):
        results.result(4)


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside"])
def test_an_archive_that_leads_outside_is_refused(name: str, store: FolderStore, tmp_path: Path) -> None:
    import hashlib

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = 2
        tar.addfile(entry, io.BytesIO(b"no"))
    (tmp_path / "hostile").write_bytes(buffer.getvalue())
    store.put_file("results/run-000/files/3/x.tar.gz", tmp_path / "hostile")
    values = {**vars(RESULT), "archive": "results/run-000/files/3/x.tar.gz"}
    values |= {"sha256": hashlib.sha256(buffer.getvalue()).hexdigest()}
    store.put_once("results/run-000/done/3", json.dumps(values).encode())
    results = TaskResults(store, "run-000")
    with pytest.raises(StorageError, match="no file of a task"):
        results.fetch(results.result(3), tmp_path / "back")
    assert not (tmp_path / "outside").exists()
