"""Recognises logs and databases in a checkpoint folder, by their names and by how they are written.

A log grows at its end. A file that has a log's name but is rewritten or replaced is part of the checkpoint:
coefficients in `model.csv`, weights in `weights.db`.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.storage.checkpoints.tree import Tree, TreeEntry

# Logs and databases, which programs keep open or append to while they train.
_LOGS = re.compile(
    r"tfevents|\.(?:log|csv|tsv|jsonl|ndjson|txt|out|err|db|sqlite3?|mdb|lock|pid)(?:\.\d+)?$|-(?:wal|shm|journal)$",
    re.IGNORECASE,
)
# Text files of checkpoints: LightGBM models, step counters, tokenizer vocabularies, completion markers.
_SAVED_AS_TEXT = re.compile(
    r"(?!.*(?:log|loss|metric|histor|result))"
    r".*(?:model|booster|gbm|weight|ckpt|checkpoint|state|step|iter|epoch|latest|vocab|merges"
    r"|commit|success|done|complete).*\.txt$",
    re.IGNORECASE,
)
# Names of logs, however they are written: some programs rewrite a history each time.
_ALWAYS = re.compile(
    r"tfevents|\.(?:log|out|err|lock|pid)(?:\.\d+)?$|-(?:wal|shm|journal)$"
    r"|log|loss|metric|histor|result|progress|event|curve|score|report|stdout|stderr",
    re.IGNORECASE,
)
SQLITE = b"SQLite format 3\0"
# Bytes at a file's beginning that show whether it was rewritten.
_HEAD_BYTES = 4096
# A file rewritten this many times is no log, even if it grew in between.
_TIMES = 2


def is_log(path: str) -> bool:
    """Tell whether a file's name is that of a log or database, which may change at any time."""
    name = path.rpartition("/")[2]
    return _LOGS.search(name) is not None and _SAVED_AS_TEXT.match(name) is None


@dataclass(frozen=True)
class _Written:
    """Record of the ways in which a file has been written so far."""

    entry: TreeEntry
    head: bytes
    times_anew: int = 0
    is_appended: bool = False

    @property
    def is_anew(self) -> bool:
        return self.times_anew >= _TIMES or (self.times_anew > 0 and not self.is_appended)


@dataclass
class Logs:
    """Tells logs from files of checkpoints that have the name of a log.

    Attributes:
        folder: The checkpoint folder.
    """

    folder: Path
    _files: dict[str, _Written] = field(default_factory=dict)

    def is_log(self, path: str) -> bool:
        """Tell whether a file has the name of a log and is not rewritten each time."""
        return is_log(path) and not (path in self._files and self._files[path].is_anew)

    def look(self, tree: Tree) -> None:
        """Note how files have changed since the last look."""
        inodes = {entry.inode for entry in tree.of("file")}
        for entry in tree.of("file"):
            if not is_log(entry.path) or _ALWAYS.search(entry.path.rpartition("/")[2]):
                continue
            before = self._files.get(entry.path)
            if before is not None and before.entry == entry:
                continue
            # A file that is gone by now is looked at if it comes back.
            with contextlib.suppress(OSError), (self.folder / entry.path).open("rb") as file:
                head = file.read(_HEAD_BYTES)
                self._files[entry.path] = _written(before, entry, head, inodes)


def _written(before: _Written | None, entry: TreeEntry, head: bytes, inodes: set[tuple[int, int]]) -> _Written:
    """Record one more change of a file."""
    if before is None:
        return _Written(entry, head)
    old = before.entry
    # A log that is rotated is still there, under another name.
    is_replaced = entry.inode != old.inode and old.inode not in inodes
    # Any change of a database changes its header, too.
    is_database = head.startswith(SQLITE) or entry.path.endswith(".mdb")
    is_over = not is_database and (entry.size_bytes < old.size_bytes or not head.startswith(before.head))
    if is_replaced or (is_over and entry.inode == old.inode):
        return _Written(entry, head, before.times_anew + 1)
    is_appended = before.is_appended or entry.size_bytes > old.size_bytes
    return _Written(entry, head, before.times_anew, is_appended)
