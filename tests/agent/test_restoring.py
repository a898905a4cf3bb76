"""Restoring where storage is lost from sight, lacks a part for good, or this machine's disk is too small."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.runs.cloud_as_told import Clock

from ebbtide.agent import restoring
from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.errors import MissingObjectError
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.checkpoints.whole import newest_whole
from ebbtide.storage.objects import FolderStore


class WatchedStore(FolderStore):
    """A folder of which a test sees each download before it begins."""

    on_download: Callable[[str], None] = staticmethod(lambda _key: None)

    def get_file(self, key: str, path: Path) -> None:
        self.on_download(key)
        super().get_file(key, path)


class Machine:
    """A machine with a virtual clock, and a training that has stored some checkpoints."""

    def __init__(self, folder: Path, trial_ids: tuple[str, ...] = ("run-000",), steps: int = 3) -> None:
        self.folder, self.clock, self.mount = folder, Clock(), folder / "mount"
        self.objects = WatchedStore(self.mount)
        self.said: list[str] = []
        for trial_id in trial_ids:
            writer = CheckpointStore(FolderStore(self.mount), trial_id).begin_writing(
                "m0", attempt=1, machines=len(trial_ids)
            )
            for step in range(100, 100 * steps + 1, 100):
                (folder / "saved").mkdir(exist_ok=True)
                (folder / "saved" / "weights").write_bytes(str(step).encode() * 200_000)
                writer.save(folder / "saved", step, keep=9)

    def restored(self, assignment: Assignment, until_s: float = 1e6) -> restoring.Restoration:
        found = restoring.restored(
            AgentConfig("run", "m1", str(self.mount), str(self.folder)),
            SimpleNamespace(objects=self.objects, runtime=self.clock),  # type: ignore[arg-type]
            assignment,
            self.folder / "checkpoint",
            self.folder / "code",
            is_over=lambda: self.clock.now_s > until_s,
            say=self.said.append,
        )
        assert found is not None
        return found

    def part(self, trial_id: str, number: int) -> Path:
        """The file of a checkpoint's content."""
        (found,) = (self.mount / "trials" / trial_id / "data").glob(f"{number:08d}*/*")
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


KNOWN = Assignment("run-000", ("true",), 1000, "", attempt=2, expected=3)


def test_a_store_that_is_unmounted_during_the_download_is_waited_for(machine: Machine) -> None:
    """Before, training began again at 0, and its next checkpoints replaced those that were there."""
    away = machine.folder / "away"

    def drop(_key: str) -> None:
        if machine.clock.now_s == 0.0 and not away.exists():
            machine.mount.rename(away)
            machine.mount.mkdir()

    def sleep(duration_s: float) -> None:
        machine.clock.now_s += duration_s
        if machine.clock.now_s >= 60.0 and away.exists():
            machine.mount.rmdir()
            away.rename(machine.mount)

    machine.objects.on_download = drop
    machine.clock.sleep = sleep  # type: ignore[method-assign]
    found = machine.restored(KNOWN)
    assert found.manifest is not None
    assert (found.manifest.number, found.problem) == (3, "")
    assert (machine.folder / "checkpoint" / "weights").read_bytes() == b"300" * 200_000
    assert machine.clock.now_s >= 60.0
    assert "is missing" in machine.said[0]
    assert "is it mounted?" in machine.said[1]


def test_an_object_that_is_missing_for_a_moment_costs_no_step(machine: Machine) -> None:
    def miss(key: str) -> None:
        if machine.clock.now_s < 2.0:
            raise MissingObjectError(key)

    machine.objects.on_download = miss
    found = machine.restored(KNOWN)
    assert found.manifest is not None
    assert found.manifest.number == 3


def test_a_part_that_is_gone_for_good_costs_the_steps_since_the_checkpoint_before(machine: Machine) -> None:
    machine.part("run-000", 3).unlink()
    found = machine.restored(KNOWN)
    assert found.manifest is not None
    assert (found.manifest.number, found.problem) == (2, "")
    assert 300.0 <= machine.clock.now_s < 400.0


def test_a_checkpoint_that_is_gone_for_good_costs_the_steps_since_the_one_before(machine: Machine) -> None:
    (machine.mount / "trials/run-000/manifests/00000003").unlink()
    found = machine.restored(KNOWN)
    assert found.manifest is not None
    assert found.writer is not None
    assert (found.manifest.number, found.problem) == (2, "")
    assert 300.0 <= machine.clock.now_s < 400.0
    # Should it come back, it is not taken for another.
    assert found.writer.save(machine.folder / "checkpoint", 250).number == 4


def test_storage_that_has_no_checkpoint_at_all_is_the_machine_s_problem(machine: Machine) -> None:
    machine.mount.rename(machine.folder / "away")
    machine.mount.mkdir()
    found = machine.restored(KNOWN)
    assert found.writer is None
    assert found.of_machine
    assert "is it mounted?" in found.problem


