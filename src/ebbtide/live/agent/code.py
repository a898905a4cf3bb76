"""The user's code, packed once by the controller and unpacked on each machine."""

from __future__ import annotations

import gzip
import io
import logging
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from ebbtide.errors import InputError
from ebbtide.live.storage import ObjectStore

_LOGGER = logging.getLogger(__name__)

# More is data, which has its own place in storage.
MOST_BYTES = 100 << 20

_LEFT_OUT = frozenset({"__pycache__", "node_modules"})


def packed(folder: Path) -> bytes:
    """All files below a folder but hidden ones, as a compressed archive; the same files give the same bytes.

    Raises:
        InputError: They are more than 100 MiB, or a link among them leads to a file that would not be sent itself.
    """
    files = list(_code_files(folder))
    total = sum(path.stat().st_size for path in files)
    if total > MOST_BYTES:
        largest = max(files, key=lambda path: path.stat().st_size)
        raise InputError(
            f"holds {total / (1 << 20):.0f} MiB, and {MOST_BYTES >> 20} are sent to each machine at most; put "
            f"data into storage (the largest file is {largest.relative_to(folder)})",
            file=folder,
        )
    buffer = io.BytesIO()
    zipped = gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0)
    with zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for path in files:
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size, entry.mode = path.stat().st_size, 0o700 if path.stat().st_mode & 0o100 else 0o600
            with path.open("rb") as content:
                tar.addfile(entry, content)
    return buffer.getvalue()


def unpack(objects: ObjectStore, key: str, into: Path) -> None:
    """Fetch an archive and unpack it into a folder, whole or not at all.

    Raises:
        OSError: Storage does not answer.
        tarfile.TarError: It is no such archive, or would write outside the folder.
    """
    if into.exists():
        return
    content = io.BytesIO(objects.get(key))
    with tempfile.TemporaryDirectory(dir=into.parent, ignore_cleanup_errors=True) as part:
        whole = Path(part) / "code"
        whole.mkdir()
        with tarfile.open(fileobj=content, mode="r:gz") as tar:
            _check_members(tar)
            safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(whole, **safe)
        whole.rename(into)


def _check_members(tar: tarfile.TarFile) -> None:
    """What `packed` makes has plain files only. Not every Python 3.10 has the filter that would say so."""
    for member in tar:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isreg() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is no plain file inside the folder of the code")


def _code_files(folder: Path) -> Iterator[Path]:
    home = folder.resolve()
    for path in sorted(folder.rglob("*")):
        below = path.relative_to(folder)
        if not _is_code(below):
            continue
        if path.is_symlink() and path.is_dir():
            _LOGGER.warning("%s is a link to a folder, and is not sent to machines", path)
        elif path.is_file():
            if _leads_out(path, home):
                raise InputError(
                    f"{below} is a link to {os.readlink(path)}, which is no code of this folder and would be sent "
                    "to machines; put a copy in its place, or the data into storage",
                    file=folder,
                )
            yield path


def _leads_out(path: Path, home: Path) -> bool:
    """Whether a link, or one that it leads to, ends outside of the folder or at what is hidden there."""
    if not path.is_symlink():
        return False
    target = path.resolve()
    return not target.is_relative_to(home) or not _is_code(target.relative_to(home))


def _is_code(path: Path) -> bool:
    return not any(part.startswith(".") or part in _LEFT_OUT for part in path.parts)
