"""Folders come back as they were: hidden files, links, hard links, empty folders, permissions, times and holes."""

from __future__ import annotations

import hashlib
import os
import socket
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import InputError
from ebbtide.storage.checkpoints.manifest import Manifest, StoredFile, StoredLink
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.checkpoints.tree import copy_tree, kept_target, remove_tree, tree_of
from ebbtide.storage.objects import FolderStore

NAMES = st.sampled_from(["a", ".metadata", "step-4", "Ünïcode 模型", "b\nc", os.fsdecode(b"\xff\xfe"), "x" * 200])
CONTENTS = st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"x" * 300_000, b"y" * 700_000]))


class Counted(FolderStore):
    """Storage that counts what is uploaded."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.uploads, self.uploaded_bytes = 0, 0

    def put_file(self, key: str, path: Path) -> None:
        self.uploads += 1
        # Before the sum is read: other threads add to it.
        size_bytes = path.stat().st_size
        self.uploaded_bytes += size_bytes
        super().put_file(key, path)


def described(folder: Path) -> dict[str, tuple[object, ...]]:
    """All that there is to say of a folder's entries, by another way than the code under test."""
    found: dict[str, tuple[object, ...]] = {}
    names: dict[int, str] = {}
    for root, folders, files in os.walk(folder):
        for name in sorted([*folders, *files]):
            path = Path(root) / name
            about, where = path.lstat(), os.path.relpath(path, folder)
            if path.is_symlink():
                found[where] = ("link", os.readlink(path))
            elif path.is_dir():
                found[where] = ("folder", about.st_mode, about.st_mtime_ns)
            else:
                found[where] = ("file", about.st_mode, about.st_mtime_ns, path.read_bytes())
                if about.st_nlink > 1:
                    found[where] = (*found[where], names.setdefault(about.st_ino, where))
    return found


def restored(folder: Path, place: Path, *, step: int = 1) -> Path:
    store = CheckpointStore(FolderStore(place / "objects"), "t")
    store.begin_writing("me").save(folder, step)
    store.restore(place / "there")
    return place / "there"


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_folder_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    place = tmp_path_factory.mktemp("any")
    folder = place / "here"
    folder.mkdir()
    folders: list[Path] = [folder]
    files: list[Path] = []
    for name in data.draw(st.lists(NAMES, max_size=4)):
        below = data.draw(st.sampled_from(folders)) / name
        if not os.path.lexists(below):
            below.mkdir()
            folders.append(below)
    for name, content in data.draw(st.lists(st.tuples(NAMES, CONTENTS), max_size=5)):
        path = data.draw(st.sampled_from(folders)) / f"{name}.f"
        if not os.path.lexists(path):
            path.write_bytes(content)
            path.chmod(data.draw(st.sampled_from([0o600, 0o644, 0o755, 0o444])))
            files.append(path)
    for name in data.draw(st.lists(NAMES, max_size=3)):
        link = data.draw(st.sampled_from(folders)) / f"{name}.l"
        leads_to = data.draw(st.sampled_from([*folders, *files, folder / "nothing", Path("/nowhere")]))
        if not os.path.lexists(link):
            inside = leads_to.is_relative_to(folder)
            link.symlink_to(os.path.relpath(leads_to, link.parent) if inside else leads_to)
    has_second_name = data.draw(st.booleans())
    if files and has_second_name:
        (folder / "second name").hardlink_to(files[0])
    for path in [*files, *folders[1:]]:
        time_ns = data.draw(st.integers(10**18, 2 * 10**18))
        os.utime(path, ns=(time_ns, time_ns))
    before = described(folder)
    assert described(restored(folder, place)) == before
    tree = tree_of(folder)
    assert tree is not None
    copy_tree(tree, folder, place / "copy")
    assert described(place / "copy") == before
    copy_tree(tree, folder, place / "again", tree, place / "copy")
    assert {path: value[:4] for path, value in described(place / "again").items()} == {
        path: value[:4] for path, value in before.items()
    }


def test_links_stay_links_and_those_to_the_folder_itself_lead_to_the_new_one(tmp_path: Path) -> None:
    """An absolute link, also one by the name that the program knows, leads to the same entry on another machine."""
    folder, known = tmp_path / "here", tmp_path / "program" / "ckpt"
    (folder / "step-16").mkdir(parents=True)
    (folder / "step-16/model").write_text("16")
    known.parent.mkdir()
    known.symlink_to(folder)
    (folder / "latest").symlink_to("step-16")
    (folder / "absolute").symlink_to(folder / "step-16")
    (folder / "by-its-name").symlink_to(known / "step-16/model")
    (folder / "itself").symlink_to(known)
    (folder / "outside").symlink_to("/etc/hostname")
    (folder / "gone").symlink_to("step-8")
    there = restored(folder, tmp_path)
    targets = {path.name: os.readlink(path) for path in there.iterdir() if path.is_symlink()}
    assert targets == {
        "latest": "step-16",
        "absolute": "step-16",
        "by-its-name": "step-16/model",
        "itself": ".",
        "outside": "/etc/hostname",
        "gone": "step-8",
    }
    remove_tree(folder)
    assert (there / "by-its-name").read_text() == "16"