@pytest.mark.long
def test_a_training_of_which_every_checkpoint_lacks_its_content_fails(machine: Machine) -> None:
    for number in (1, 2, 3):
        machine.part("run-000", number).unlink()
    found = machine.restored(KNOWN)
    assert found.writer is None
    assert "weights of checkpoint 1 of trial run-000 is missing" in found.problem


@pytest.mark.long
@pytest.mark.parametrize("of_manifest", [False, True])
def test_a_damaged_checkpoint_is_read_again_before_it_is_skipped(machine: Machine, of_manifest: bool) -> None:
    """Of a store without checksums, an answer may be cut off, and the next one whole."""
    part = machine.mount / "trials/run-000/manifests/00000003" if of_manifest else machine.part("run-000", 3)
    whole = part.read_bytes()
    part.write_bytes(whole[:-9])
    passes = machine.clock.sleep

    def heal(duration_s: float) -> None:
        passes(duration_s)
        if machine.clock.now_s >= 200.0:
            part.write_bytes(whole)

    machine.clock.sleep = heal  # type: ignore[method-assign]
    found = machine.restored(KNOWN)
    assert found.manifest is not None
    assert (found.manifest.number, found.problem) == (3, "")
    assert ["asked again" in line for line in machine.said] == [True]
    machine.clock.sleep = passes  # type: ignore[method-assign]
    part.write_bytes(whole[:-9])
    began_s = machine.clock.now_s
    found = machine.restored(KNOWN)
    assert found.manifest is not None
    assert found.manifest.number == 2
    assert 300.0 <= machine.clock.now_s - began_s < 310.0


@pytest.mark.parametrize("damaged_read", range(1, 5))
def test_no_single_damaged_read_costs_a_step(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, damaged_read: int
) -> None:
    """A manifest is read several times, and any of these answers may be cut off."""
    get, reads = FolderStore.get, iter(range(1, 1_000))

    def cut(store: FolderStore, key: str) -> bytes:
        content = get(store, key)
        if key.endswith("manifests/00000003") and next(reads) == damaged_read:
            return content[:-9]
        return content

    monkeypatch.setattr(FolderStore, "get", cut)
    found = machine.restored(KNOWN)
    assert found.manifest is not None
    assert found.writer is not None
    assert (found.manifest.number, found.problem, found.writer.kept) == (3, "", {2, 3})


@pytest.mark.long
@pytest.mark.parametrize("of_manifest", [False, True])
def test_a_training_of_which_every_checkpoint_is_damaged_does_not_begin_again(
    machine: Machine, of_manifest: bool
) -> None:
    """Before, it began at 0 without a word, and its next checkpoints replaced those that were there."""
    for number in (1, 2, 3):
        manifest = machine.mount / f"trials/run-000/manifests/{number:08d}"
        part = manifest if of_manifest else machine.part("run-000", number)
        part.write_bytes(part.read_bytes()[:-9])
    found = machine.restored(KNOWN)
    assert (found.writer, found.manifest) == (None, None)
    said = "no checkpoint of trial run-000 can be read" if of_manifest else "is not what was saved"
    assert said in found.problem


def test_a_part_of_a_gang_that_is_missing_for_a_moment_is_not_set_aside(tmp_path: Path) -> None:
    ids = ("run-000", "run-000-r1")
    machine = Machine(tmp_path, ids, steps=2)

    def miss(key: str) -> None:
        if machine.clock.now_s < 2.0:
            raise MissingObjectError(key)

    machine.objects.on_download = miss
    resume = tuple((trial_id, 2) for trial_id in ids)
    found = machine.restored(Assignment(ids[0], ("true",), 1000, "", attempt=2, resume=resume))
    assert found.manifest is not None
    assert found.manifest.step == 200
    whole = newest_whole(machine.objects, ids)
    assert whole is not None
    assert whole.step == 200


def test_a_part_of_a_gang_that_is_damaged_for_a_moment_is_not_set_aside(tmp_path: Path) -> None:
    """Before, one answer that was cut off set it aside for good, and the gang began at 0."""
    ids = ("run-000", "run-000-r1")
    machine = Machine(tmp_path, ids, steps=1)
    part = machine.part(ids[1], 1)
    whole = part.read_bytes()
    part.write_bytes(whole[:-9])
    passes = machine.clock.sleep

    def heal(duration_s: float) -> None:
        passes(duration_s)
        part.write_bytes(whole)

    machine.clock.sleep = heal  # type: ignore[method-assign]
    resume = ((ids[1], 1),)
    assert machine.restored(Assignment(ids[1], ("true",), 1000, "", attempt=2, resume=resume)).manifest is not None
    assert CheckpointStore(machine.objects, ids[1]).aside() == set()


