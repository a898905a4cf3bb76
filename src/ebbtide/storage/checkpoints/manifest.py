"""Manifests of checkpoints, with checksums of their files.

The manifest is the last object of a checkpoint that is written, so a checkpoint that has one is complete.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol

from ebbtide.errors import InputError
from ebbtide.storage.checkpoints.tree import Extent, blocks_of

try:
    import xxhash
except ImportError:
    _xxhash: Any = None
else:
    _xxhash = xxhash

XXH3, BLAKE2B = "xxh3-128", "blake2b-128"


class Digest(Protocol):
    """A checksum that is being computed, with the interface of hashlib."""

    def update(self, content: bytes, /) -> None:
        """Add these bytes."""
        ...

    def hexdigest(self) -> str:
        """The checksum of all bytes so far, in hexadecimal digits."""
        ...


def _blake2b() -> Digest:
    return hashlib.blake2b(digest_size=16)


_DIGESTS: dict[str, Callable[[], Digest]] = {BLAKE2B: _blake2b}
if _xxhash is not None:
    _DIGESTS[XXH3] = _xxhash.xxh3_128

# BLAKE2b does 0.7 GiB/s a core, which is faster than most uploads; xxHash is many times faster, for fast disks.
ALGORITHM = XXH3 if _xxhash is not None else BLAKE2B


def is_known(algorithm: str) -> bool:
    """Return whether checksums of this algorithm can be computed here."""
    return algorithm in _DIGESTS


def checksum(content: bytes, algorithm: str = ALGORITHM) -> str:
    """Checksum of bytes, in hexadecimal digits.

    Raises:
        ValueError: The algorithm is not known here.
    """
    digest = _digest(algorithm)
    digest.update(content)
    return digest.hexdigest()


def checksum_of(
    path: Path, algorithm: str = ALGORITHM, extents: Sequence[Extent] | None = None
) -> tuple[int, str]:
    """Length in bytes and checksum of a file, which is read once.

    Args:
        path: Path of the file.
        algorithm: Algorithm of the checksum.
        extents: The parts of the file that are read; None: all of it.

    Raises:
        ValueError: The algorithm is not known here.
    """
    digest, size = _digest(algorithm), 0
    for block in blocks_of(path, extents):
        digest.update(block)
        size += len(block)
    return size, digest.hexdigest()


def _digest(algorithm: str) -> Digest:
    if algorithm not in _DIGESTS:
        raise ValueError(f"checksums by {algorithm} cannot be computed here")
    return _DIGESTS[algorithm]()


_MOST = 1 << 60
# Name of the object that holds a file's content, below the trial's data.
_PART = re.compile(r"\d{8,20}-\d{6,20}/\d{6,20}")
_MOST_MODE = 0o777


@dataclass(frozen=True)
class StoredFile:
    """File of a checkpoint, as its manifest lists it.

    Attributes:
        path: Path below the checkpoint's folder, with slashes.
        size_bytes: Length of the file in bytes.
        checksum: Checksum of its content without holes, 128 bits in hexadecimal digits.
        mode: Permissions of the file; 0: saved by a version that did not store them.
        mtime_ns: Time of the last change in ns since 1970; 0: not stored, as for `mode`.
        part: Name of the object that holds its content, below the trial's data; empty: the one named by the
            file's place among the files.
        offset: Position in bytes at which the content begins in that object.
        extents: Parts of a sparse file that hold data, whose content is stored; None: the whole file.
        same_as: Path of the file of which this is another name (a hard link); empty: no hard link.
    """

    path: str
    size_bytes: int
    checksum: str
    mode: int = 0
    mtime_ns: int = 0
    part: str = ""
    offset: int = 0
    extents: tuple[Extent, ...] | None = None
    same_as: str = ""

    @property
    def content_bytes(self) -> int:
        """Bytes of the file that are stored, without holes."""
        return self.size_bytes if self.extents is None else sum(length for _, length in self.extents)


@dataclass(frozen=True)
class StoredLink:
    """A symbolic link of a checkpoint.

    Attributes:
        path: Path below the checkpoint's folder, with slashes.
        target: Where it leads.
        mtime_ns: Time of its last change in ns since 1970.
    """

    path: str
    target: str
    mtime_ns: int = 0


@dataclass(frozen=True)
class StoredFolder:
    """A folder of a checkpoint.

    Attributes:
        path: Path below the checkpoint's folder, with slashes.
        mode: Permissions.
        mtime_ns: Time of its last change in ns since 1970.
    """

    path: str
    mode: int
    mtime_ns: int = 0


@dataclass(frozen=True)
class Manifest:
    """Record of a complete checkpoint.

    Attributes:
        trial_id: Id of the trial that the checkpoint belongs to.
        number: Number of the checkpoint, counted from 1 within the trial.
        writer: Number of its writer, counted from 1; a later writer has taken the trial over from an earlier one.
        step: Training step that it holds.
        saved_at_s: Time of saving in seconds since 1970.
        files: Its files, in order of their paths.
        algorithm: Algorithm of all its checksums; old manifests name none, and have XXH3.
        attempt: Number of the assignment that it was saved in.
        machines: Number of machines that trained as one; each saves a checkpoint of its own.
        links: Its symbolic links.
        folders: Its folders.
        metric: Value of the trial's metric at the save; None: not known.
        uploaded_bytes: Bytes uploaded since the writer's previous checkpoint, failed attempts included; None:
            saved by an older version, which did not record them.
        unreadable: Paths that the agent was not allowed to read, so that the checkpoint lacks them.
    """

    trial_id: str
    number: int
    writer: int
    step: int
    saved_at_s: float
    files: tuple[StoredFile, ...]
    algorithm: str = ALGORITHM
    attempt: int = 0
    machines: int = 1
    links: tuple[StoredLink, ...] = ()
    folders: tuple[StoredFolder, ...] = ()
    metric: float | None = None
    uploaded_bytes: int | None = None
    unreadable: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of all files together in bytes."""
        return sum(file.size_bytes for file in self.files)

    def encode(self) -> bytes:
        """The manifest as JSON, with a checksum of itself."""
        body = json.dumps(_plain(self), sort_keys=True)
        return json.dumps({"checksum": checksum(body.encode(), self.algorithm), "manifest": body}).encode()

    @classmethod
    def decode(cls, content: bytes) -> Manifest:
        """Read what `encode` wrote. Its own checksum is checked if its algorithm is known here.

        Raises:
            InputError: It is incomplete or damaged.
        """
        try:
            outer = json.loads(content)
            body = outer["manifest"]
            found = {"algorithm": XXH3, **json.loads(body)}
            if found["algorithm"] not in (XXH3, BLAKE2B):
                raise ValueError(f"there are no checksums by {found['algorithm']}")
            if is_known(found["algorithm"]) and checksum(body.encode(), found["algorithm"]) != outer["checksum"]:
                raise ValueError("its checksum is another")
            files = tuple(_file(**file) for file in found.pop("files"))
            links = tuple(StoredLink(**link) for link in found.pop("links", ()))
            folders = tuple(StoredFolder(**folder) for folder in found.pop("folders", ()))
            unreadable = tuple(found.pop("unreadable", ()))
            manifest = cls(files=files, links=links, folders=folders, unreadable=unreadable, **found)
            manifest._check()
            return manifest
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise InputError(f"manifest is damaged: {error}") from None

    def _check(self) -> None:
        """Check what was read, since anybody may have written it.

        Raises:
            ValueError: A field has a value that no manifest of ours has.
        """
        whole = {name: getattr(self, name) for name in ("number", "writer", "step", "attempt", "machines")}
        whole["uploaded_bytes"] = 0 if self.uploaded_bytes is None else self.uploaded_bytes
        entries: list[StoredFile | StoredLink | StoredFolder] = [*self.files, *self.links, *self.folders]
        for file in self.files:
            whole |= {f"{name} of {file.path!r:.80}": getattr(file, name) for name in ("size_bytes", "offset")}
            for extent in file.extents or ():
                whole |= {f"extent {place} of {file.path!r:.80}": value for place, value in enumerate(extent)}
        for name, value in whole.items():
            if type(value) is not int or not 0 <= value < _MOST:
                raise ValueError(f"its {name} is no whole number in range")
        for entry in entries:
            if type(entry.mtime_ns) is not int or abs(entry.mtime_ns) >= 1 << 63:
                raise ValueError("a time of change in it is no whole number in range")
            if type(mode := getattr(entry, "mode", 0)) is not int or not 0 <= mode <= _MOST_MODE:
                raise ValueError("permissions in it are none")
        texts = [
            self.trial_id,
            *self.unreadable,
            *(entry.path for entry in entries),
            *(link.target for link in self.links),
        ]
        texts += [text for file in self.files for text in (file.checksum, file.part, file.same_as)]
        if not all(isinstance(text, str) and "\0" not in text for text in texts):
            raise ValueError("a name or checksum in it is no text")
        if type(self.saved_at_s) not in (int, float) or not math.isfinite(self.saved_at_s):
            raise ValueError("its time of saving is no number")
        if self.metric is not None and (type(self.metric) not in (int, float) or not math.isfinite(self.metric)):
            raise ValueError("its metric is no number")
        self._check_paths()

    def _check_paths(self) -> None:
        """Check that no entry leads out of the folder, by its name or through a link."""
        files, links = {file.path for file in self.files}, {link.path for link in self.links}
        folders = {folder.path for folder in self.folders}
        if len(files) + len(links) + len(folders) < len(self.files) + len(self.links) + len(self.folders):
            raise ValueError("it has a name twice")
        no_folders = files | links
        if files & links or no_folders & folders:
            raise ValueError("it has a name twice")
        for path in (*files, *links, *folders):
            above = relative_path(path).as_posix()
            if above != path:
                raise ValueError(f"{path!r:.80} is no plain path")
            while "/" in above:
                above = above.rpartition("/")[0]
                if above in no_folders:
                    raise ValueError(f"{path!r:.80} would be below {above!r:.80}, which is no folder")
        for file in self.files:
            if file.part and not _PART.fullmatch(file.part):
                raise ValueError(f"{file.part!r:.80} holds no content of a file")
            if file.same_as and file.same_as not in files:
                raise ValueError(f"{file.same_as!r:.80} is no file of it")
            ends = 0
            for begins, length in file.extents or ():
                if begins < ends or length <= 0:
                    raise ValueError(f"parts of {file.path!r:.80} overlap")
                ends = begins + length
            if ends > file.size_bytes:
                raise ValueError(f"parts of {file.path!r:.80} lie behind its end")


def _file(*, extents: Sequence[Sequence[int]] | None = None, **values: Any) -> StoredFile:
    found = None if extents is None else tuple((begins, length) for begins, length in extents)
    return StoredFile(**values, extents=found)


def _plain(record: Any) -> dict[str, Any]:
    """The fields of a record, without those that have their default, except the ones in `_ALWAYS`."""
    found = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name in _ALWAYS or value != field.default:
            listed = isinstance(value, tuple) and value and not isinstance(value[0], tuple)
            found[field.name] = (
                [_plain(each) if is_dataclass(each) else each for each in value] if listed else value
            )
    return found


_ALWAYS = frozenset({"files", "algorithm", "attempt", "machines"})


def relative_path(path: str) -> Path:
    """A file's path below its checkpoint's folder.

    Raises:
        InputError: The path leads out of that folder.
    """
    found = Path(path)
    if not path or found.is_absolute() or ".." in found.parts:
        raise InputError(f"{path!r} is no path inside a checkpoint")
    return found
