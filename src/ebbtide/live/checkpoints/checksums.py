"""Checksums of checkpoints: fast where xxhash is installed, by the standard library alone elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

try:
    import xxhash
except ImportError:
    _xxhash: Any = None
else:
    _xxhash = xxhash

XXH3, BLAKE2B = "xxh3-128", "blake2b-128"

_BLOCK_BYTES = 1 << 20


class Digest(Protocol):
    """What is being summed."""

    def update(self, content: bytes, /) -> None:
        """Add so much."""
        ...

    def hexdigest(self) -> str:
        """Of all so far."""
        ...


def _blake2b() -> Digest:
    return hashlib.blake2b(digest_size=16)


_DIGESTS: dict[str, Callable[[], Digest]] = {BLAKE2B: _blake2b}
if _xxhash is not None:
    _DIGESTS[XXH3] = _xxhash.xxh3_128

# 0.7 GiB/s a core by BLAKE2b: an upload beside it is slower. To a disk xxHash, at many times that, is not felt.
ALGORITHM = XXH3 if _xxhash is not None else BLAKE2B


def is_known(algorithm: str) -> bool:
    """Whether it can be computed here."""
    return algorithm in _DIGESTS


def checksum(content: bytes, algorithm: str = ALGORITHM) -> str:
    """Of bytes, in hexadecimal digits.

    Raises:
        ValueError: There is no such algorithm here.
    """
    digest = _digest(algorithm)
    digest.update(content)
    return digest.hexdigest()


def checksum_of(path: Path, algorithm: str = ALGORITHM) -> tuple[int, str]:
    """Length and checksum of a file, read once.

    Raises:
        ValueError: There is no such algorithm here.
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