def test_a_machine_all_of_whose_parts_are_set_aside_has_saved_all_the_same(tmp_path: Path) -> None:
    """Before, its checkpoint counted as whole without it, and it got another machine's part."""
    ids = ("run-000", "run-000-r1")
    machine = Machine(tmp_path, ids, steps=2)
    for number in (1, 2):
        CheckpointStore(machine.objects, ids[0]).set_aside(number, "damaged")
    assert newest_whole(machine.objects, ids) is None


def test_a_part_of_a_gang_that_is_gone_for_good_is_set_aside(tmp_path: Path) -> None:
    ids = ("run-000", "run-000-r1")
    machine = Machine(tmp_path, ids, steps=2)
    machine.part(ids[1], 2).unlink()
    resume = tuple((trial_id, 2) for trial_id in ids)
    found = machine.restored(Assignment(ids[0], ("true",), 1000, "", attempt=2, resume=resume))
    assert (found.writer, "is missing" in found.problem) == (None, True)
    assert 300.0 <= machine.clock.now_s < 400.0
    assert CheckpointStore(machine.objects, ids[1]).aside() == {2}
    whole = newest_whole(machine.objects, ids)
    assert whole is not None
    assert whole.step == 100


def test_a_store_that_is_full_is_waited_for(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    put_once = FolderStore.put_once

    def full(store: FolderStore, key: str, content: bytes) -> bool:
        if machine.clock.now_s < 1_200.0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return put_once(store, key, content)

    monkeypatch.setattr(FolderStore, "put_once", full)
    found = machine.restored(KNOWN)
    assert found.manifest is not None
    assert found.manifest.number == 3
    assert machine.said == ["ebbtide: storage does not answer: [Errno 28] No space left on device; asked again"]
    assert machine.clock.now_s >= 1_200.0


def test_a_disk_that_is_too_small_is_told_and_ends_the_training(machine: Machine) -> None:
    """Before, the machine was paid to the budget's end, and nobody was told."""
    downloads: list[str] = []

    def fill(key: str) -> None:
        downloads.append(key)
        raise OSError(errno.ENOSPC, "No space left on device")

    machine.objects.on_download = fill
    found = machine.restored(KNOWN)
    assert found.writer is None
    assert "the machine's disk is too small" in found.problem
    assert ["asked again" in line for line in machine.said] == [True]
    assert 300.0 <= machine.clock.now_s < 400.0
    assert len(downloads) < 20
    # One claim of the writer that saved, and one of all tries.
    assert CheckpointStore(machine.objects, "run-000").numbers("writers") == {1, 2}


def test_a_checkpoint_that_could_not_be_read_while_the_best_was_chosen_stays(tmp_path: Path) -> None:
    """Before, the best checkpoint was removed at the next save."""
    objects, saved = FolderStore(tmp_path / "store"), tmp_path / "saved"
    saved.mkdir()
    store = CheckpointStore(objects, "run-000")
    writer = store.begin_writing("m0")
    writer.kept = frozenset({1})
    for number in (1, 2, 3):
        (saved / "w").write_text(str(number))
        writer.save(saved, number, keep=2, metric=0.1 if number == 1 else 0.5)
    config = AgentConfig("run", "m1", str(tmp_path / "store"), str(tmp_path))
    reads: list[str] = []
    get = objects.get

    def unreadable(key: str) -> bytes:
        reads.append(key)
        is_first = key.endswith("manifests/00000001") and reads.count(key) <= 2
        return get(key)[:9] if is_first else get(key)

    objects.get = unreadable  # type: ignore[method-assign]
    machine: Any = SimpleNamespace(objects=objects, runtime=Clock())
    found = restoring.restored(
        config,
        machine,
        Assignment("run-000", ("true",), 100, "", attempt=2, expected=3, direction="minimize"),
        tmp_path / "checkpoint",
        tmp_path / "code",
        is_over=lambda: False,
        say=lambda _: None,
    )
    assert found is not None
    assert found.writer is not None
    for number in (4, 5, 6):
        (saved / "w").write_text(str(number))
        found.writer.save(saved, number, keep=2, metric=0.5)
    best = store.best("minimize")
    assert best is not None
    assert best.number == 1


def test_a_gang_keeps_what_cannot_be_read_as_it_begins(tmp_path: Path) -> None:
    """Before, its best checkpoint was removed two saves after its manifest could not be read for a while."""
    machine = Machine(tmp_path, ("run-000", "run-000-r1"))
    manifest = tmp_path / "mount" / "trials" / "run-000" / "manifests" / "00000001"
    content = manifest.read_bytes()
    manifest.write_bytes(content[:40])
    found = machine.restored(replace(KNOWN, expected=0, resume=(("run-000", 3),)))
    manifest.write_bytes(content)
    assert found.writer is not None
    assert found.writer.unread == {1}
    folder = tmp_path / "checkpoint"
    for step in (400, 500):
        (folder / "weights").write_text(str(step))
        newest = found.writer.save(folder, step, keep=0, oldest=0 if step == 400 else 4)
    assert {each.number for each in CheckpointStore(machine.objects, "run-000").manifests()} >= {1, newest.number}
