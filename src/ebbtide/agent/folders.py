"""The folder that a training program runs in: the user's code, its checkpoints, and what it writes beside them.

The controller packs the user's code once; each machine unpacks it and gives every training a copy of its own, so
that no training overwrites the files of another.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import logging
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

from ebbtide.agent.code_files import CodeFiles, code_files
from ebbtide.errors import InputError, MissingObjectError, StorageError
from ebbtide.storage.checkpoints.manifest import Manifest
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import ObjectStore

# Numbers of the errors of a disk, or of a store, that has no room.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_LOGGER = logging.getLogger(__name__)

# A larger folder holds data, which belongs in storage and not in the archive of the code.
MOST_BYTES = 100 << 20
# An archive's name has the SHA-256 of its content, so that nobody who can write to storage can replace it.
_SAID = re.compile(r"code-([0-9a-f]{64})\.tar\.gz$")

# Files that a finished program leaves in its folder are kept up to this size in all.
MOST_OUTPUT_BYTES = 1 << 30
# Seconds for which storage that takes no outputs is waited for, and between tries; tries until that is told.
_STORED_WITHIN_S, _RETRY_S, _TRIES_UNTOLD = 1800.0, 2.0, 3
# Entries of the user's folder that are not linked to: programs have no business with kept runs or Git's data.
_NOT_LINKED = frozenset({".ebbtide", ".git"})


def packed(folder: Path) -> bytes:
    """The code below a folder (see `code_files`) as a gzipped tar archive; the same files give the same bytes.

    Logs what is sent, and which files are left out as keys or credentials.

    Raises:
        InputError: The files exceed 100 MiB, or one is a link to a file that would not be in the archive itself.
    """
    found = _files_to_send(folder)
    found.tell_size()
    found.warn()
    buffer = io.BytesIO()
    zipped = gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0)
    with zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for path in found.files:
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size, entry.mode = path.stat().st_size, 0o700 if path.stat().st_mode & 0o100 else 0o600
            with path.open("rb") as content:
                tar.addfile(entry, content)
    return buffer.getvalue()


def copy_code(folder: Path, into: Path) -> None:
    """Copy the files that `packed` would pack.

    Args:
        folder: Folder with the user's code.
        into: Folder that they are copied to, made if it does not exist; it may be below the other.

    Raises:
        InputError: As `packed` does.
    """
    found = _files_to_send(folder)
    found.warn()
    for path in found.files:
        place = into / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)


def _files_to_send(folder: Path) -> CodeFiles:
    found = code_files(folder)
    if found.size_bytes > MOST_BYTES:
        largest = max(found.files, key=lambda path: path.stat().st_size)
        raise InputError(
            f"holds {found.size_bytes / (1 << 20):.0f} MiB, and {MOST_BYTES >> 20} are sent to each machine at "
            "most; put data into storage, or name it in .ebbtideignore (the largest file is "
            f"{largest.relative_to(folder)})",
            file=folder,
        )
    return found


def code_key(run: str, archive: bytes) -> str:
    """Key in storage of the archive of a run's code."""
    return f"runs/{run}/code-{hashlib.sha256(archive).hexdigest()}.tar.gz"


def unpack(objects: ObjectStore, key: str, into: Path) -> None:
    """Fetch an archive made by `packed` and unpack it into a folder, whole or not at all.

    Args:
        objects: Storage that holds the archive.
        key: Key of the archive in that storage, by `code_key`; runs of older versions have others.
        into: Folder to be made; nothing is done if it exists.

    Raises:
        OSError: Storage does not answer.
        tarfile.TarError: The object is gone, is not the archive of that key, or would write outside the folder.
    """
    if into.exists():
        return
    try:
        archive, said = objects.get(key), _SAID.search(key)
    except MissingObjectError:
        raise tarfile.TarError(
            f"{key} was stored and is gone; was it removed by a rule of the bucket, or by hand? Put it back, or "
            "begin the run anew"
        ) from None
    if said is not None and hashlib.sha256(archive).hexdigest() != said[1]:
        raise tarfile.TarError("it is not what was stored")
    content = io.BytesIO(archive)
    with tempfile.TemporaryDirectory(dir=into.parent, ignore_cleanup_errors=True) as part:
        whole = Path(part) / "code"
        whole.mkdir()
        with tarfile.open(fileobj=content, mode="r:gz") as tar:
            _check_members(tar)
            safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(whole, **safe)
        whole.rename(into)


def _check_members(tar: tarfile.TarFile) -> None:
    """Check that an archive has plain files and folders only; not every Python 3.10 has the filter for this."""
    for member in tar:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isreg() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is no plain file inside the folder of the code")


