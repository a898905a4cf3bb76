"""Results of tasks: each is kept once, and is what its task wrote."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cut_objects import CutAnswers

from ebbtide.agent.result_archive import DamagedResultError
from ebbtide.agent.results import TaskResult, TaskResults
from ebbtide.errors import MissingObjectError, StorageError
from ebbtide.storage.objects import FolderStore

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
    told = "ebbtide: not kept of the results: link: a link to something outside the folder of results\nprinted"
    assert replace(found, archive="", sha256="", size_bytes=0) == replace(RESULT, printed=told)
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


def test_a_write_that_comes_late_keeps_its_files(tmp_path: Path) -> None:
    """Before, the next try deleted the archive that the record names: the result was lost, and counted as done."""

    class Late(FolderStore):
        late: tuple[str, bytes] | None = None

        def put_once(self, key: str, content: bytes) -> bool:
            if self.late is None:
                self.late = key, content
                raise StorageError("timed out")
            super().put_once(*self.late)
            return super().put_once(key, content)

    results, task = TaskResults(Late(tmp_path / "store"), "run-000"), written(tmp_path / "task")
    with pytest.raises(StorageError):
        results.keep(RESULT, task)
    # Another try has other bytes: an archive has the times of its files.
    (task / "plain.txt").write_text("of the second try")
    assert results.keep(RESULT, task)
    results.fetch(results.result(3), tmp_path / "back")
    assert (tmp_path / "back" / "plain.txt").read_text() == "content of plain.txt"


@pytest.mark.parametrize("cuts", [(30,), (30, 40)])
def test_a_record_that_is_cut_off_as_it_is_compared_keeps_its_files(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    class Lossy(CutAnswers):
        def put_once(self, key: str, content: bytes) -> bool:
            super().put_once(key, content)
            return False

    store = Lossy(tmp_path / "store")
    results, task = TaskResults(store, "run-000"), written(tmp_path / "task")
    store.cuts = cuts
    if len(cuts) == 1:
        assert results.keep(RESULT, task)
    else:
        with pytest.raises(OSError):
            results.keep(RESULT, task)
        assert results.keep(RESULT, task) is None
    results.fetch(results.result(3), tmp_path / "back")


def test_a_record_that_is_refused_leaves_one_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try packs the files anew, at another time."""

    class Refuses(FolderStore):
        def put_once(self, _key: str, _content: bytes) -> bool:
            raise StorageError("AccessDenied")

    results, task = TaskResults(Refuses(tmp_path / "store"), "run-000"), written(tmp_path / "task")
    for now_s in (1_000.0, 2_000.0):
        monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
        with pytest.raises(StorageError):
            results.keep(RESULT, task)
    assert len(list(FolderStore(tmp_path / "store").keys())) == 1


def test_an_archive_that_is_stored_in_part_is_no_result(tmp_path: Path) -> None:
    """An upload may be cut short, and reported as complete."""

    class Short(FolderStore):
        def put_file(self, key: str, path: Path) -> None:
            part = path.with_name("part")
            part.write_bytes(path.read_bytes()[:-10])
            super().put_file(key, part)

    results = TaskResults(Short(tmp_path / "store"), "run-000")
    with pytest.raises(StorageError, match="bytes are stored"):
        results.keep(RESULT, written(tmp_path / "task"))
    assert not results.has(3)


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


def test_links_permissions_times_and_empty_folders_come_back(store: FolderStore, tmp_path: Path) -> None:
    place = tmp_path / "task"
    (place / "deep").mkdir(parents=True)
    (place / "empty").mkdir()
    model = place / "deep" / "model.pt"
    model.write_bytes(b"weights")
    os.link(model, place / "best.pt")
    (place / "newest").symlink_to("deep/model.pt")
    (place / "folder").symlink_to(place / "deep")
    (place / "round").symlink_to("../task/deep/model.pt")
    (place / "away").symlink_to(tmp_path)
    model.chmod(0o750)
    os.utime(model, (1_600_000_000, 1_600_000_000))
    results = TaskResults(store, "run-000")
    assert results.keep(RESULT, place)
    back = tmp_path / "back"
    results.fetch(results.result(3), back)
    assert (back / "empty").is_dir()
    assert (back / "best.pt").read_bytes() == (back / "deep" / "model.pt").read_bytes() == b"weights"
    links = {path.name: os.readlink(path) for path in back.iterdir() if path.is_symlink()}
    assert links == {"newest": "deep/model.pt", "folder": "deep", "round": "deep/model.pt"}
    about = (back / "deep" / "model.pt").stat()
    assert (about.st_mode & 0o777, about.st_mtime) == (0o750, 1_600_000_000)


