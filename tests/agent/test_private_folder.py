"""A program's own folder: what it reads is the user's, what it writes is its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.runs.cloud_as_told import Clock

from ebbtide.agent import folders
from ebbtide.agent.folders import PrivateFolder, keep_outputs, outputs_id
from ebbtide.errors import StorageError
from ebbtide.storage.checkpoints.store import CheckpointStore, CheckpointWriter
from ebbtide.storage.objects import FolderStore


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "data" / "big.bin").write_bytes(b"0" * 1000)
    (folder / ".ebbtide").mkdir()
    return folder


def left(folder: PrivateFolder) -> list[str]:
    folder.leave_outputs()
    return sorted(path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*") if path.is_file())


def test_of_a_copy_what_is_new_or_changed_is_left(code: Path, tmp_path: Path) -> None:
    private = PrivateFolder(tmp_path / "private", code=code)
    (private.path / "model.pt").write_text("weights")
    (private.path / "train.py").write_text("print(22)\n")
    (private.path / "sub").mkdir()
    (private.path / "sub" / "plot.png").write_text("png")
    (private.path / "__pycache__").mkdir()
    (private.path / "__pycache__" / "x.pyc").write_text("x")
    assert left(private) == ["model.pt", "sub/plot.png", "train.py"]
    assert (code / "train.py").read_text() == "print(1)\n"


def test_links_to_what_is_left_stay_links(code: Path, tmp_path: Path) -> None:
    private = PrivateFolder(tmp_path / "private", linked=code)
    (private.path / "epoch-3.pt").write_text("weights")
    (private.path / "best.pt").symlink_to("epoch-3.pt")
    (private.path / "absolute.pt").symlink_to(private.path / "epoch-3.pt")
    (private.path / "program").symlink_to("train.py")
    (private.path / "elsewhere").symlink_to(tmp_path)
    assert left(private) == ["absolute.pt", "best.pt", "epoch-3.pt"]
    assert (private.path / "best.pt").is_symlink()
    assert (code / "train.py").exists()


def test_links_are_read_through_and_what_is_written_beside_them_is_private(code: Path, tmp_path: Path) -> None:
    private = PrivateFolder(tmp_path / "private", linked=code)
    assert (private.path / "data" / "big.bin").stat().st_size == 1000
    assert not (private.path / ".ebbtide").exists()
    (private.path / "model.pt").write_text("weights")
    os.symlink("model.pt", private.path / "latest.pt")
    assert left(private) == ["latest.pt", "model.pt"]
    assert (code / "data" / "big.bin").exists()
    assert not (code / "model.pt").exists()


def told(why: str) -> None:
    """Nobody is to be told of a refusal."""
    raise AssertionError(why)


def never() -> bool:
    return False


def test_outputs_are_stored_beside_the_checkpoints_unless_they_are_too_large(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path / "objects")
    private = PrivateFolder(tmp_path / "one", code=code)
    (private.path / "model.pt").write_text("weights")
    assert keep_outputs(CheckpointStore(store, outputs_id("t-1")), private, "m", 5, told, never) == ""
    assert CheckpointStore(store, outputs_id("t-1")).restore(tmp_path / "got") is not None
    assert (tmp_path / "got" / "model.pt").read_text() == "weights"
    monkeypatch.setattr(folders, "MOST_OUTPUT_BYTES", 3)
    other = PrivateFolder(tmp_path / "two", code=code)
    (other.path / "model.pt").write_text("weights")
    assert "are not kept" in keep_outputs(CheckpointStore(store, outputs_id("t-2")), other, "m", 5, told, never)
    assert CheckpointStore(store, outputs_id("t-2")).restore(tmp_path / "none") is None
    # Nothing written is nothing stored.
    assert (
        keep_outputs(
            CheckpointStore(store, outputs_id("t-3")),
            PrivateFolder(tmp_path / "three", code=code),
            "m",
            5,
            told,
            never,
        )
        == ""
    )


@pytest.mark.parametrize(("failures", "is_kept"), [(0, True), (1, True), (3, True), (800, True), (1_000, False)])
def test_outputs_are_stored_though_storage_fails_for_some_time(
    failures: int, is_kept: bool, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, they were thrown away after six seconds, and the training counted as finished."""
    clock, said = Clock(), list[str]()
    outputs = CheckpointStore(FolderStore(tmp_path / "objects"), outputs_id("t-1"), clock)
    begin_writing, left_over = outputs.begin_writing, [OSError("storage is away")] * failures

    def fails(machine: str) -> CheckpointWriter:
        if left_over:
            raise left_over.pop()
        return begin_writing(machine)

    monkeypatch.setattr(outputs, "begin_writing", fails)
    private = PrivateFolder(tmp_path / "one", code=code)
    (private.path / "model.pt").write_text("weights")
    if is_kept:
        assert keep_outputs(outputs, private, "m", 5, said.append, never) == ""
    else:
        with pytest.raises(StorageError, match="are not kept: storage is away"):
            keep_outputs(outputs, private, "m", 5, said.append, never)
    assert (outputs.restore(tmp_path / "got") is not None) is is_kept
    assert said == ["storage is away"] * (failures >= 3)
    assert clock.now_s == (2.0 * failures if is_kept else 1_800.0)


def test_outputs_that_nobody_waits_for_any_more_are_given_up(code: Path, tmp_path: Path) -> None:
    outputs = CheckpointStore(FolderStore(tmp_path / "objects"), outputs_id("t-1"), Clock())
    (tmp_path / "objects").write_text("no folder")
    private = PrivateFolder(tmp_path / "one", code=code)
    (private.path / "model.pt").write_text("weights")
    with pytest.raises(StorageError):
        keep_outputs(outputs, private, "m", 5, told, lambda: True)


def test_a_link_that_leads_to_itself_is_no_output(code: Path, tmp_path: Path) -> None:
    """Before, its machine was held and paid for ever once the program had ended."""
    private = PrivateFolder(tmp_path / "one", code=code)
    (private.path / "model.pt").write_text("weights")
    (private.path / "best.pt").symlink_to("best.pt")
    assert left(private) == ["model.pt"]