@pytest.mark.parametrize(
    ("target", "kept"), [("../up", "../up"), ("/etc", "/etc"), ("{}/a/../b", "../b"), ("{}", ".."), ("{}x", "{}x")]
)
def test_targets_inside_are_relative_and_others_are_as_they_were(tmp_path: Path, target: str, kept: str) -> None:
    (tmp_path / "a").mkdir()
    assert kept_target(tmp_path, "a/link", target.format(tmp_path)) == kept.format(tmp_path)


def test_holes_are_neither_stored_nor_filled(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    sparse = folder / "memmap"
    with sparse.open("wb") as file:
        file.seek(1 << 30)
        file.write(b"the end" * 100_000)
        file.seek(1 << 20)
        file.write(b"in the middle")
        file.truncate(1 << 31)
    (folder / "empty").touch()
    os.truncate(folder / "empty", 1 << 30)
    if sparse.stat().st_blocks * 512 > 1 << 28:
        pytest.skip("the file system has no holes")
    objects = Counted(tmp_path / "objects")
    store = CheckpointStore(objects, "t")
    store.begin_writing("me").save(folder, 1)
    assert objects.uploaded_bytes < 1 << 21
    store.restore(tmp_path / "there")
    for name in ("memmap", "empty"):
        about = (tmp_path / "there" / name).stat()
        assert about.st_size == (folder / name).stat().st_size
        assert about.st_blocks * 512 < 1 << 21
    with (tmp_path / "there/memmap").open("rb") as file:
        file.seek(1 << 20)
        assert file.read(13) == b"in the middle"
        file.seek(1 << 30)
        assert file.read(700_000) == b"the end" * 100_000
    tree = tree_of(folder)
    assert tree is not None
    copy_tree(tree, folder, tmp_path / "copy")
    assert (tmp_path / "copy/memmap").stat().st_blocks * 512 < 1 << 21


def test_what_has_no_content_is_left_out_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "model").write_text("1")
    os.mkfifo(folder / "pipe")
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        writer = CheckpointStore(FolderStore(tmp_path / "objects"), "t").begin_writing("me")
        writer.save(folder, 1)
    assert writer.left_out == (
        ("pipe", "is a named pipe, which has no content to store"),
        ("socket", "is a socket, which has no content to store"),
    )


def test_what_may_not_be_read_is_left_out_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, nothing was ever stored, and the machine was kept, and paid for, after the program had ended."""
    folder = tmp_path / "here"
    (folder / "closed").mkdir(parents=True)
    for name in ("model", "db.lock", "closed/inside"):
        (folder / name).write_text("1")
    (folder / "db.lock").chmod(0)
    (folder / "closed").chmod(0)
    # These tests may be run by root, who may read everything.
    monkeypatch.setattr(os, "access", lambda path, _mode, **_: Path(path).stat().st_mode & 0o444 != 0)
    writer = CheckpointStore(FolderStore(tmp_path / "objects"), "t").begin_writing("me")
    manifest = writer.save(folder, 1)
    assert [file.path for file in manifest.files] == ["model"]
    assert writer.left_out == (
        ("closed", "may not be read by Ebbtide's agent: its mode is d---------"),
        ("db.lock", "may not be read by Ebbtide's agent: its mode is ----------"),
    )
    (folder / "closed").chmod(0o700)


def test_a_checkpoint_that_lacks_a_file_replaces_none_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in a container may write its weights for itself alone; before, the good ones were removed."""
    monkeypatch.setattr(os, "access", lambda path, _mode, **_: Path(path).stat().st_mode & 0o444 != 0)
    folder, objects = tmp_path / "here", FolderStore(tmp_path / "objects")
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    writer = CheckpointStore(objects, "t").begin_writing("me")
    for step in range(1, 4):
        (folder / "weights").write_text(f"of {step}")
        writer.save(folder, step)
    for step in range(4, 8):
        (folder / "weights").unlink()
        (folder / "weights").write_text(f"of {step}")
        (folder / "weights").chmod(0)
        assert writer.save(folder, step).unreadable == ("weights",)
    # Another machine knows it from the manifest.
    store = CheckpointStore(objects, "t")
    writer = store.begin_writing("another")
    writer.save(folder, 8)
    assert [each.step for each in store.manifests()] == [8, 7, 3]
    store.fetch(store.manifest(3), tmp_path / "got")
    assert (tmp_path / "got" / "weights").read_text() == "of 3"
    # Training fails from the newest that has it: the one before is kept.
    store.set_aside(3, "training failed from it")
    (folder / "weights").chmod(0o644)
    for step in (9, 10):
        writer.save(folder, step, keep=9)
    store.set_aside(10, "training failed from it")
    (folder / "weights").chmod(0)
    for step in (11, 12):
        writer.save(folder, step)
    assert [each.step for each in store.manifests()] == [12, 11, 9]


def test_folders_that_may_not_be_written_to_come_back_and_can_be_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    (folder / "closed").mkdir(parents=True)
    (folder / "closed/model").write_text("1")
    (folder / "closed").chmod(0o555)
    there = restored(folder, tmp_path)
    assert (there / "closed").stat().st_mode & 0o777 == 0o555
    assert (restored(folder, tmp_path, step=2) / "closed/model").read_text() == "1"


