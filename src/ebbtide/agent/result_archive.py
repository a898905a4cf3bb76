"""The archive of the files that a task of an array wrote: made on its machine, unpacked where they are wanted."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ebbtide.errors import StorageError
from ebbtide.storage.checkpoints.tree import is_readable

_KINDS = (*tarfile.REGULAR_TYPES, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE)


class DamagedResultError(StorageError):
    """A task's stored result is damaged: it differs from what was written."""


def pack(folder: Path, archive: Path) -> tuple[int, list[str]]:
    """Write everything below a folder into a new archive, a gzipped tar.

    Hard links become separate files. Symbolic links are kept if they lead to something below the folder; nothing
    outside it is read.

    Returns:
        The number of entries, and what is left out, each with the reason.
    """
    count, left_out = 0, []
    # The same files give the same bytes: a result whose record is written again has the same archive.
    with (
        archive.open("wb") as written,
        gzip.GzipFile(filename="", fileobj=written, mode="wb", compresslevel=1, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        # Links come last, so that nothing is ever written through one.
        for path in sorted(_below(folder), key=lambda path: (path.is_symlink(), path)):
            name = path.relative_to(folder).as_posix()
            if path.is_symlink():
                to = _within(folder, path)
                if to is None:
                    left_out.append(f"{name}: a link to something outside the folder of results")
                    continue
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, to
                tar.addfile(entry)
            elif (path.is_dir() or path.is_file()) and not is_readable(path, is_folder=path.is_dir()):
                left_out.append(f"{name}: Ebbtide's agent may not read it")
                continue
            elif path.is_dir():
                tar.add(path, name, recursive=False)
            elif path.is_file():
                with path.open("rb") as file:
                    entry = tar.gettarinfo(arcname=name, fileobj=file)
                    # Otherwise a hard link would be written as a link to the first name.
                    entry.type, entry.linkname = tarfile.REGTYPE, ""
                    entry.size = os.fstat(file.fileno()).st_size
                    tar.addfile(entry, file)
            else:
                left_out.append(f"{name}: neither a file nor a folder")
                continue
            count += 1
    return count, left_out


def unpack(archive: Path, into: Path, task: int) -> None:
    """Unpack what `pack` wrote into an existing folder, with times of change and permissions.

    Raises:
        DamagedResultError: The archive holds something else, or a name or link that leads outside the folder.
    """
    folders, links = [], []
    with tarfile.open(archive) as tar:
        for member in tar:
            if not _is_plain(member.name) or not (
                member.isdir() or member.isreg() or member.islnk() or member.issym()
            ):
                raise DamagedResultError(
                    f"the archive of task {task} holds {member.name!r}, which is no file of a task"
                )
            if member.isdir():
                (into / member.name).mkdir(parents=True, exist_ok=True)
                folders.append(member)
            elif member.issym():
                links.append(member)
            else:
                _write(tar, member, into / member.name, task)
    for member in links:
        target = into / member.name
        target.parent.mkdir(parents=True, exist_ok=True)
        # The text of a link that leads through other links does not show whether it stays inside.
        place = target.parent.resolve() / member.linkname
        if os.path.isabs(member.linkname) or not place.resolve().is_relative_to(into.resolve()):
            raise DamagedResultError(
                f"the archive of task {task} holds the link {member.name!r}, which leads outside"
            )
        target.symlink_to(member.linkname)
    # Inner folders first: a change within a folder may change its time.
    for member in reversed(folders):
        _as_it_was(into / member.name, member, 0o700)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, task: int) -> None:
    try:
        source = tar.extractfile(member)
    except KeyError:
        source = None
    if source is None:
        raise DamagedResultError(f"the archive of task {task} lacks the content of {member.name!r}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(source, file)
    _as_it_was(target, member, 0o600)


def _as_it_was(path: Path, member: tarfile.TarInfo, least: int) -> None:
    path.chmod(member.mode & 0o777 | least)
    os.utime(path, (member.mtime, member.mtime))


def _is_plain(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _below(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            yield Path(root) / name
        folders[:] = [name for name in folders if is_readable(Path(root) / name, is_folder=True)]


def _within(folder: Path, link: Path) -> str | None:
    """The target of a link relative to it; None: it is outside the folder, or the link is circular."""
    to = Path(os.readlink(link))
    try:
        target = (link.parent / to).resolve()
    except (OSError, RuntimeError):
        return None
    if not target.is_relative_to(folder.resolve()):
        return None
    # A path that leaves the folder and comes back would break once the folder has another name.
    depth = len(link.relative_to(folder).parts) - 1
    for part in to.parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or to.is_absolute():
            return os.path.relpath(target, link.parent.resolve())
    return str(to)
