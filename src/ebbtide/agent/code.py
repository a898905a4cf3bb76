"""The user's code, packed once by the controller and unpacked on each machine."""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
from pathlib import Path

from ebbtide.errors import InputError
from ebbtide.object_storage import ObjectStore

# More is data, which has its own place in storage.
MOST_BYTES = 100 << 20

_LEFT_OUT = frozenset({"__pycache__", "node_modules"})


def packed(folder: Path) -> bytes:
    """All files below a folder but hidden ones, as a compressed archive; the same files give the same bytes.

    Raises:
        InputError: They are more than 100 MiB.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and _is_code(path.relative_to(folder))]
    total = sum(path.stat().st_size for path in files)
    if total > MOST_BYTES:
        largest = max(files, key=lambda path: path.stat().st_size)
        raise InputError(
            f"holds {total / (1 << 20):.0f} MiB, and {MOST_BYTES >> 20} are sent to each machine at most; put "
            f"data into storage (the largest file is {largest.relative_to(folder)})", file=folder,
        )  # fmt: skip
    buffer = io.BytesIO()
    zipped = gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0)
    with zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for path in files:
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size, entry.mode = path.stat().st_size, 0o700 if path.stat().st_mode & 0o100 else 0o600
            with path.open("rb") as content:
                tar.addfile(entry, content)
    return buffer.getvalue()


def unpack(objects: ObjectStore, key: str, into: Path) -> None:
    """Fetch an archive and unpack it into a folder, whole or not at all.

    Raises:
        OSError: Storage does not answer.
        tarfile.TarError: It is no such archive, or would write outside the folder.
    """
    if into.exists():
        return
    content = io.BytesIO(objects.get(key))
    with tempfile.TemporaryDirectory(dir=into.parent, ignore_cleanup_errors=True) as part:
        whole = Path(part) / "code"
        with tarfile.open(fileobj=content, mode="r:gz") as tar:
            tar.extractall(whole, filter="data")
        whole.rename(into)


def _is_code(path: Path) -> bool:
    return not any(part.startswith(".") or part in _LEFT_OUT for part in path.parts)
