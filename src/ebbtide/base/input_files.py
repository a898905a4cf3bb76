"""Opening files that users name: every problem is an `InputError`, and no file can block us or fill the memory.

Readers of every format begin here. So a folder, a pipe, a device, a file without permission, a file that is too
large and text in another encoding give the same error everywhere.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from ebbtide.errors import InputError

_MIB = 1 << 20

# Settings that people write by hand, and answers of price APIs (90 days of a region are about 100 MiB).
MAX_SETTINGS_BYTES = 4 * _MIB
MAX_JSON_BYTES = 1024 * _MIB

_NOT_FILES = (
    (stat.S_ISDIR, "is a folder; name a file"),
    (stat.S_ISFIFO, "is a pipe; write its content to a file first"),
    (stat.S_ISSOCK, "is a socket; name a file"),
    (stat.S_ISCHR, "is a device; name a file"),
    (stat.S_ISBLK, "is a device; name a file"),
)


def existing_file(path: str | Path) -> Path:
    """The path, if it names a regular file that exists; the file is not opened.

    Raises:
        InputError: There is none, or it is a folder, a pipe, a socket or a device.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise InputError("there is no such file", file=path) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {reason_of(error)}", file=printable_path(path)) from None
    for is_kind, problem in _NOT_FILES:
        if is_kind(mode):
            raise InputError(problem, file=path)
    return path


def read_bytes(path: str | Path, *, max_bytes: int) -> bytes:
    """The content of a regular file.

    Args:
        path: Path of the file to read.
        max_bytes: The largest size that is accepted, in bytes.

    Raises:
        InputError: It is no regular file, cannot be read, or is too large.
    """
    path = existing_file(path)
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {reason_of(error)}", file=path) from None
    if len(content) > max_bytes:
        raise InputError(f"is larger than {max_bytes / _MIB:g} MiB, the most that is read", file=path)
    return content


def read_text(path: str | Path, *, max_bytes: int = MAX_SETTINGS_BYTES) -> str:
    """The content of a text file in UTF-8, without the byte order mark that some editors put first.

    Raises:
        InputError: It is no regular file, cannot be read, is too large, or is not text in UTF-8.
    """
    return decoded_text(read_bytes(path, max_bytes=max_bytes), path)


def decoded_text(content: bytes, path: str | Path) -> str:
    """Bytes in UTF-8 as text, without a byte order mark.

    Raises:
        InputError: They are not text in UTF-8; names the line.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"is not UTF-8 text (byte 0x{content[error.start]:02x} in line {line}); save it as UTF-8", file=path
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(f"is not text: line {line} holds a NUL byte", file=path)
    return text


def read_json(path: str | Path, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """The value in a JSON file.

    Raises:
        InputError: It cannot be read, or is not JSON that can be held: see `parsed_json`.
    """
    return parsed_json(read_text(path, max_bytes=max_bytes), path)


def parsed_json(text: str, file: str | Path) -> Any:
    """The value of a JSON text.

    Args:
        text: The text of a JSON document.
        file: Name of the file, for the error message.

    Raises:
        InputError: It is not JSON, nests too deeply, or holds a number of thousands of digits.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise json_error(error, file) from None


def json_error(error: Exception, file: str | Path) -> InputError:
    """An `InputError` for an exception that `json` raised."""
    if isinstance(error, json.JSONDecodeError):
        return InputError(f"is not JSON: {error.msg} in line {error.lineno}", file=file)
    if isinstance(error, RecursionError):
        return InputError("is JSON nested too deeply to be read", file=file)
    return InputError("is JSON with a whole number of too many digits to be read", file=file)


def reason_of(error: Exception) -> str:
    """Reason why an operation on a file failed, without Python's error number and path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def printable_path(path: Path) -> str:
    """A path as text that holds no NUL byte."""
    return str(path).replace("\0", "\\0")