def test_what_has_not_changed_is_not_uploaded_again(tmp_path: Path) -> None:
    folder, objects = tmp_path / "here", Counted(tmp_path / "objects")
    folder.mkdir()
    store = CheckpointStore(objects, "t")
    writer = store.begin_writing("me")
    large = os.urandom(1 << 20)
    (folder / "embedding").write_bytes(large)
    for number in range(300):
        (folder / f"{number}.small").write_text(f"{number}")
    writer.save(folder, 1)
    assert objects.uploads == 2  # the large file, and all small ones together
    objects.uploaded_bytes = 0
    for step in range(2, 6):
        # Written again with the same content, and renamed: neither is new content.
        (folder / "embedding").unlink(missing_ok=True)
        (folder / f"embedding-{step - 1}").unlink(missing_ok=True)
        (folder / f"embedding-{step}").write_bytes(large)
        (folder / "7.small").write_text(f"changed at {step}")
        writer.save(folder, step)
    assert objects.uploaded_bytes == 4 * len("changed at 2")
    store.restore(tmp_path / "there")
    assert described(tmp_path / "there") == described(folder)
    # Of older checkpoints only what the two that are kept need is still there.
    keys = list(objects.keys("trials/"))
    assert Counter(key.split("/")[2] for key in keys) == {"data": 4, "manifests": 2, "writers": 1}


def test_files_of_one_length_and_other_content_are_uploaded(tmp_path: Path) -> None:
    folder, objects = tmp_path / "here", Counted(tmp_path / "objects")
    folder.mkdir()
    writer = CheckpointStore(objects, "t").begin_writing("me")
    for step in range(1, 4):
        (folder / "model").write_bytes(bytes([step]) * (1 << 20))
        writer.save(folder, step)
    assert objects.uploaded_bytes == 3 << 20


def test_the_first_moment_of_1970_is_a_time_of_change(tmp_path: Path) -> None:
    """Files made to be the same each time have it."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "run.sh").write_text("#!/bin/sh")
    (folder / "run.sh").chmod(0o755)
    os.utime(folder / "run.sh", ns=(0, 0))
    about = (restored(folder, tmp_path) / "run.sh").stat()
    assert (about.st_mode & 0o777, about.st_mtime_ns) == (0o755, 0)


def test_links_keep_their_times_in_a_copy(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "latest").symlink_to("step-8")
    os.utime(folder / "latest", ns=(10**18, 10**18), follow_symlinks=False)
    tree = tree_of(folder)
    assert tree is not None
    copy_tree(tree, folder, tmp_path / "copy")
    assert (restored(tmp_path / "copy", tmp_path) / "latest").lstat().st_mtime_ns == 10**18


def test_checkpoints_of_former_versions_are_restored(tmp_path: Path) -> None:
    objects = FolderStore(tmp_path / "objects")
    store = CheckpointStore(objects, "t")
    (tmp_path / "a").write_text("model")
    objects.put_file(store.data_key(1, 1, 0), tmp_path / "a")
    checksum = hashlib.blake2b(b"model", digest_size=16).hexdigest()
    old = Manifest("t", 1, 1, 7, 0.0, (StoredFile("deep/a", 5, checksum),), algorithm="blake2b-128")
    objects.put_once("trials/t/manifests/00000001", old.encode())
    assert store.restore(tmp_path / "there") == old
    assert (tmp_path / "there/deep/a").read_text() == "model"


@pytest.mark.parametrize(
    "manifest",
    [
        Manifest("t", 1, 1, 1, 0.0, (StoredFile("a/b", 1, "0"),), links=(StoredLink("a", "/etc"),)),
        Manifest("t", 1, 1, 1, 0.0, (StoredFile("a", 1, "0"),), links=(StoredLink("a", "b"),)),
        Manifest("t", 1, 1, 1, 0.0, (StoredFile("a", 1, "0", part="../../x"),)),
        Manifest("t", 1, 1, 1, 0.0, (StoredFile("a", 1, "0", same_as="b"),)),
        Manifest("t", 1, 1, 1, 0.0, (StoredFile("a", 1, "0", mode=0o4755),)),
        Manifest("t", 1, 1, 1, 0.0, (StoredFile("a", 9, "0", extents=((4, 4), (2, 1))),)),
        Manifest("t", 1, 1, 1, 0.0, (StoredFile("a", 9, "0", extents=((4, 6),)),)),
        Manifest("t", 1, 1, 1, 0.0, (), links=(StoredLink("../a", "b"),)),
        Manifest("t", 1, 1, 1, 0.0, (StoredFile("./a", 1, "0"),)),
        Manifest("t", 1, 1, 1, 0.0, (), metric=float("inf")),
    ],
)
def test_manifests_that_lead_out_of_the_folder_or_contradict_themselves_are_damaged(manifest: Manifest) -> None:
    with pytest.raises(InputError, match="manifest is damaged"):
        Manifest.decode(manifest.encode())
