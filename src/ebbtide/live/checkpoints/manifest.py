"""What a checkpoint is made of: the last thing of it that is written, so that what has one is complete."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ebbtide.errors import InputError
from ebbtide.live.checkpoints.checksums import ALGORITHM, BLAKE2B, XXH3, checksum, is_known


@dataclass(frozen=True)
class StoredFile:
    """One file of a checkpoint.

    Attributes:
        path: Below the checkpoint's folder, with slashes.
        size_bytes: How long it is.
        checksum: Of its content, 128 bits in hexadecimal digits.
    """

    path: str
    size_bytes: int
    checksum: str


@dataclass(frozen=True)
class Manifest:
    """One complete checkpoint.

    Attributes:
        trial_id: Whose.
        number: Counted from 1 within the trial.
        writer: Who wrote it: counted from 1, a later one has the trial from an earlier one.
        step: Of the training that it holds.
        saved_at_s: When, seconds since 1970.
        files: In order of their paths.
        algorithm: Of all its checksums; manifests of old name none, and have XXH3.
    """

    trial_id: str
    number: int
    writer: int
    step: int
    saved_at_s: float
    files: tuple[StoredFile, ...]
    algorithm: str = ALGORITHM

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)

    def encode(self) -> bytes:
        """As JSON, with a checksum of itself."""
        body = json.dumps(asdict(self), sort_keys=True)
        return json.dumps({"checksum": checksum(body.encode(), self.algorithm), "manifest": body}).encode()

    @classmethod
    def decode(cls, content: bytes) -> Manifest:
        """Read what `encode` wrote. Without xxhash a manifest by it is taken as it is, if it can be read.

        Raises:
            InputError: It is torn or damaged.
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
            return cls(files=files, **found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"manifest is damaged: {error}") from None


def relative_path(path: str) -> Path:
    """The path of a file in a checkpoint.

    Raises:
        InputError: It leads out of the checkpoint's folder.
    """
    found = Path(path)
    if not path or found.is_absolute() or ".." in found.parts:
        raise InputError(f"{path!r} is no path inside a checkpoint")
    return found
