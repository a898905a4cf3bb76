"""Checkpoints are whole or not there, the newest whole one wins, and one writer at a time has a trial."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import boto3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moto import mock_aws
from tests.cut_objects import CutAnswers

from ebbtide.errors import InputError, StorageError, SupersededWriterError
from ebbtide.storage.checkpoints.manifest import Manifest, StoredFile, checksum, relative_path
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import FolderStore, ObjectStore, S3Store


@pytest.fixture(params=["folder", "s3"])
def objects(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectStore]:
    if request.param == "folder":
        yield FolderStore(tmp_path / "objects")
        return
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        yield S3Store("bucket", "some/prefix", client)


def written(folder: Path, **files: str) -> Path:
    """A folder with such files, `__` in a name for a slash."""
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def content_of(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_is_saved_is_restored_and_what_was_there_is_gone(objects: ObjectStore, tmp_path: Path) -> None:
    store = CheckpointStore(objects, "sweep-3")
    there = written(tmp_path / "there", stale="old")
    assert store.restore(there) is None
    assert content_of(there) == {"stale.txt": "old"}
    saved = store.begin_writing("me").save(written(tmp_path / "here", a="1", deep__b="2", empty=""), step=7)
    found = store.restore(there)
    assert found == saved
    assert (found.step, found.number, found.writer, found.size_bytes) == (7, 1, 1, 2)
    assert content_of(there) == {"a.txt": "1", "deep/b.txt": "2", "empty.txt": ""}


def test_a_torn_or_damaged_checkpoint_is_skipped_with_a_warning(
    objects: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(objects, "t")
    writer = store.begin_writing("me")
    for step in (1, 2, 3, 4):
        writer.save(written(tmp_path / f"at-{step}", a=f"{step}" * 100), step, keep=9)
    # The newest lost a file, the next one's is another, the third's manifest is cut short.
    objects.delete("trials/t/data/00000004-000001/000000")
    (tmp_path / "short").write_text("3" * 99)
    objects.put_file("trials/t/data/00000003-000001/000000", tmp_path / "short")
    half = objects.get("trials/t/manifests/00000002")[:-20]
    objects.delete("trials/t/manifests/00000002")
    assert objects.put_once("trials/t/manifests/00000002", half)
    with caplog.at_level(logging.WARNING):
        found = store.restore(tmp_path / "there")
    assert found is not None
    assert found.step == 1
    told = " ".join(record.getMessage() for record in caplog.records)
    for number, why in ((4, "missing"), (3, "not what was saved"), (2, "damaged")):
        assert f"checkpoint {number} of trial t is skipped" in told
        assert why in told
    assert content_of(tmp_path / "there") == {"a.txt": "1" * 100}


def test_an_upload_that_is_cut_short_and_said_to_be_whole_is_seen(objects: ObjectStore, tmp_path: Path) -> None:
    class Cutting:
        def __getattr__(self, name: str) -> object:
            return getattr(objects, name)

        def put_file(self, key: str, path: Path) -> None:
            (tmp_path / "cut").write_bytes(path.read_bytes()[:-1])
            objects.put_file(key, tmp_path / "cut")

    writer = CheckpointStore(Cutting(), "t").begin_writing("me")  # type: ignore[arg-type]
    with pytest.raises(StorageError, match=r"of a\.txt 9 of 10 bytes are stored"):
        writer.save(written(tmp_path / "here", a="x" * 10), 1)
    assert list(CheckpointStore(objects, "t").manifests()) == []


def test_an_upload_that_did_not_end_is_not_there_and_is_cleared_away(objects: ObjectStore, tmp_path: Path) -> None:
    store = CheckpointStore(objects, "t")
    writer = store.begin_writing("me")
    (tmp_path / "half").write_text("half")
    objects.put_file("trials/t/data/00000001-000009/000000", tmp_path / "half")
    assert store.restore(tmp_path / "there") is None
    for step in (1, 2, 3):
        writer.save(written(tmp_path / f"at-{step}", a=str(step)), step, keep=2)
    assert [manifest.step for manifest in store.manifests()] == [3, 2]
    assert sorted(objects.keys("trials/t/data/")) == [
        "trials/t/data/00000002-000001/000000",
        "trials/t/data/00000003-000001/000000",
    ]


def test_a_checkpoint_that_is_listed_late_keeps_its_data(tmp_path: Path) -> None:
    class Late(FolderStore):
        """Shows the first manifest after the second."""

        is_late = True

        def keys(self, prefix: str = "") -> Iterator[str]:
            return (
                key for key in super().keys(prefix) if not (self.is_late and key.endswith("manifests/00000001"))
            )

    objects = Late(tmp_path / "objects")
    store = CheckpointStore(objects, "t")
    writer = store.begin_writing("me")
    for step in (1, 2):
        writer.save(written(tmp_path / f"at-{step}", a=str(step)), step, keep=2)
    objects.is_late = False
    next((tmp_path / "objects").glob("trials/t/data/00000002-*/000000")).write_bytes(b"damaged")
    found = store.restore(tmp_path / "there")
    assert found is not None
    assert found.step == 1


def test_what_training_fails_from_is_set_aside(objects: ObjectStore, tmp_path: Path) -> None:
    store = CheckpointStore(objects, "t")
    writer = store.begin_writing("me")
    for step in (1, 2):
        writer.save(written(tmp_path / f"at-{step}", a=str(step)), step)
    store.set_aside(2, "training failed from it twice")
    found = store.restore(tmp_path / "there")
    assert found is not None
    assert found.step == 1
    # Later numbers go on after it.
    assert writer.save(written(tmp_path / "at-3", a="3"), 3).number == 3
    assert [manifest.step for manifest in store.manifests()] == [3, 1]


def test_who_was_taken_over_writes_no_more(objects: ObjectStore, tmp_path: Path) -> None:
    store = CheckpointStore(objects, "t")
    first, folder = store.begin_writing("first"), written(tmp_path / "here", a="1")
    first.save(folder, 1)
    second = store.begin_writing("second")
    with pytest.raises(SupersededWriterError, match="trial t has writer 2; this is 1"):
        first.save(folder, 2)
    assert second.save(folder, 3).writer == 2
    assert [manifest.step for manifest in store.manifests()] == [3, 1]


def test_the_one_that_took_over_goes_round_a_number_that_the_other_took_last(
    objects: ObjectStore, tmp_path: Path
) -> None:
    """The first passed its check, then the second began, then the first wrote its manifest."""
    store = CheckpointStore(objects, "t")
    second = store.begin_writing("second")
    late = Manifest("t", 1, 0, 5, 0.0, ())
    assert objects.put_once("trials/t/manifests/00000001", late.encode())
    saved = second.save(written(tmp_path / "here", a="1"), 9)
    assert saved.number == 2
    assert [manifest.step for manifest in store.manifests()] == [9, 5]


def test_of_many_that_begin_at_once_each_has_a_number_and_the_last_alone_writes(tmp_path: Path) -> None:
    store, folder = CheckpointStore(FolderStore(tmp_path / "objects"), "t"), written(tmp_path / "here", a="1")
    writers, lock = [], threading.Lock()

    def begin() -> None:
        writer = store.begin_writing("someone")
        with lock:
            writers.append(writer)

    threads = [threading.Thread(target=begin) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(writer.writer for writer in writers) == list(range(1, 13))
    outcomes = []
    for writer in writers:
        try:
            outcomes.append(writer.save(folder, writer.writer).writer)
        except SupersededWriterError:
            outcomes.append(0)
    assert sorted(outcomes) == [0] * 11 + [12]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_manifest_is_read_as_it_was_written_or_not_at_all(data: st.DataObject) -> None:
    manifest = Manifest("t", 3, 2, data.draw(st.integers(0, 10**12)), 1.5, (StoredFile("a/b", 4, "00ff"),))
    content = manifest.encode()
    assert Manifest.decode(content) == manifest
    place = data.draw(st.integers(0, len(content) - 1))
    damaged = content[:place] + bytes([content[place] ^ data.draw(st.integers(1, 255))]) + content[place + 1 :]
    with contextlib.suppress(InputError):
        assert Manifest.decode(damaged) == manifest


FORGED = {
    "path": "../../evil",
    "path that is no text": 5,
    "path with a NUL": "a\0b",
    "writer": "x",
    "step": "x",
    "step below 0": -5,
    "step that is too large": 10**400,
    "size_bytes": -1,
    "saved_at_s": "now",
    "number": True,
}


@pytest.mark.long
@pytest.mark.parametrize("forged", FORGED)
def test_a_manifest_that_nobody_here_would_write_is_skipped(
    objects: ObjectStore, tmp_path: Path, forged: str
) -> None:
    """Its checksum is right: whoever may write to the storage can compute one."""
    store = CheckpointStore(objects, "t")
    first = store.begin_writing("me").save(written(tmp_path / "here", a="1"), step=1)
    field, value = forged.split()[0], FORGED[forged]
    content = asdict(replace(first, number=2))
    (content["files"][0] if field in ("path", "size_bytes") else content)[field] = value
    body = json.dumps(content)
    outer = {"checksum": checksum(body.encode(), first.algorithm), "manifest": body}
    objects.put_once(f"{store.folder}/manifests/00000002", json.dumps(outer).encode())
    objects.put_once(f"{store.folder}/manifests/00000003", b"[" * 200_000)
    objects.put_once(f"{store.folder}/manifests/00000004", json.dumps({"manifest": "[" * 200_000}).encode())
    assert not store.has(2)
    assert not store.has(3)
    assert store.restore(tmp_path / "back") == first


def test_a_number_of_too_many_digits_blocks_nobody(objects: ObjectStore, tmp_path: Path) -> None:
    store = CheckpointStore(objects, "t")
    for kind in ("writers", "manifests", "aside"):
        objects.put_once(f"{store.folder}/{kind}/{'9' * 255}", b"")
    writer = store.begin_writing("me")
    assert writer.writer == 1
    assert writer.save(written(tmp_path / "here", a="1"), step=1).number == 1


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../b", ""])
def test_no_file_leads_out_of_its_folder(path: str) -> None:
    with pytest.raises(InputError, match="no path inside a checkpoint"):
        relative_path(path)


@pytest.mark.parametrize("trial_id", ["../x", "a/b", "", "a b"])
def test_no_id_leads_out_of_its_place(trial_id: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no id of a trial|no key of an object"):
        CheckpointStore(FolderStore(tmp_path), trial_id)


def test_a_manifest_is_believed_under_its_own_trial_and_number_alone(
    objects: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, other = CheckpointStore(objects, "sweep-3"), CheckpointStore(objects, "sweep-4")
    writer = store.begin_writing("me")
    first = writer.save(written(tmp_path / "here", a="1"), step=1)
    second = writer.save(written(tmp_path / "here", a="2"), step=2)
    strange = other.begin_writing("me").save(written(tmp_path / "there", b="1"), step=9)
    keys = [f"{store.folder}/manifests/{manifest.number:08d}" for manifest in (first, second)]
    contents = [objects.get(key) for key in keys]
    for key, content in zip(keys, reversed(contents), strict=True):
        objects.delete(key)
        objects.put_once(key, content)
    assert store.restore(tmp_path / "back") is None
    assert not store.has(1)
    assert "its manifest is of checkpoint 1 of trial sweep-3" in caplog.text
    objects.delete(keys[0])
    objects.put_once(keys[0], contents[0])
    objects.put_once(f"{store.folder}/manifests/00000003", strange.encode())
    assert store.restore(tmp_path / "back") == first
    assert store.has(1)
    assert not store.has(3)


def test_a_checkpoint_of_another_trial_is_not_believed_under_the_same_number(
    objects: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stores = [CheckpointStore(objects, f"sweep-{number}") for number in (3, 4)]
    for number, store in enumerate(stores):
        store.begin_writing("me").save(written(tmp_path / str(number), a=str(number)), step=1)
    held = [
        {key.removeprefix(store.folder): objects.get(key) for key in objects.keys(store.folder + "/")}
        for store in stores
    ]
    for store, contents in zip(stores, reversed(held), strict=True):
        for key, content in contents.items():
            objects.delete(store.folder + key)
            objects.put_once(store.folder + key, content)
    for store in stores:
        assert store.restore(tmp_path / "back") is None
        assert not store.has(1)
    assert "its manifest is of checkpoint 1 of trial sweep-4" in caplog.text


def test_objects_that_are_no_checkpoints_are_ignored(objects: ObjectStore, tmp_path: Path) -> None:
    store = CheckpointStore(objects, "sweep-3")
    for kind in ("manifests", "writers", "aside", "data"):
        for name in ("README", "00000001-old", "1e3"):
            objects.put_once(f"{store.folder}/{kind}/{name}", b"x")
    if isinstance(objects, FolderStore):
        (tmp_path / "objects" / store.folder / "manifests" / ".nfs0001").write_text("x")
        (tmp_path / "objects" / store.folder / "data" / "._x").write_text("x")
    saved = store.begin_writing("me").save(written(tmp_path / "here", a="1"), step=7, keep=1)
    assert store.restore(tmp_path / "there") == saved


def test_what_killed_writers_left_is_removed(
    objects: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.storage.checkpoints.store._LEFT_FOR_S", -1.0)
    store = CheckpointStore(objects, "sweep-3")
    kept = store.begin_writing("me").save(written(tmp_path / "here", a="1"), step=7)
    if isinstance(objects, FolderStore):
        left = tmp_path / "objects" / store.folder / "data" / "00000002-000001" / ".000000.x1.part"
        left.parent.mkdir(parents=True)
        left.write_text("half")
        objects.clear_unfinished(f"{store.folder}/data/", 3600.0)
        assert left.exists()
        store.begin_writing("next")
        assert not left.exists()
    else:
        assert isinstance(objects, S3Store)
        client = objects._client
        key = f"some/prefix/{store.folder}/data/00000002-000001/000000"
        client.create_multipart_upload(Bucket="bucket", Key=key)
        client.create_multipart_upload(Bucket="bucket", Key="another/place")
        # moto has begun every upload in 2010.
        objects.clear_unfinished(f"{store.folder}/data/", 1e10)
        assert len(client.list_multipart_uploads(Bucket="bucket")["Uploads"]) == 2
        store.begin_writing("next")
        (upload,) = client.list_multipart_uploads(Bucket="bucket")["Uploads"]
        assert upload["Key"] == "another/place"
    assert store.restore(tmp_path / "there") == kept


def test_a_checkpoint_whose_reply_was_lost_is_never_written_over(tmp_path: Path) -> None:
    class NoReply(FolderStore):
        fails = True

        def put_once(self, key: str, content: bytes) -> bool:
            written = super().put_once(key, content)
            if "/manifests/" in key and self.fails:
                self.fails = False
                raise StorageError("the connection was closed")
            return written

    objects, folder = NoReply(tmp_path / "objects"), tmp_path / "work"
    store = CheckpointStore(objects, "t")
    writer = store.begin_writing("m")
    folder.mkdir()
    (folder / "state").write_text("first")
    with pytest.raises(StorageError):
        writer.save(folder, 1)
    (folder / "state").write_text("second")
    assert writer.save(folder, 2).number == 2
    assert objects.get(store.data_key(1, writer.writer, 0)) == b"first"


def test_what_a_listing_does_not_show_yet_is_not_removed(tmp_path: Path) -> None:
    class Late(FolderStore):
        hidden = ""

        def keys(self, prefix: str = "") -> Iterator[str]:
            return (key for key in super().keys(prefix) if not self.hidden or self.hidden not in key)

    objects, folder = Late(tmp_path / "objects"), tmp_path / "work"
    store = CheckpointStore(objects, "t")
    writer = store.begin_writing("m")
    folder.mkdir()
    for number in range(1, 5):
        # Each manifest is listed only after the next checkpoint was written.
        objects.hidden = f"manifests/{number:08d}"
        (folder / "state").write_text(str(number))
        writer.save(folder, number)
    objects.hidden = ""
    assert [manifest.number for manifest in store.manifests()][:2] == [4, 3]
    for manifest in list(store.manifests())[:2]:
        store.fetch(manifest, tmp_path / "got")
        assert (tmp_path / "got" / "state").read_text() == str(manifest.number)


def test_the_best_checkpoint_and_those_that_are_kept_stay_whatever_their_age(
    objects: ObjectStore, tmp_path: Path
) -> None:
    store = CheckpointStore(objects, "t")
    writer = store.begin_writing("me")
    for step, loss in enumerate([0.9, 0.2, 0.5, None, 0.4], start=1):
        # The file of the first two is the same, and stored once.
        here = written(tmp_path / "here", a=str(max(step, 2)))
        found = writer.save(here, step, metric=loss)
        best = store.best("minimize")
        assert best is not None
        writer.kept = frozenset({best.number})
        assert store.has(found.number)
    assert [(each.number, each.metric) for each in store.manifests()] == [(5, 0.4), (4, None), (2, 0.2)]
    assert store.restore(tmp_path / "there", best="minimize") == store.read(2)
    assert content_of(tmp_path / "there") == {"a.txt": "2"}
    assert store.restore(tmp_path / "there", best="maximize") == store.read(5)
    # A damaged best is passed over for the newest.
    objects.delete(store.part_key(store.manifest(2), 0))
    assert store.restore(tmp_path / "there", best="minimize") == store.read(5)


@pytest.mark.parametrize(("direction", "metrics"), [("minimize", (1, 2, 4, None)), ("maximize", (4, 3, 1, None))])
def test_after_a_damaged_best_checkpoint_the_next_best_is_restored(
    direction: str, metrics: tuple[float | None, ...], tmp_path: Path
) -> None:
    store = CheckpointStore(FolderStore(tmp_path / "objects"), "t")
    writer = store.begin_writing("me")
    (tmp_path / "here").mkdir()
    for step, metric in enumerate(metrics, 1):
        (tmp_path / "here" / "model").write_text(str(step))
        writer.save(tmp_path / "here", step, keep=9, metric=metric)
    found = store.restore(tmp_path / "there", best=direction)
    assert found is not None
    assert found.step == 1
    store.objects.delete(store.part_key(found, 0))
    found = store.restore(tmp_path / "there", best=direction)
    assert found is not None
    assert found.step == 2


def test_what_cannot_be_removed_now_makes_no_save_fail(tmp_path: Path) -> None:
    class Refusing(FolderStore):
        refuses = True

        def delete(self, key: str) -> None:
            if self.refuses:
                raise StorageError(f"{key}: the service is not available")
            super().delete(key)

    objects = Refusing(tmp_path / "objects")
    store = CheckpointStore(objects, "t")
    writer = store.begin_writing("me")
    here = written(tmp_path / "here", a="1")
    assert [writer.save(here, step).number for step in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert len(list(store.manifests())) == 4
    objects.refuses = False
    writer.save(here, 5)
    assert [each.number for each in store.manifests()] == [5, 4]


def test_a_checkpoint_whose_manifest_cannot_be_read_now_stays_with_all_that_it_uses(tmp_path: Path) -> None:
    """Before, the best checkpoint, or a file that it shares with an older one, was removed for one damaged answer."""
    store, folder = CheckpointStore(FolderStore(tmp_path / "objects"), "t"), tmp_path / "work"
    writer = store.begin_writing("m0")
    folder.mkdir()
    for number, model in ((1, "A"), (2, "A"), (3, "B"), (4, "B")):
        (folder / "model.pt").write_text(model * 300_000)
        (folder / "state").write_text(str(number))
        writer.kept = frozenset({1, 2})
        writer.save(folder, number, keep=2, metric=0.1 if number == 2 else 0.5)
    best = store.manifest_key(2)
    content = store.objects.get(best)
    store.objects.delete(best)
    store.objects.put_once(best, content[:9])
    later = store.begin_writing("m1")
    assert getattr(store.best("minimize"), "number", 0) != 2
    for number in (5, 6, 7):
        (folder / "state").write_text(str(number))
        later.save(folder, number, keep=2)
    store.objects.delete(best)
    store.objects.put_once(best, content)
    found = store.best("minimize")
    assert found is not None
    assert found.number == 2
    store.fetch(found, tmp_path / "best")
    assert (tmp_path / "best" / "model.pt").read_text() == "A" * 300_000
    # What was stored since goes as before.
    assert {each.number for each in store.manifests()} <= {1, 2, 6, 7}


def test_content_of_which_an_answer_is_cut_off_is_read_again(tmp_path: Path) -> None:
    """Before, an older checkpoint was restored, and fetched."""
    objects, folder = FolderStore(tmp_path / "objects"), tmp_path / "work"
    store = CheckpointStore(objects, "t")
    folder.mkdir()
    writer = store.begin_writing("m")
    for step in (1, 2):
        (folder / "state").write_text(str(step) * 1_000)
        writer.save(folder, step)
    taken: list[str] = []

    class Cut(FolderStore):
        def get_file(self, key: str, path: Path) -> None:
            super().get_file(key, path)
            if not taken:
                taken.append(key)
                path.write_bytes(path.read_bytes()[:-1])

    found = CheckpointStore(Cut(tmp_path / "objects"), "t").restore(tmp_path / "restored")
    assert found is not None
    assert (found.step, len(taken)) == (2, 1)


def test_a_manifest_that_is_damaged_each_time_in_another_way_is_damaged(tmp_path: Path) -> None:
    """Before, it counted as storage that does not answer, which is waited for without end."""
    store = CheckpointStore(CutAnswers(tmp_path / "objects"), "t")
    writer = store.begin_writing("m")
    for step in (1, 2):
        writer.save(written(tmp_path / "work", a=str(step)), step)
    store.objects.cuts = [9, 8]  # type: ignore[attr-defined]
    assert store.read(2) is None
    assert getattr(store.read(2), "step", 0) == 2


def test_a_stray_manifest_is_no_unreadable_checkpoint(tmp_path: Path) -> None:
    """Else no data would be removed any more: its number may be higher than all others."""
    store = CheckpointStore(FolderStore(tmp_path / "objects"), "t")
    store.begin_writing("m").save(written(tmp_path / "work", a="1"), 1)
    store.objects.put_once(store.manifest_key(99), b"{")
    assert store.unreadable([1]) == set()
    assert store.unreadable([]) == {1}
    store.check_all_readable()
