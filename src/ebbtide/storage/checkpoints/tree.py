"""Folders as trees of entries, by which they are copied and restored unchanged.

An entry is a file, a symbolic link or a folder, with permissions and time of change. Links are never followed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK_BYTES = 1 << 20
# Unit of `st_blocks`, whatever the block size of the file system is.
_STAT_BLOCK_BYTES = 512
# Holes of smaller files are not worth a search.
_LEAST_SPARSE_BYTES = 1 << 16
_UNREADABLE = "may not be read by Ebbtide's agent"
_PERMISSIONS = 0o777

# Offset and length, in bytes, of a part of a file that holds data.
Extent = tuple[int, int]

_SPECIAL = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


@dataclass(frozen=True)
class TreeEntry:
    """A file, symbolic link or folder below a folder.

    Attributes:
        path: Path below the folder, with slashes.
        kind: `file`, `link` or `folder`.
        mode: Permissions.
        mtime_ns: Time of the last change in ns since 1970.
        size_bytes: Length of a file in bytes, its holes included.
        inode: Device and number of the inode.
        target: Where a link leads, as a relative path where that is inside the folder.
        data_bytes: Length of a file without its holes, as far as the file system tells.
    """

    path: str
    kind: str
    mode: int
    mtime_ns: int
    size_bytes: int
    inode: tuple[int, int]
    target: str = ""
    data_bytes: int = field(default=0, compare=False)

    @property
    def is_sparse(self) -> bool:
        """True if the file may have holes."""
        return self.data_bytes < self.size_bytes


@dataclass(frozen=True)
class Tree:
    """The entries of a folder at one moment.

    Attributes:
        entries: All entries in order of their paths, each folder before what is in it.
        left_out: What cannot be stored, and why, by path.
        unreadable: The paths among them that this process may not read.
    """

    entries: tuple[TreeEntry, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def unreadable(self) -> tuple[str, ...]:
        return tuple(path for path, why in self.left_out if why.startswith(_UNREADABLE))

    def of(self, kind: str) -> list[TreeEntry]:
        """The entries of one kind."""
        return [entry for entry in self.entries if entry.kind == kind]


def tree_of(folder: Path, only: str = "") -> Tree | None:
    """List a folder.

    Args:
        folder: The folder.
        only: Name of an entry of the folder to which the list is limited; empty: all of it.

    Returns:
        The tree; None: the folder changed meanwhile, or does not exist.
    """
    entries: list[TreeEntry] = []
    left_out: list[tuple[str, str]] = []
    try:
        found = os.scandir(folder) if not only else [_entry_of(folder, only)]
        _list(folder, "", found, entries, left_out)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Tree(tuple(sorted(entries, key=lambda entry: entry.path.split("/"))), tuple(sorted(left_out)))


def _entry_of(folder: Path, name: str) -> os.DirEntry[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == name:
                return entry
    raise FileNotFoundError(folder / name)


def _list(
    folder: Path,
    above: str,
    found: Iterable[os.DirEntry[str]],
    entries: list[TreeEntry],
    left_out: list[tuple[str, str]],
) -> None:
    for each in found:
        about, path = each.stat(follow_symlinks=False), f"{above}{each.name}"
        if stat.S_ISLNK(about.st_mode):
            kind, target = "link", kept_target(folder, path, os.readlink(each.path))
        elif stat.S_ISDIR(about.st_mode):
            kind, target = "folder", ""
        elif stat.S_ISREG(about.st_mode):
            kind, target = "file", ""
        else:
            what = _SPECIAL.get(stat.S_IFMT(about.st_mode), "neither file, link nor folder")
            left_out.append((path, f"is {what}, which has no content to store"))
            continue
        if kind != "link" and not is_readable(each.path, is_folder=kind == "folder"):
            if not os.path.lexists(each.path):
                raise FileNotFoundError(each.path)
            left_out.append((path, f"{_UNREADABLE}: its mode is {stat.filemode(about.st_mode)}"))
            continue
        size_bytes = about.st_size if kind == "file" else 0
        may_be_sparse = size_bytes >= _LEAST_SPARSE_BYTES
        entry = TreeEntry(
            path=path,
            kind=kind,
            mode=about.st_mode & _PERMISSIONS,
            mtime_ns=about.st_mtime_ns,
            size_bytes=size_bytes,
            inode=(about.st_dev, about.st_ino),
            target=target,
            data_bytes=min(about.st_blocks * _STAT_BLOCK_BYTES, size_bytes) if may_be_sparse else size_bytes,
        )
        entries.append(entry)
        if kind == "folder":
            _list(folder, f"{path}/", os.scandir(each.path), entries, left_out)


def is_readable(path: str | Path, *, is_folder: bool) -> bool:
    """Return whether this process may read a file, or list a folder and what is in it."""
    wanted = os.R_OK | os.X_OK if is_folder else os.R_OK
    return os.access(path, wanted, effective_ids=os.access in os.supports_effective_ids)


def kept_target(folder: Path, path: str, target: str) -> str:
    """Return the target of a link in a form that stays valid in a copy of the folder.

    Args:
        folder: The folder.
        path: Path of the link below the folder.
        target: Target of the link.

    Returns:
        A relative path if the target is inside the folder, else the target as it is.
    """
    if not os.path.isabs(target):
        return target
    root = os.path.realpath(folder)
    # The program may know the folder by another name.
    leads_to = os.path.normpath(target)
    real = os.path.join(os.path.realpath(os.path.dirname(leads_to)), os.path.basename(leads_to))
    if os.path.realpath(leads_to) == root:
        real = root
    if real != root and not real.startswith(root + os.sep):
        return target
    return os.path.relpath(real, os.path.dirname(os.path.join(root, path)))


def extents_of(path: Path) -> tuple[Extent, ...]:
    """The parts of a sparse file that hold data, in order; all of it where the file system does not tell."""
    found = []
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        at = 0
        while at < end:
            try:
                begins = os.lseek(file.fileno(), at, os.SEEK_DATA)
                at = min(os.lseek(file.fileno(), begins, os.SEEK_HOLE), end)
            except OSError:
                break  # there is no data any more
            found.append((begins, at - begins))
    return tuple(found)


def blocks_of(path: Path, extents: Sequence[Extent] | None = None) -> Iterator[bytes]:
    """The content of a file in blocks.

    Args:
        path: Path of the file.
        extents: The parts of it that are read; None: all of it.
    """
    with path.open("rb", buffering=0) as file:
        if extents is None:
            while block := file.read(_BLOCK_BYTES):
                yield block
            return
        for begins, length in extents:
            file.seek(begins)
            while length and (block := file.read(min(length, _BLOCK_BYTES))):
                length -= len(block)
                yield block


def write_extents(source: Path, target: Path, extents: Sequence[Extent], size_bytes: int, begins: int = 0) -> None:
    """Make a sparse file from the data of its extents.

    Args:
        source: File that holds the data of all extents, one after the other.
        target: File to be made.
        extents: Place of each extent in the new file.
        size_bytes: Length of the new file.
        begins: Position in `source` of the first extent.
    """
    with source.open("rb") as read, target.open("wb") as written:
        read.seek(begins)
        for offset, length in extents:
            written.seek(offset)
            while length and (block := read.read(min(length, _BLOCK_BYTES))):
                written.write(block)
                length -= len(block)
        written.truncate(size_bytes)


def copy_tree(
    tree: Tree,
    folder: Path,
    into: Path,
    before: Tree | None = None,
    copied: Path | None = None,
    *,
    may_be_gone: Callable[[str], bool] = lambda _path: False,
) -> None:
    """Copy the entries of a folder into a new one.

    Files that have not changed since an earlier copy are shared with that, so copies must not be written to.

    Args:
        tree: The entries to be copied.
        folder: The folder that has them.
        into: Folder to be made.
        before: The tree of which an earlier copy was made; None: there is none.
        copied: The folder of that copy.
        may_be_gone: Whether the file of a path is left out if it has gone meanwhile.

    Raises:
        OSError: Another entry has gone meanwhile, or there is no room.
    """
    same = {} if before is None or copied is None else {entry.path: entry for entry in before.of("file")}
    first: dict[tuple[int, int], Path] = {}
    into.mkdir(parents=True)
    for entry in tree.entries:
        source, target = folder / entry.path, into / entry.path
        if entry.kind == "folder":
            target.mkdir()
        elif entry.kind == "link":
            os.symlink(entry.target, target)
            set_time_of_link(target, entry.mtime_ns)
        elif entry.inode in first:
            os.link(first[entry.inode], target)
        else:
            first[entry.inode] = target
            earlier = same.get(entry.path)
            if copied is not None and earlier == entry and (copied / entry.path).is_file():
                os.link(copied / entry.path, target)
                continue
            try:
                if entry.is_sparse:
                    _copy_sparse(source, target, entry.size_bytes)
                else:
                    copy_file(source, target)
            except FileNotFoundError:
                if not may_be_gone(entry.path):
                    raise
                del first[entry.inode]
                continue
            set_attributes(target, entry.mode, entry.mtime_ns)
    finish_folders(into, [(entry.path, entry.mode, entry.mtime_ns) for entry in tree.of("folder")])


def _copy_sparse(source: Path, target: Path, size_bytes: int) -> None:
    with source.open("rb") as read, target.open("wb") as written:
        for offset, length in extents_of(source):
            read.seek(offset)
            written.seek(offset)
            while length and (block := read.read(min(length, _BLOCK_BYTES))):
                written.write(block)
                length -= len(block)
        written.truncate(size_bytes)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's content within the kernel where possible, which is as fast as `cp`."""
    try:
        with source.open("rb") as read, target.open("wb") as written:
            while os.copy_file_range(read.fileno(), written.fileno(), 64 * _BLOCK_BYTES):
                pass
    except OSError:
        shutil.copyfile(source, target)


def set_attributes(path: Path, mode: int, mtime_ns: int) -> None:
    """Give a file or folder its permissions and its time of change."""
    os.chmod(path, mode)
    os.utime(path, ns=(mtime_ns, mtime_ns))


def set_time_of_link(path: Path, mtime_ns: int) -> None:
    """Give a symbolic link its time of change, where the system keeps one."""
    with contextlib.suppress(NotImplementedError, OSError):
        os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)


def finish_folders(root: Path, folders: Iterable[tuple[str, int, int]]) -> None:
    """Give folders their permissions and times, once everything is in them.

    Args:
        root: The folder that they are below.
        folders: Path, permissions and time of change of each.
    """
    for path, mode, mtime_ns in sorted(folders, reverse=True):
        set_attributes(root / path, mode, mtime_ns)


def remove_tree(folder: Path) -> None:
    """Remove a folder, if it exists, with all that is in it, folders that may not be written to included."""
    for root, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(root, name)
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
