"""Manifests of checkpoints, with checksums of their files.

The manifest is the last object of a checkpoint that is written, so a checkpoint that has one is complete.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from ebbtide.errors import InputError

try:
    import xxhash
except ImportError:
    _xxhash: Any = None
else:
    _xxhash = xxhash

XXH3, BLAKE2B = "xxh3-128", "blake2b-128"

_BLOCK_BYTES = 1 << 20


class Digest(Protocol):
    """A checksum in the making, as hashlib has it."""

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
    """Whether checksums of this algorithm can be computed here."""
    return algorithm in _DIGESTS


def checksum(content: bytes, algorithm: str = ALGORITHM) -> str:
    """Checksum of bytes, in hexadecimal digits.

    Raises:
        ValueError: The algorithm is not known here.
    """
    digest = _digest(algorithm)
    digest.update(content)
    return digest.hexdigest()


def checksum_of(path: Path, algorithm: str = ALGORITHM) -> tuple[int, str]:
    """Length in bytes and checksum of a file, which is read once.

    Raises:
        ValueError: The algorithm is not known here.
    """
    digest, size = _digest(algorithm), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _digest(algorithm: str) -> Digest:
    if algorithm not in _DIGESTS:
        raise ValueError(f"checksums by {algorithm} cannot be computed here")
    return _DIGESTS[algorithm]()


_MOST = 1 << 60


@dataclass(frozen=True)
class StoredFile:
    """One file of a checkpoint.

    Attributes:
        path: Path below the checkpoint's folder, with slashes.
        size_bytes: Length of the file in bytes.
        checksum: Checksum of its content, 128 bits in hexadecimal digits.
    """

    path: str
    size_bytes: int
    checksum: str


@dataclass(frozen=True)
class Manifest:
    """One complete checkpoint.

    Attributes:
        trial_id: Id of the trial that it belongs to.
        number: Number of the checkpoint, counted from 1 within the trial.
        writer: Number of its writer, counted from 1; a later writer has taken the trial over from an earlier one.
        step: Training step that it holds.
        saved_at_s: Time of saving in seconds since 1970.
        files: Its files, in order of their paths.
        algorithm: Algorithm of all its checksums; old manifests name none, and have XXH3.
        attempt: Number of the assignment that it was saved in.
        machines: Number of machines that trained it as one; each saves a checkpoint of its own.
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

    @property
    def size_bytes(self) -> int:
        """Size of all files together in bytes."""
        return sum(file.size_bytes for file in self.files)

    def encode(self) -> bytes:
        """The manifest as JSON, with a checksum of itself."""
        body = json.dumps(asdict(self), sort_keys=True)
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
            files = tuple(StoredFile(**file) for file in found.pop("files"))
            manifest = cls(files=files, **found)
            manifest._check()
            return manifest
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise InputError(f"manifest is damaged: {error}") from None

    def _check(self) -> None:
        """Check what was read: whoever wrote it may have been anybody.

        Raises:
            ValueError: A field has a value that none has that was written here.
        """
        whole = {name: getattr(self, name) for name in ("number", "writer", "step", "attempt", "machines")}
        whole |= {f"size of {file.path!r:.80}": file.size_bytes for file in self.files}
        for name, value in whole.items():
            if type(value) is not int or not 0 <= value < _MOST:
                raise ValueError(f"its {name} is no whole number in range")
        texts = [self.trial_id, *(text for file in self.files for text in (file.path, file.checksum))]
        if not all(isinstance(text, str) and "\0" not in text for text in texts):
            raise ValueError("a name or checksum in it is no text")
        if type(self.saved_at_s) not in (int, float) or not math.isfinite(self.saved_at_s):
            raise ValueError("its time of saving is no number")
        for file in self.files:
            relative_path(file.path)


def relative_path(path: str) -> Path:
    """A file's path below its checkpoint's folder.

    Raises:
        InputError: The path leads out of that folder.
    """
    found = Path(path)
    if not path or found.is_absolute() or ".." in found.parts:
        raise InputError(f"{path!r} is no path inside a checkpoint")
    return found