class PrivateFolder:
    """The folder of one training, newly made.

    Args:
        path: Path of the folder, which must not exist.
        code: Folder with the user's code, which is copied; None: nothing is copied.
        linked: Folder whose entries are linked to instead, because it is too large to be copied: the program can
            read them, and what it writes beside them stays private. None: nothing is linked.
    """

    def __init__(self, path: Path, *, code: Path | None = None, linked: Path | None = None) -> None:
        self.path = path
        if code is not None:
            shutil.copytree(code, path)
        elif linked is not None:
            linked_view(linked, path, _NOT_LINKED)
        else:
            path.mkdir(parents=True)
        self._before = {file: _stamp(file) for file in _files(path)}
        self._links = {link for link in path.rglob("*") if link.is_symlink()}

    def leave_outputs(self) -> int:
        """Remove everything except files written since the folder was made, and links to these; returns their size
        in bytes."""
        size = 0
        root = self.path.resolve()
        for link in [path for path in self.path.rglob("*") if path.is_symlink()]:
            # Links out of this folder lead to the user's folder, or to the checkpoints; one may lead to itself.
            if link in self._links or not Path(os.path.realpath(link)).is_relative_to(root):
                link.unlink()
        for cache in list(self.path.rglob("__pycache__")):
            shutil.rmtree(cache, ignore_errors=True)
        for file in _files(self.path):
            # A process that the program left behind may rename and remove files.
            with suppress(FileNotFoundError):
                stamp = _stamp(file)
                if self._before.get(file) == stamp:
                    file.unlink()
                else:
                    size += stamp[0]
        for link in [path for path in self.path.rglob("*") if path.is_symlink() and not path.exists()]:
            link.unlink()
        return size


def outputs_id(trial_id: str) -> str:
    """Id of the pseudo-trial under which the files that a finished trial left in its folder are stored."""
    return f"{trial_id}-outputs"


def keep_outputs(
    outputs: CheckpointStore,
    private: PrivateFolder,
    machine: str,
    step: int,
    refused: Callable[[str], None],
    is_over: Callable[[], bool],
) -> str:
    """Store the files that a finished program left in its folder; other files in the folder are removed.

    Args:
        outputs: Where they are stored, under the id that `outputs_id` gives.
        private: The folder that its program ran in.
        machine: Id of this machine, noted as the writer.
        step: Step that the training has reached.
        refused: Called once with the reason if they could not be stored for a few tries.
        is_over: Tells whether nobody waits for them any more.

    Returns:
        Why the files are not kept, for the program's log; empty if they are, or if there are none.

    Raises:
        StorageError: They could not be stored for half an hour.
    """
    size = private.leave_outputs()
    if not any(path.is_file() for path in private.path.rglob("*")):
        return ""
    if size > MOST_OUTPUT_BYTES:
        return (
            f"the files that the program left in its folder are not kept: {size / 2**30:.1f} GiB, "
            f"{MOST_OUTPUT_BYTES >> 30} at most; write them into EBBTIDE_CHECKPOINT_DIR"
        )
    until_s = outputs.runtime.monotonic_s() + _STORED_WITHIN_S
    for attempt in count(1):
        try:
            manifest: Manifest = outputs.begin_writing(machine).save(private.path, step, keep=1)
        except Exception as error:
            _LOGGER.warning("%s are not stored yet: %s", outputs.trial_id, error)
            if is_over() or outputs.runtime.monotonic_s() >= until_s:
                raise StorageError(
                    f"the files that the program left in its folder are not kept: {error}"
                ) from None
            if attempt == _TRIES_UNTOLD:
                refused(str(error))
            outputs.runtime.sleep(_RETRY_S)
            continue
        _LOGGER.info("%s: %d files", outputs.trial_id, len(manifest.files))
        break
    return ""


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def linked_view(source: Path, place: Path, leave_out: Container[str] = ()) -> Path:
    """Make a folder whose entries are links to those of another; files added to it do not appear in the other.

    Args:
        source: Folder whose entries are linked to.
        place: Folder to be made, if it does not exist.
        leave_out: Names of entries that are not linked to.

    Returns:
        The folder that was made.
    """
    place.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        link = place / entry.name
        if entry.name not in leave_out and not link.is_symlink():
            link.symlink_to(entry)
    return place


def link_checkpoints(runs_in: Path, checkpoints: str, folder: Path) -> None:
    """Make the checkpoint folder that a program uses by itself a link to the one that Ebbtide restores and stores.

    Checkpoints that the user had there before are hidden from the program: a run starts from the beginning, or
    resumes from its own checkpoints.

    Args:
        runs_in: The program's private folder; links in the way are replaced, files are not.
        checkpoints: Path of the program's checkpoint folder, below `runs_in`.
        folder: Folder that checkpoints are restored to and stored from.

    Raises:
        OSError: A file is in the way.
    """
    *above, last = PurePosixPath(checkpoints).parts
    place = runs_in
    for name in above:
        place /= name
        if place.is_symlink():
            source = place.resolve()
            place.unlink()
            linked_view(source, place)
        place.mkdir(exist_ok=True)
    link = place / last
    if link.is_symlink():
        link.unlink()
    elif link.is_dir():
        # The user's own checkpoints, copied with the code.
        link.rename(place / f".{last}.before")
    link.symlink_to(folder, target_is_directory=True)


class FullDiskError(OSError):
    """This machine's disk has no room for what is to be written."""


@contextmanager
def on_own_disk() -> Iterator[None]:
    """Tell a full disk of this machine from a full store, where something is written here alone.

    Raises:
        FullDiskError: The disk has no room.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise FullDiskError(str(error)) from error
