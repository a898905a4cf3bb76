"""Files of a checkpoint folder that some process is writing, and which of them stay open on purpose."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ebbtide.agent.logs import SQLITE, is_log
from ebbtide.storage.checkpoints.tree import Tree, TreeEntry

try:
    import sqlite3
except ImportError:  # some machines have a Python without it
    _sqlite: Any = None
else:
    _sqlite = sqlite3

_PROC = Path("/proc")
# Device and number of an inode.
Inode = tuple[int, int]

_OPEN_LOG_S = 2.0
# Any other file that is open for this long, and grows by no more than this, is kept open on purpose.
_OPEN_S, _GROWS_BYTES = 20.0, 1 << 20
_SQLITE_WAIT_S = 1.0
_SIDECARS = ("-wal", "-shm", "-journal")


def open_for_writing(inodes: Collection[Inode]) -> dict[Inode, int]:
    """Inodes that a process has open, or maps, for writing, with the id of one such process.

    All processes that this user may inspect count, whoever started them.
    """
    wanted, found = set(inodes), {}
    numbers = {number for _, number in wanted}
    for process in _PROC.iterdir() if wanted and _PROC.is_dir() else ():
        if process.name.isdecimal():
            # The process may have ended, or this user may not inspect it.
            with contextlib.suppress(OSError):
                for inode in (*_written(process, wanted), *_mapped(process, numbers, wanted)):
                    found[inode] = int(process.name)
    return found


def _written(process: Path, wanted: Collection[Inode]) -> Iterator[Inode]:
    for link in os.scandir(process / "fd"):
        with contextlib.suppress(OSError):
            about = os.stat(link.path)
            if (about.st_dev, about.st_ino) in wanted:
                text = (process / "fdinfo" / link.name).read_text()
                flags = next(line for line in text.splitlines() if line.startswith("flags:"))
                if int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                    yield about.st_dev, about.st_ino


def _mapped(process: Path, numbers: Collection[int], wanted: Collection[Inode]) -> Iterator[Inode]:
    for line in (process / "maps").read_text(errors="replace").splitlines():
        parts = line.split(maxsplit=5)
        # Changes of private mappings never reach the file.
        if len(parts) > 4 and parts[1].startswith("rw") and parts[1].endswith("s") and int(parts[4]) in numbers:
            yield from (inode for inode in wanted if inode[1] == int(parts[4]))


@dataclass
class KeptOpen:
    """Tells files that stay open on purpose from those that are being saved.

    Attributes:
        is_log: Tells logs and databases, which may stay open.
        paths: Files that stay open on purpose, as of the last look.
    """

    is_log: Callable[[str], bool] = is_log
    paths: frozenset[str] = frozenset()
    _opened: dict[str, tuple[float, int]] = field(default_factory=dict)

    def look(self, tree: Tree, opened: Mapping[Inode, int], now_s: float) -> list[str]:
        """Note which files are open.

        Args:
            tree: The entries of the folder.
            opened: Inodes that are open for writing.
            now_s: The present time in monotonic seconds.

        Returns:
            Paths of files that are being saved.
        """
        found = {entry.path: entry for entry in tree.of("file") if entry.inode in opened}
        self._opened = {path: self._opened.get(path, (now_s, entry.size_bytes)) for path, entry in found.items()}
        self.paths = frozenset(path for path, entry in found.items() if self._stays(entry, now_s))
        return sorted(found.keys() - self.paths)

    def _stays(self, entry: TreeEntry, now_s: float) -> bool:
        since_s, size_bytes = self._opened[entry.path]
        if entry.path.endswith(_SIDECARS):
            return True  # it comes and goes with each change of its database
        if self.is_log(entry.path):
            return now_s - since_s >= _OPEN_LOG_S
        if entry.size_bytes - size_bytes > _GROWS_BYTES:
            self._opened[entry.path] = now_s, entry.size_bytes
            return False
        return now_s - since_s >= _OPEN_S


def copy_databases(tree: Tree, folder: Path, copy: Path) -> None:
    """Copy the SQLite databases of a folder again, each as of one moment, even if a program is writing to it.

    Args:
        tree: The entries of the folder.
        folder: The folder.
        copy: The folder's copy.
    """
    names = {entry.path for entry in tree.of("file")}
    for entry in tree.of("file") if _sqlite is not None else ():
        source, target = folder / entry.path, copy / entry.path
        if not is_log(entry.path) or not _is_database(source) or not target.exists():
            continue
        new = target.with_name(f"{target.name}.copy")
        try:
            address = f"file:{quote(os.fsencode(source))}?mode=ro"
            with (
                contextlib.closing(_sqlite.connect(address, uri=True, timeout=_SQLITE_WAIT_S)) as read,
                contextlib.closing(_sqlite.connect(new)) as written,
            ):
                read.backup(written)
        except _sqlite.Error:
            new.unlink(missing_ok=True)  # the plain copy has to do
            continue
        os.utime(new, ns=(entry.mtime_ns, entry.mtime_ns))
        new.chmod(entry.mode)
        new.replace(target)
        for sidecar in _SIDECARS:
            if f"{entry.path}{sidecar}" in names:
                (copy / f"{entry.path}{sidecar}").unlink(missing_ok=True)


def _is_database(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE
    return False
