import os
import stat
from pathlib import Path

import pytest

from ebbtide.base.files import replacing, write_text
from ebbtide.errors import InputError


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    write_text(path, "old")
    with pytest.raises(RuntimeError, match="disk full"), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError("disk full")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["out.txt"]


def test_a_write_makes_folders_and_a_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.txt"
    write_text(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & stat.S_IRUSR
    assert [file.name for file in path.parent.iterdir()] == ["b.txt"]


def test_the_umask_is_not_changed_even_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may write a secret in that moment."""
    umask = os.umask(0o027)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "umask", lambda _: pytest.fail("the umask was changed"))
            write_text(tmp_path / "x", "x")
        assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(umask)


def test_what_cannot_be_written_is_told_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file: is a file; .*file/a/b.txt needs a folder there"):
        write_text(tmp_path / "file" / "a" / "b.txt", "x")
    with pytest.raises(OSError, match="/proc/b.txt") as told:
        write_text("/proc/b.txt", "x")
    assert told.value.filename == "/proc/b.txt"
