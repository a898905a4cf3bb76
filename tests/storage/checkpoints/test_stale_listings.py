"""Storage that lists what there was some minutes ago: nothing is lost, written over, or restored in place of newer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.errors import LostCheckpointError, StorageError, SupersededWriterError
from ebbtide.storage.checkpoints.store import CheckpointStore, CheckpointWriter
from ebbtide.storage.checkpoints.whole import newest_whole
from ebbtide.storage.objects import FolderStore


class Stale(FolderStore):
    """Lists the keys that there were when it became stale; everything else is up to date, as in many stores.

    Attributes:
        listed: Keys that it lists below each of these prefixes; the others are listed as they are.
    """

    listed: dict[str, list[str]]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.listed = {}

    def keys(self, prefix: str = "") -> Iterator[str]:
        for begins, old in self.listed.items():
            if prefix.startswith(begins):
                return (key for key in old if key.startswith(prefix))
        return super().keys(prefix)

    def stay(self, *prefixes: str) -> None:
        """List what there is now from now on."""
        self.listed |= {prefix: list(super(Stale, self).keys(prefix)) for prefix in prefixes}


@pytest.fixture
def objects(tmp_path: Path) -> Stale:
    return Stale(tmp_path / "objects")


def save(writer: CheckpointWriter, folder: Path, step: int, *, oldest: int | None = None, **files: str) -> int:
    """Save a folder with these files; returns the checkpoint's number."""
    folder.mkdir(exist_ok=True)
    for name, content in (files or {"state": str(step)}).items():
        (folder / name).write_text(content)
    return writer.save(folder, step, oldest=oldest).number


def test_a_writer_that_sees_no_newer_numbers_writes_over_no_checkpoint(objects: Stale, tmp_path: Path) -> None:
    store = CheckpointStore(objects, "t")
    first = store.begin_writing("first")
    objects.stay("trials/t/")
    for step in (1, 2):
        assert save(first, tmp_path / "work", step) == step
    # An earlier writer, which had passed its check before, takes the numbers after.
    for number in (3, 4):
        objects.put_once(f"trials/t/manifests/{number:08d}", b"{}")
    assert save(first, tmp_path / "work", 5) == 5
    for number in (1, 2):
        store.fetch(store.manifest(number), tmp_path / "got")
        assert (tmp_path / "got" / "state").read_text() == str(number)


def test_an_earlier_writer_that_does_not_see_the_later_one_writes_no_more(objects: Stale, tmp_path: Path) -> None:
    store = CheckpointStore(objects, "t")
    first = store.begin_writing("first")
    objects.stay("trials/t/")
    store.begin_writing("second")
    with pytest.raises(SupersededWriterError):
        save(first, tmp_path / "work", 1)


def test_content_that_an_unlisted_checkpoint_shares_with_an_older_one_stays(
    objects: Stale, tmp_path: Path
) -> None:
    store, folder = CheckpointStore(objects, "t"), tmp_path / "work"
    writer = store.begin_writing("first")
    save(writer, folder, 1, oldest=0, state="1", same="as before")
    objects.stay("trials/t/manifests/")
    save(writer, folder, 2, oldest=0, state="2", same="as before")
    save(writer, folder, 3, oldest=2, state="3", same="another")
    store.fetch(store.manifest(2), tmp_path / "got")
    assert (tmp_path / "got" / "same").read_text() == "as before"


def test_the_newest_that_is_known_is_restored_though_it_is_not_listed(objects: Stale, tmp_path: Path) -> None:
    store, folder = CheckpointStore(objects, "t"), tmp_path / "work"
    writer = store.begin_writing("first")
    save(writer, folder, 1)
    objects.stay("trials/t/")
    # The first of them is deleted, and still listed.
    for step in range(2, 6):
        save(writer, folder, step, oldest=4 if step == 5 else 0)
    knows = CheckpointStore(objects, "t", expected=4)
    knows.check_is_there()
    with pytest.raises(LostCheckpointError):
        CheckpointStore(knows.objects, knows.trial_id, expected=6).check_is_there()
    # The one after it was stored, too, and the controller was not told yet.
    restored = knows.restore(tmp_path / "got")
    assert restored is not None
    assert restored.step == 5


def test_the_newest_is_found_though_writes_before_it_failed(objects: Stale, tmp_path: Path) -> None:
    """Nobody else knows of it: its agent died before it could report it."""
    store = CheckpointStore(objects, "t")
    objects.stay("trials/t/")
    writer = store.begin_writing("first")
    # Each write that fails leaves a number out.
    writer._begin_number(5)
    save(writer, tmp_path / "work", 1)
    restored = CheckpointStore(objects, "t").restore(tmp_path / "got")
    assert restored is not None
    assert (restored.number, restored.step) == (5, 1)


