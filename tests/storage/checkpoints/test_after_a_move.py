"""A machine that goes on from a checkpoint stores what has changed since, and not again what storage has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Lock
from unittest.mock import Mock

import pytest

from ebbtide.storage.checkpoints.manifest import BLAKE2B, Manifest
from ebbtide.storage.checkpoints.store import CheckpointStore, CheckpointWriter
from ebbtide.storage.objects import FolderStore

_LARGE = 1 << 20


class Counted(FolderStore):
    """A store that counts the files, and the bytes of the data, that it is given."""

    stored_bytes = 0
    stored_files = 0
    lock = Lock()

    def put_file(self, key: str, path: Path) -> None:
        with self.lock:
            self.stored_bytes += path.stat().st_size
            self.stored_files += 1
        super().put_file(key, path)


def checkpoint(folder: Path, state: str = "a") -> Path:
    """A folder with a large data set that stays, a large state that changes, and small files of both kinds."""
    folder.mkdir(exist_ok=True)
    (folder / "embeddings.bin").write_bytes(b"e" * 3 * _LARGE)
    (folder / "model.bin").write_bytes(state.encode() * _LARGE)
    (folder / "vocabulary.json").write_text("words" * 1000)
    (folder / "step.json").write_text(state * 100)
    return folder


def moved(objects: Counted, folder: Path, *, knows: bool = True) -> tuple[CheckpointWriter, Manifest]:
    """A writer of another machine that has restored the newest checkpoint."""
    store = CheckpointStore(objects, "t")
    writer = store.begin_writing("another")
    manifest = store.restore(folder)
    assert manifest is not None
    if knows:
        writer.knows(manifest)
    objects.stored_bytes = 0
    return writer, manifest


@pytest.fixture
def objects(tmp_path: Path) -> Counted:
    found = Counted(tmp_path / "objects")
    CheckpointStore(found, "t").begin_writing("one").save(checkpoint(tmp_path / "one"), 1)
    assert found.stored_bytes == 4 * _LARGE + 5100
    return found


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("knows", "state", "stored_bytes"), [
    (False, "b", 4 * _LARGE + 5100),
    (True, "b", _LARGE + 100),
    (True, "a", 0),
], ids=["as before", "a new state", "nothing new"])  # fmt: skip
def test_the_first_save_after_a_move_stores_what_has_changed(
    objects: Counted, tmp_path: Path, knows: bool, state: str, stored_bytes: int
) -> None:
    writer, _ = moved(objects, tmp_path / "two", knows=knows)
    # A program writes everything anew, even what is as it was.
    manifest = writer.save(checkpoint(tmp_path / "two", state), 2)
    assert objects.stored_bytes == manifest.uploaded_bytes == stored_bytes
    assert CheckpointStore(objects, "t").restore(tmp_path / "three") is not None
    assert content_of(tmp_path / "three") == content_of(tmp_path / "two")


def test_what_a_failed_upload_sent_is_counted_with_the_next(objects: Counted, tmp_path: Path) -> None:
    writer, _ = moved(objects, tmp_path / "two")
    folder = checkpoint(tmp_path / "two", "b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "put_once", Mock(side_effect=OSError("no answer")))
        with pytest.raises(OSError, match="no answer"):
            writer.save(folder, 2)
    assert objects.stored_bytes == _LARGE + 100
    manifest = writer.save(checkpoint(folder, "c"), 3)
    assert objects.stored_bytes == manifest.uploaded_bytes == 2 * (_LARGE + 100)
    assert writer.save(folder, 4).uploaded_bytes == 0


def test_thousands_of_small_files_are_few_uploads(tmp_path: Path) -> None:
    objects, folder = Counted(tmp_path / "objects"), tmp_path / "zarr"
    folder.mkdir()
    for number in range(5_000):
        (folder / f"{number}").write_bytes(number.to_bytes(2) * 2_000)
    writer = CheckpointStore(objects, "t").begin_writing("one")
    # Twenty megabytes, of which at most sixteen share a part.
    assert writer.save(folder, 1).uploaded_bytes == objects.stored_bytes == 20_000_000
    assert objects.stored_files == 2
    assert writer.save(folder, 2).uploaded_bytes == 0
    (folder / "7").write_bytes(b"changed")
    assert writer.save(folder, 3).uploaded_bytes == len(b"changed")
    assert objects.stored_files == 3
    assert CheckpointStore(objects, "t").restore(tmp_path / "there") is not None
    assert content_of(tmp_path / "there") == content_of(folder)


def test_what_was_restored_stays_as_long_as_it_is_needed(objects: Counted, tmp_path: Path) -> None:
    for number, state in enumerate("bcdefg", start=2):
        writer, _ = moved(objects, tmp_path / f"at-{number}")
        writer.save(checkpoint(tmp_path / f"at-{number}", state), number, keep=1)
        assert objects.stored_bytes == _LARGE + 100
    assert CheckpointStore(objects, "t").restore(tmp_path / "end") is not None
    assert content_of(tmp_path / "end") == content_of(tmp_path / "at-7")
    # The data set is still that of the first machine; of models there is one.
    sizes = sorted(objects.size_bytes(key) for key in objects.keys("trials/t/data/"))
    assert sizes == [100, 5100, _LARGE, 3 * _LARGE]


def test_what_another_machine_removed_meanwhile_is_stored_again(objects: Counted, tmp_path: Path) -> None:
    writer, manifest = moved(objects, tmp_path / "two")
    part = next(file.part for file in manifest.files if file.path == "embeddings.bin")
    objects.delete(f"trials/t/data/{part}")
    writer.save(checkpoint(tmp_path / "two", "b"), 2)
    assert CheckpointStore(objects, "t").restore(tmp_path / "three") is not None
    assert content_of(tmp_path / "three") == content_of(tmp_path / "two")


def test_a_manifest_that_names_no_parts_is_known_by_places(objects: Counted, tmp_path: Path) -> None:
    """As former versions wrote them, one part a file."""
    folder = tmp_path / "two"
    writer, manifest = moved(objects, folder, knows=False)
    large = [replace(file, part="") for file in manifest.files if file.size_bytes >= _LARGE]
    for place, file in enumerate(large):
        objects.put_file(f"trials/t/data/00000001-000001/{place:06d}", folder / file.path)
    objects.stored_bytes = 0
    writer.knows(replace(manifest, files=tuple(large)))
    writer.save(checkpoint(folder, "b"), 2)
    assert objects.stored_bytes == _LARGE + 5100
    assert CheckpointStore(objects, "t").restore(tmp_path / "three") is not None
    assert content_of(tmp_path / "three") == content_of(folder)


@pytest.mark.parametrize("other", [{"trial_id": "u"}, {"algorithm": BLAKE2B}], ids=str)
def test_what_cannot_be_compared_is_stored_again(objects: Counted, tmp_path: Path, other: dict[str, str]) -> None:
    writer, manifest = moved(objects, tmp_path / "two", knows=False)
    if manifest.algorithm == other.get("algorithm"):
        pytest.skip("xxHash is not installed")
    writer.knows(replace(manifest, **other))  # type: ignore[arg-type]
    writer.save(checkpoint(tmp_path / "two", "b"), 2)
    assert objects.stored_bytes == 4 * _LARGE + 5100
