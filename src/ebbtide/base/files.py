"""Writing files atomically: a reader sees the old content or the new, never a mixture."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ebbtide.errors import InputError


@contextmanager
def replacing(path: str | Path, mode: int | None = None) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success flush it to disk and rename it over `path`.

    If the body raises, the temporary file is removed and `path` is left as it was.

    Raises:
        InputError: `path` is a folder, or what it would lie in is none.
        OSError: It cannot be written.
    """
    path = Path(path)
    check_place(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        # Of the file that was to be written, whatever is beside it.
        error.filename = str(path)
        raise
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes private files; an ordinary new file obeys the umask.
        temporary.chmod(0o666 & ~_umask() if mode is None else mode)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_place(path: Path) -> None:
    """Raise `InputError` where a file cannot be written: to be asked before long work, whose result it takes."""
    if path.is_dir():
        raise InputError("is a folder; name a file", file=path)
    above = next((each for each in path.parents if each.exists()), path.parent)
    if above.exists() and not above.is_dir():
        raise InputError(f"is a file; {path} needs a folder there", file=above)
    if above.exists() and not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"cannot be written: nothing may be written in {above}", file=path)


@contextmanager
def only_one(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock that a second process cannot take; the lock of a killed process is free again.

    Args:
        lock: Path of the lock file; it is made if it does not exist.
        what: What the lock protects, for the error message, such as "nightly run".

    Raises:
        InputError: Another process holds the lock.
    """
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another {what} is under way in {lock.parent}") from None
        yield


def write_text(path: str | Path, text: str, mode: int | None = None) -> None:
    """Write `text` to `path` as UTF-8, atomically; `mode`: who may read it, by default as the umask says."""
    with replacing(path, mode) as temporary:
        temporary.write_text(text, encoding="utf-8")


def private(path: str, flags: int) -> int:
    """An opener, for `open`, of files that only their owner may read."""
    return os.open(path, flags, 0o600)


def write_secret(path: Path, text: str) -> None:
    """Write a new file that only its owner may read, atomically.

    Raises:
        FileExistsError: It exists already; it is left as it is.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(path).hardlink_to(name)
    finally:
        Path(name).unlink()


def _umask() -> int:
    """The process's umask. To ask the system for it is to change it, for all threads, so it is looked up first."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    umask = os.umask(0)
    os.umask(umask)
    return umask
