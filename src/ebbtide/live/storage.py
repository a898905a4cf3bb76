"""Object storage: objects under keys, in a folder or on S3; readers never see half of one."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from ebbtide._files import replacing
from ebbtide.errors import InputError, MissingObjectError, StorageError

_KEY = re.compile(r"[A-Za-z0-9_=][A-Za-z0-9._=-]*(/[A-Za-z0-9_=][A-Za-z0-9._=-]*)*")
_PART = ".part"
_EXPIRED = frozenset({"ExpiredToken", "RequestExpired", "InvalidToken", "TokenRefreshRequired"})
_COPIED_BYTES = 1 << 26

# Reading a file whose key leads to a folder, or below a file.
_NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)

# A connection that is silent for so long is closed and opened again: boto3's minute is as long as a notice.
_CONNECT_S, _SILENT_S = 5.0, 15.0


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
        """Whether there is such an object."""
        ...

    def size_bytes(self, key: str) -> int:
        """Length of an object in bytes.

        Raises:
            MissingObjectError: There is no such object.
        """
        ...

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Keys that begin with the prefix, in order."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        ...

    def clear_unfinished(self, prefix: str, older_s: float) -> None:
        """Remove what writers that were killed left of objects below a prefix, which takes room and costs money.

        Args:
            prefix: Beginning of the keys.
            older_s: Nothing is removed that was begun or written to less than so many seconds ago.
        """
        ...


def object_store(url: str | Path, *, within_s: float | None = None) -> ObjectStore:
    """Open `s3://bucket/prefix`, or a folder. S3 is reached as boto3 is configured (see `AWS_ENDPOINT_URL`).

    Args:
        url: The address.
        within_s: Seconds within which S3 is to answer, for one who asks again; None: it is waited for, as those do
            who cannot do without an answer.

    Raises:
        InputError: The address is of another kind, or names no bucket.
    """
    parts = urlsplit(str(url))
    if parts.scheme == "s3":
        if not parts.netloc:
            raise InputError(f"{url} names no bucket; s3://bucket/prefix is needed")
        return S3Store(parts.netloc, parts.path.strip("/"), within_s=within_s)
    if parts.scheme and len(parts.scheme) > 1:
        raise InputError(f"{url} is no place for objects; a folder or s3://bucket/prefix is needed")
    return FolderStore(Path(url))


def checked_key(key: str) -> str:
    """The key itself, checked.

    Raises:
        InputError: It could lead out of its store, or looks like a file that is being written.
    """
    if not _KEY.fullmatch(key) or key.endswith(_PART):
        raise InputError(f"{key!r} is no key of an object: use letters, digits and . _ = - between slashes")
    return key


# Longer numbers than anybody counts to are not ours.
_MOST_DIGITS = 12


def numbers_below(objects: ObjectStore, folder: str) -> set[int]:
    """Numbers that are names of objects in a folder; others are not ours: a file system may leave some."""
    names = (key.removeprefix(f"{folder}/") for key in objects.keys(f"{folder}/"))
    return {int(name) for name in names if len(name) <= _MOST_DIGITS and name.isascii() and name.isdecimal()}


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
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=_PART)
        try:
            with os.fdopen(descriptor, "wb") as file:
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
            os.unlink(name)
        _sync_folder(path.parent)
        return True

    def put_file(self, key: str, path: Path) -> None:
        target = self._folder / checked_key(key)
        with replacing(target) as temporary:
            _copy(path, temporary)
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
            if not path.name.endswith(_PART) and path.is_file()
        )
        # Files that are no objects of ours, such as those that a file system leaves, have names that are no keys.
        return iter(sorted(key for key in found if key.startswith(prefix) and _KEY.fullmatch(key)))

    def delete(self, key: str) -> None:
        path = self._folder / checked_key(key)
        if path.is_file():
            path.unlink(missing_ok=True)

    def clear_unfinished(self, prefix: str, older_s: float) -> None:
        folder = self._folder / prefix.rpartition("/")[0]
        for path in folder.rglob(f".*{_PART}"):
            with suppress(FileNotFoundError):
                key = path.with_name(path.name[1:]).relative_to(self._folder).as_posix()
                if key.startswith(prefix) and time.time() - path.stat().st_mtime > older_s:
                    path.unlink()


class S3Store:
    """Objects of an S3 bucket, or of a part of it.

    Args:
        bucket: Name of the bucket.
        prefix: Prefix of all keys in the bucket, without a slash at its end.
        client: A boto3 client of S3; None: a new one with boto3's configuration.
        within_s: Seconds within which a request is answered or fails; None: after several tries, some minutes.
    """

    def __init__(
        self, bucket: str, prefix: str = "", client: Any = None, *, within_s: float | None = None
    ) -> None:
        self._is_given, self._within_s = client is not None, within_s
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._client: Any = client or self._new_client()

    def put_once(self, key: str, content: bytes) -> bool:
        where = self._where(key)
        while True:
            try:
                self._ask("put_object", **where, Body=content, IfNoneMatch="*")
            except _Refused as refused:
                if refused.status == 412:
                    return False
                if refused.status == 409:
                    # Somebody else is writing it at this moment; ask again until that has ended.
                    continue
                raise
            return True

    def put_file(self, key: str, path: Path) -> None:
        # boto3 uploads a large file in parts, several at a time.
        self._ask("upload_file", str(path), self._bucket, self._prefix + checked_key(key))

    def get_file(self, key: str, path: Path) -> None:
        try:
            self._ask("download_file", self._bucket, self._prefix + checked_key(key), str(path))
        except _Refused as refused:
            raise refused.as_missing(key) from None

    def get(self, key: str) -> bytes:
        from botocore.exceptions import BotoCoreError

        try:
            content: bytes = self._ask("get_object", **self._where(key))["Body"].read()
        except _Refused as refused:
            raise refused.as_missing(key) from None
        except BotoCoreError as error:
            raise StorageError(f"{key} is not read: {error}") from error
        return content

    def has(self, key: str) -> bool:
        try:
            self._ask("head_object", **self._where(key))
        except _Refused as refused:
            if refused.status == 404:
                return False
            raise
        return True

    def size_bytes(self, key: str) -> int:
        try:
            size: int = self._ask("head_object", **self._where(key))["ContentLength"]
        except _Refused as refused:
            raise refused.as_missing(key) from None
        return size

    def keys(self, prefix: str = "") -> Iterator[str]:
        after: dict[str, str] = {}
        while True:
            page = self._ask("list_objects_v2", Bucket=self._bucket, Prefix=self._prefix + prefix, **after)
            for entry in page.get("Contents", ()):
                yield entry["Key"].removeprefix(self._prefix)
            if not page.get("IsTruncated"):
                return
            after = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        self._ask("delete_object", **self._where(key))

    def clear_unfinished(self, prefix: str, older_s: float) -> None:
        after: dict[str, str] = {}
        while True:
            page = self._ask("list_multipart_uploads", Bucket=self._bucket, Prefix=self._prefix + prefix, **after)
            for upload in page.get("Uploads", ()):
                if time.time() - upload["Initiated"].timestamp() > older_s:
                    with suppress(StorageError):
                        self._ask(
                            "abort_multipart_upload",
                            Bucket=self._bucket,
                            Key=upload["Key"],
                            UploadId=upload["UploadId"],
                        )
            if not page.get("IsTruncated"):
                return
            after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _ask(self, method: str, *arguments: Any, **given: Any) -> Any:
        """Call the client; its errors become `StorageError`."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(self._client, method)(*arguments, **given)
        except ClientError as error:
            if error.response["Error"]["Code"] in _EXPIRED and not self._is_given:
                # A new client finds credentials that were renewed where they are kept.
                self._client = self._new_client()
            raise _Refused(str(error), error.response["ResponseMetadata"]["HTTPStatusCode"]) from error
        except (BotoCoreError, Boto3Error) as error:
            raise self._unusable(error) from error

    def _new_client(self) -> Any:
        from botocore.exceptions import BotoCoreError

        try:
            return _s3_client(self._within_s)
        except BotoCoreError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> StorageError:
        """The error for one of boto3's; where credentials are missing, with the store and what to do."""
        from botocore import exceptions

        missing = (
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
            exceptions.CredentialRetrievalError,
            exceptions.ProfileNotFound,
        )
        if not isinstance(error, missing):
            return StorageError(str(error))
        store = f"s3://{self._bucket}/{self._prefix}".rstrip("/")
        return StorageError(
            f"{store} cannot be used: {str(error).rstrip('.')}; run `aws configure`, or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or use a machine with a role that may use the bucket"
        )

    def _where(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + checked_key(key)}


def _s3_client(within_s: float | None) -> Any:
    import boto3
    from botocore.config import Config

    if within_s is None:
        tries, connect_s, silent_s = 8, _CONNECT_S, _SILENT_S
    else:
        # Between two tries boto3 waits for up to a second.
        tries, connect_s, silent_s = 2, within_s / 8.0, within_s / 4.0
    config = Config(
        retries={"mode": "standard", "total_max_attempts": tries}, connect_timeout=connect_s, read_timeout=silent_s
    )
    return boto3.Session().client("s3", config=config)


class _Refused(StorageError):
    """S3 refused a request."""

    def __init__(self, problem: str, status: int) -> None:
        super().__init__(problem)
        self.status = status

    def as_missing(self, key: str) -> Exception:
        """`MissingObjectError` if S3 refused because there is no such object; else this error."""
        return MissingObjectError(key) if self.status == 404 else self


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