def archive_of(store: FolderStore, tmp_path: Path, *entries: tarfile.TarInfo) -> TaskResults:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for entry in entries:
            tar.addfile(entry, io.BytesIO(b"x" * entry.size))
    (tmp_path / "archive").write_bytes(buffer.getvalue())
    store.put_file("results/run-000/files/3/x.tar.gz", tmp_path / "archive")
    values = {**vars(RESULT), "archive": "results/run-000/files/3/x.tar.gz"}
    values |= {"sha256": hashlib.sha256(buffer.getvalue()).hexdigest()}
    store.put_once("results/run-000/done/3", json.dumps(values).encode())
    return TaskResults(store, "run-000")


def entry(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, to, 2 if kind == tarfile.REGTYPE else 0
    return made


def test_an_archive_with_hard_links_of_an_older_version_can_be_read(store: FolderStore, tmp_path: Path) -> None:
    results = archive_of(store, tmp_path, entry("model.pt"), entry("best.pt", tarfile.LNKTYPE, "model.pt"))
    results.fetch(results.result(3), tmp_path / "back")
    assert (tmp_path / "back" / "best.pt").read_bytes() == b"xx"


@pytest.mark.parametrize(
    "hostile",
    [
        (entry("../outside"),),
        (entry("/tmp/outside"),),
        (entry("link", tarfile.SYMTYPE, ".."),),
        (entry("link", tarfile.SYMTYPE, "/tmp"),),
        (entry("pipe", tarfile.FIFOTYPE),),
        (entry("best.pt", tarfile.LNKTYPE, "missing"),),
        (entry("a/b"), entry("one", tarfile.SYMTYPE, "a"), entry("two", tarfile.SYMTYPE, "one/../..")),
    ],
)
def test_an_archive_that_leads_outside_is_refused(
    hostile: tuple[tarfile.TarInfo, ...], store: FolderStore, tmp_path: Path
) -> None:
    results = archive_of(store, tmp_path, *hostile)
    with pytest.raises(DamagedResultError, match="of task 3"):
        results.fetch(results.result(3), tmp_path / "back")
    assert not (tmp_path / "outside").exists()


def test_what_may_not_be_read_is_told_with_what_the_task_printed(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "task").mkdir()
    for name in ("kept", "closed"):
        (tmp_path / "task" / name).write_text("x")
    (tmp_path / "task" / "closed").chmod(0)
    # These tests may be run by root, who may read everything.
    monkeypatch.setattr(os, "access", lambda path, _mode, **_: Path(path).stat().st_mode & 0o444 != 0)
    results = TaskResults(store, "run-000")
    kept = results.keep(TaskResult(0, "a", "m", 1, 1.0, "printed"), tmp_path / "task")
    assert kept is not None
    told = "ebbtide: not kept of the results: closed: Ebbtide's agent may not read it"
    assert results.result(0).printed.splitlines() == [told, "printed"]
    results.fetch(results.result(0), tmp_path / "there")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["kept"]


@pytest.mark.parametrize("archive", ["../../x", 7, "results/run-000/files/1/m-1.tar.gz"])
def test_a_record_whose_archive_is_not_its_own_is_damaged(store: FolderStore, archive: object) -> None:
    record = {"number": 0, "value": "", "machine": "m", "attempt": 1, "duration_s": 1.0, "printed": ""}
    store.put_once("results/run-000/done/0", json.dumps(record | {"archive": archive}).encode())
    with pytest.raises(DamagedResultError, match="is not of this task"):
        TaskResults(store, "run-000").result(0)
