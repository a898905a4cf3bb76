"""Object storage: objects under keys, in a folder or in a bucket; readers never see half of one."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from ebbtide.base.files import replacing
from ebbtide.errors import DamagedAnswerError, InputError, MissingObjectError, StorageError
from ebbtide.storage.buckets import GcsStore, S3Store
from ebbtide.storage.object_keys import PART, checked_key, is_key

T = TypeVar("T")

_COPIED_BYTES = 1 << 26
# So many objects that are counted in a row are never stored before a listing shows them.
_MOST_IN_A_ROW = 10_000

# Errors from reading a file that does not exist, or whose key leads to a folder or below a file.
_NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class ObjectStore(Protocol):
    """Objects by key; a key is made of names with slashes between them. All methods may raise `OSError`."""

    def put_once(self, key: str, content: bytes) -> bool:
        """Write an object, unless there is one under the key; returns whether it was written."""
        ...

    def put_file(self, key: str, path: Path) -> None:
        """Write a file as an object, in place of any under the key."""
        ...

    def get_file(self, key: str, path: Path) -> None:
        """Read an object into a file.

        Raises:
            MissingObjectError: There is no such object.
        """
        ...

    def get(self, key: str) -> bytes:
        """Read an object.

        Raises:
            MissingObjectError: There is no such object.
        """
        ...

    def has(self, key: str) -> bool:
        """Return whether there is an object under the key."""
        ...

    def size_bytes(self, key: str) -> int:
        """Length of an object in bytes.

        Raises:
            MissingObjectError: There is no such object.
        """
        ...

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Keys that begin with the prefix, in order.

        Names that are no keys are left out: they are of files and folders that other programs made.
        """
        ...

    def versions(self, prefix: str = "") -> Iterator[tuple[str, str]]:
        """Keys as `keys` gives them, each with a text that changes whenever its object does; empty: not known."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        ...

    def clear_unfinished(self, prefix: str, older_s: float) -> None:
        """Remove unfinished objects that killed writers left below a prefix, which take room and cost money.

        Args:
            prefix: Beginning of the keys.
            older_s: Objects that were begun or written to within this many seconds are left alone.
        """
        ...


def object_store(url: str | Path, *, within_s: float | None = None) -> ObjectStore:
    """Open `s3://bucket/prefix`, `gs://bucket/prefix`, or a folder. S3 is configured like boto3 (see
    `AWS_ENDPOINT_URL`), and Google Cloud Storage like Google's own tools (see `STORAGE_EMULATOR_HOST`).

    Args:
        url: The address.
        within_s: Seconds within which a bucket must answer, for callers that retry themselves; None: wait for
            several tries, for callers that cannot go on without an answer.

    Raises:
        InputError: The address is of another kind, or names no bucket.
    """
    parts = urlsplit(str(url))
    kinds = {"s3": S3Store, "gs": GcsStore}
    if parts.scheme in kinds:
        if not parts.netloc:
            raise InputError(f"{url} names no bucket; {parts.scheme}://bucket/prefix is needed")
        return kinds[parts.scheme](parts.netloc, parts.path.strip("/"), within_s=within_s)
    if parts.scheme and len(parts.scheme) > 1:
        raise InputError(
            f"{url} is no place for objects; a folder, s3://bucket/prefix or gs://bucket/prefix is needed"
        )
    return FolderStore(Path(url))


# Longer numbers are not ours: nobody counts that far.
_MOST_DIGITS = 12


def numbers_below(objects: ObjectStore, folder: str) -> set[int]:
    """Numbers that are names of objects in a folder; other names are not ours: a file system may leave some."""
    names = (key.removeprefix(f"{folder}/") for key in objects.keys(f"{folder}/"))
    return {int(name) for name in names if len(name) <= _MOST_DIGITS and name.isascii() and name.isdecimal()}


def stored_from(objects: ObjectStore, key_of: Callable[[int], str], first: int) -> Iterator[str]:
    """Keys of a number and those after it whose objects are stored, up to the first that is missing.

    Each is asked for by name: a listing may not show new objects for minutes.

    Args:
        objects: The storage.
        key_of: Gives the key of a number.
        first: The first number.

    Raises:
        StorageError: Storage says that it has every object that it is asked for, or does not answer.
    """
    for number in range(first, first + _MOST_IN_A_ROW):
        if not objects.has(key := key_of(number)):
            return
        yield key
    raise StorageError(f"storage says that it has {key_of(first)} and {_MOST_IN_A_ROW - 1:,} more in a row")


def decoded_object(
    objects: ObjectStore, key: str, decode: Callable[[bytes], T], content: bytes | None = None
) -> T:
    """Decode an object, which is read again if it cannot be decoded: without checksums, an answer may be cut off.

    Args:
        objects: The storage.
        key: Key of the object.
        decode: Decodes its content, and raises an exception if it is damaged.
        content: Its content, if it has been read already.

    Raises:
        MissingObjectError: There is no such object.
        DamagedAnswerError: Two answers differ, and neither can be decoded.
        Exception: Whatever `decode` raises for what is stored.
    """
    content = objects.get(key) if content is None else content
    try:
        return decode(content)
    except Exception:
        again = objects.get(key)
        if again == content:
            raise
    try:
        return decode(again)
    except Exception as error:
        raise DamagedAnswerError(f"{key} is damaged each time it is read, and each time in another way") from error


class FolderStore:
    """Objects as files of a folder.

    Args:
        folder: Path of the folder, which is made when the first object is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put_once(self, key: str, content: bytes) -> bool:
        path = self._folder / checked_key(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unlike those of `tempfile`, its permissions are those of any new file: others may share the folder.
        name = path.parent / f".{secrets.token_hex(8)}{PART}"
        try:
            with name.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                # Unlike a rename, a link never replaces an existing file.
                os.link(name, path)
            except FileExistsError:
                if path.is_dir():
                    raise StorageError(
                        f"{key} begins the keys of other objects; a folder cannot hold both"
                    ) from None
                return False
        finally:
            name.unlink(missing_ok=True)
        _sync_folder(path.parent)
        return True

    def put_file(self, key: str, path: Path) -> None:
        target = self._folder / checked_key(key)
        try:
            with replacing(target) as temporary:
                _copy(path, temporary)
        except InputError as error:
            # For a file that a user names this is the user's mistake, but a store may be mounted again.
            raise StorageError(str(error)) from None
        _sync_folder(target.parent)

    def get_file(self, key: str, path: Path) -> None:
        source = self._folder / checked_key(key)
        try:
            shutil.copyfile(source, path)
        except OSError:
            if source.is_file() or not path.parent.is_dir():
                raise
            raise MissingObjectError(key) from None

    def get(self, key: str) -> bytes:
        try:
            return (self._folder / checked_key(key)).read_bytes()
        except _NO_FILE:
            raise MissingObjectError(key) from None

    def has(self, key: str) -> bool:
        return (self._folder / checked_key(key)).is_file()

    def size_bytes(self, key: str) -> int:
        try:
            status = (self._folder / checked_key(key)).stat()
        except _NO_FILE:
            raise MissingObjectError(key) from None
        if not stat.S_ISREG(status.st_mode):
            raise MissingObjectError(key)
        return status.st_size

    def keys(self, prefix: str = "") -> Iterator[str]:
        # Only the folder that the prefix names needs to be searched.
        folder = self._folder / prefix.rpartition("/")[0]
        found = (
            path.relative_to(self._folder).as_posix()
            for path in folder.rglob("*")
            if not path.name.endswith(PART) and path.is_file()
        )
        return iter(sorted(key for key in found if key.startswith(prefix) and is_key(key)))

    def versions(self, prefix: str = "") -> Iterator[tuple[str, str]]:
        for key in self.keys(prefix):
            with suppress(FileNotFoundError):
                status = (self._folder / key).stat()
                yield key, f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"

    def delete(self, key: str) -> None:
        path = self._folder / checked_key(key)
        if path.is_file():
            path.unlink(missing_ok=True)

    def clear_unfinished(self, prefix: str, older_s: float) -> None:
        folder = self._folder / prefix.rpartition("/")[0]
        for path in folder.rglob(f".*{PART}"):
            with suppress(FileNotFoundError):
                key = path.with_name(path.name[1:]).relative_to(self._folder).as_posix()
                if key.startswith(prefix) and time.time() - path.stat().st_mtime > older_s:
                    path.unlink()


def _copy(source: Path, target: Path) -> None:
    """Copy a file within the kernel where possible, which is as fast as `cp`."""
    try:
        with source.open("rb") as read, target.open("wb") as written:
            while os.copy_file_range(read.fileno(), written.fileno(), _COPIED_BYTES):
                pass
    except OSError:
        shutil.copyfile(source, target)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