def test_a_listing_of_checkpoints_that_are_gone_is_not_believed(objects: Stale, tmp_path: Path) -> None:
    """A run that goes on from storage knows of none, and would begin at step 0."""
    writer = CheckpointStore(objects, "t").begin_writing("first")
    for number in range(1, 30):
        save(writer, tmp_path / "work", number, oldest=number - 1)
        if number == 2:
            objects.stay("trials/t/")
    store = CheckpointStore(objects, "t")
    with pytest.raises(StorageError, match="listed as they were a while ago"):
        store.restore(tmp_path / "got")
    with pytest.raises(StorageError, match="listed as they were a while ago"):
        newest_whole(objects, ["t"])
    objects.listed.clear()
    restored = store.restore(tmp_path / "got")
    assert restored is not None
    assert restored.step == 29


def test_where_the_newest_is_damaged_the_one_before_is_found_by_name(objects: Stale, tmp_path: Path) -> None:
    writer = CheckpointStore(objects, "t").begin_writing("first")
    objects.stay("trials/t/")
    for number in (1, 2, 3):
        save(writer, tmp_path / "work", number, oldest=0)
    for key in [f"trials/t/data/00000003-000001/{place:06d}" for place in range(2)]:
        objects.delete(key)
    restored = CheckpointStore(objects, "t", expected=3).restore(tmp_path / "got")
    assert restored is not None
    assert restored.number == 2


def test_one_that_was_removed_for_newer_ones_is_not_missed(objects: Stale, tmp_path: Path) -> None:
    """The controller knows of 5 alone; 7 and 8 were stored since, and 5 is still listed."""
    store, folder = CheckpointStore(objects, "t"), tmp_path / "work"
    writer = store.begin_writing("first")
    for step in range(1, 6):
        save(writer, folder, step, oldest=0)
    objects.stay("trials/t/")
    for step in range(6, 9):
        save(writer, folder, step, oldest=7 if step == 8 else 0)
    knows = CheckpointStore(objects, "t", expected=5)
    assert [each.step for each in knows.manifests()] == [8, 7]
    assert knows.best("minimize") is None
    restored = knows.restore(tmp_path / "got", skips_missing=False)
    assert restored is not None
    assert restored.step == 8


def test_a_checkpoint_that_was_set_aside_is_not_restored_though_that_is_not_listed(
    objects: Stale, tmp_path: Path
) -> None:
    store = CheckpointStore(objects, "t")
    writer = store.begin_writing("first")
    for step in (1, 2):
        save(writer, tmp_path / "work", step)
    objects.stay("trials/t/aside/")
    store.set_aside(2, "training failed from it")
    restored = store.restore(tmp_path / "got")
    assert restored is not None
    assert restored.step == 1


IDS = ("t", "t-r1")


def test_no_older_whole_checkpoint_is_taken_for_one_that_each_saver_is_known_to_have(
    objects: Stale, tmp_path: Path
) -> None:
    writers = [CheckpointStore(objects, one).begin_writing("m", attempt=1, machines=2) for one in IDS]
    known: dict[str, int] = {}
    for step in (10, 20):
        for rank, writer in enumerate(writers):
            if step == 20 and rank == 1:
                objects.stay("trials/t-r1/")
            known[IDS[rank]] = save(writer, tmp_path / f"work-{rank}", step, oldest=0)
    assert known == {"t": 2, "t-r1": 2}
    whole = newest_whole(objects, IDS, expected=known)
    assert whole is not None
    assert (whole.step, whole.numbers()) == (20, known)
    # Of the second saver's part nothing is there at all: it is not taken for one that saves nothing.
    objects.listed["trials/t-r1/"] = []
    objects.delete("trials/t-r1/manifests/00000002")
    with pytest.raises(LostCheckpointError, match="no checkpoint 2 of trial t-r1, which was stored"):
        newest_whole(objects, IDS, expected=known)
    # Of one that was set aside, nothing is expected.
    objects.listed.clear()
    older = newest_whole(objects, IDS, expected=known, aside=[2])
    assert older is not None
    assert (older.step, older.numbers()) == (10, {"t": 1, "t-r1": 1})


def test_a_rank_that_is_known_to_save_is_not_taken_for_one_that_saves_nothing(
    objects: Stale, tmp_path: Path
) -> None:
    """All that it stored is gone: without it no checkpoint is whole."""
    for rank, trial_id in enumerate(IDS):
        writer = CheckpointStore(objects, trial_id).begin_writing("m", attempt=1, machines=2)
        save(writer, tmp_path / f"work-{rank}", 10, oldest=0)
    objects.delete("trials/t-r1/manifests/00000001")
    assert newest_whole(objects, IDS) is not None
    assert newest_whole(objects, IDS, savers=[0, 1]) is None
