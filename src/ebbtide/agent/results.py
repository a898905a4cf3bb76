"""Results of an array's tasks in storage: each is kept once, whichever machine is the first to store it.

A result is an archive of the files that the task wrote, and a record, which is written last, by a conditional
write. If two machines did the same task, the second one deletes its archive again.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ebbtide.agent.folders import on_own_disk
from ebbtide.agent.result_archive import DamagedResultError, pack, unpack
from ebbtide.errors import MissingObjectError, StorageError
from ebbtide.storage.objects import ObjectStore, decoded_object, numbers_below

# Characters kept of what a task prints, from its end; more output belongs in files.
MOST_PRINTED = 64 << 10
# Files that are not kept of which a task's user is told.
_MOST_LEFT_OUT = 10


@dataclass(frozen=True)
class TaskResult:
    """The result of one task.

    Attributes:
        number: Number of the task, from 0.
        value: Its value, which stands for `{task}` in the command.
        machine: Id of the machine that did it.
        attempt: Number of that machine's assignment.
        duration_s: Real seconds that it took.
        printed: End of what it printed.
        archive: Key of the archive of its files; empty: it wrote none.
        sha256: SHA-256 of the archive in hexadecimal digits.
        size_bytes: Size of the archive.
    """

    number: int
    value: str
    machine: str
    attempt: int
    duration_s: float
    printed: str
    archive: str = ""
    sha256: str = ""
    size_bytes: int = 0


class TaskResults:
    """The results of one array.

    Args:
        objects: Storage that has the results.
        trial_id: Id of the array in the run.
    """

    def __init__(self, objects: ObjectStore, trial_id: str) -> None:
        self._objects = objects
        self._records = f"results/{trial_id}/done"
        self._files = f"results/{trial_id}/files"

    def keep(self, result: TaskResult, folder: Path) -> TaskResult | None:
        """Store a result with the files of a folder; returns it with its archive; None: another is stored.

        Args:
            result: The result, without its archive.
            folder: Folder with the files that the task wrote; nothing outside it is read.

        Raises:
            FullDiskError: This machine's disk has no room for an archive of the files.
            OSError: Storage does not answer.
        """
        if self.has(result.number):
            return None
        values = asdict(result)
        if folder.is_dir() and any(folder.iterdir()):
            with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as place:
                archive = Path(place) / "files.tar.gz"
                with on_own_disk():
                    count, left_out = pack(folder, archive)
                told = [f"ebbtide: not kept of the results: {each}" for each in left_out[:_MOST_LEFT_OUT]]
                more = len(left_out) - len(told)
                told += [f"ebbtide: not kept of the results: {more} more"] if more else []
                values["printed"] = "\n".join([*told, *([result.printed] if result.printed else [])])
                if count:
                    values |= self._put(result, archive)
        record = json.dumps(values, sort_keys=True).encode()
        if self._objects.put_once(f"{self._records}/{result.number}", record):
            return TaskResult(**values)
        # A write whose answer was lost, or that came late, is found here: it may name the archive of another try.
        stored = self.result(result.number)
        if values["archive"] not in ("", stored.archive):
            self._objects.delete(values["archive"])
        is_own = (stored.machine, stored.attempt) == (result.machine, result.attempt)
        return stored if is_own else None

    def _put(self, result: TaskResult, archive: Path) -> dict[str, Any]:
        """Store an archive under a name of its own, and return its fields of the record."""
        sha256, size_bytes = _sha256(archive), archive.stat().st_size
        key = f"{self._files}/{result.number}/{result.machine}-{result.attempt}-{sha256[:16]}.tar.gz"
        self._objects.put_file(key, archive)
        stored_bytes = self._objects.size_bytes(key)
        if stored_bytes != size_bytes:
            # An upload may be cut short, and reported as complete.
            raise StorageError(f"of the files {stored_bytes} of {size_bytes} bytes are stored")
        return {"archive": key, "sha256": sha256, "size_bytes": size_bytes}

    def has(self, number: int) -> bool:
        """Return whether a task's result is stored."""
        return self._objects.has(f"{self._records}/{number}")

    def numbers(self) -> set[int]:
        """Numbers of the tasks whose results are stored."""
        return numbers_below(self._objects, self._records)

    def result(self, number: int) -> TaskResult:
        """The result of a task.

        Raises:
            MissingObjectError: There is none.
            DamagedResultError: It cannot be read.
        """

        def decode(content: bytes) -> TaskResult:
            values = json.loads(content)
            known = {name: values[name] for name in TaskResult.__dataclass_fields__ if name in values}
            archive = str(known.get("archive", ""))
            if archive and (".." in archive or not archive.startswith(f"{self._files}/{number}/")):
                raise ValueError(f"its archive is {archive!r}, which is not of this task")
            return TaskResult(**known)

        try:
            return decoded_object(self._objects, f"{self._records}/{number}", decode)
        except MissingObjectError:
            raise
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DamagedResultError(f"the result of task {number} cannot be read: {error}") from None

    def fetch(self, result: TaskResult, into: Path) -> None:
        """Put the files of a result into a new folder.

        Raises:
            DamagedResultError: The archive is damaged, or holds something other than files.
            OSError: Storage does not answer.
        """
        into.mkdir(parents=True)
        if not result.archive:
            return
        with tempfile.TemporaryDirectory(dir=into.parent, ignore_cleanup_errors=True) as place:
            archive = Path(place) / "files.tar.gz"
            try:
                self._objects.get_file(result.archive, archive)
            except MissingObjectError:
                raise DamagedResultError(
                    f"the files of task {result.number} are not in storage any more"
                ) from None
            if _sha256(archive) != result.sha256:
                raise DamagedResultError(f"the files of task {result.number} are damaged: another SHA-256")
            unpack(archive, into, result.number)


def plain_result(result: TaskResult) -> Mapping[str, Any]:
    """A result as plain values, for a line of JSON."""
    return {
        "task": result.number,
        "value": result.value,
        "machine": result.machine,
        "duration_s": result.duration_s,
        "printed": result.printed,
    }


def _sha256(path: Path) -> str:
    found = hashlib.sha256()  # machines may have Python 3.10, which has no `file_digest`
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()
