"""Contents of files as people have them: compressed or not, in archives, and in the encodings that shells write.

What a file is shows in its first bytes; its name is only believed of what has none. Sizes are limited after
decompression, so that a small file cannot fill the memory.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from ebbtide.base.input_files import decoded_text, existing_file, reason_of
from ebbtide.errors import InputError
from ebbtide.market.sources.foreign import require_archive, require_prices

_MIB = 1 << 20

# Three months of a region are about 100 MiB, a month of all regions about 2 GiB.
MAX_CONTENT_BYTES = 4096 * _MIB

# A file in an archive in an archive is read, and one that was compressed twice; nobody packs deeper than that.
_MOST_LAYERS = 3

_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_UTF_32_MARKS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)

_HEAD_BYTES = 65536

# Formats that are opened by their path, which has to be that of the decompressed file.
_OPENED_BY_PATH = (b"PAR1", b"SQLite format 3\x00")

# What stands beside prices in a folder or an archive and holds none.
_ASIDE = re.compile(
    r"(?i)(?:\.|__macosx|readme|licen[cs]e|copying|notice|changelog|manifest|checksums?|(?:sha|md5)\d*sums?).*"
    r"|.*\.(?:md|rst|pdf|html?|sha\d+|md5|asc|sig|py|sh|log|tmp|part|crc)"
)


def _zstd(raw: IO[bytes]) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(raw, "zstd")


def _lz4(raw: IO[bytes]) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(raw, "lz4")


def _gzip(raw: IO[bytes]) -> Any:
    return gzip.GzipFile(fileobj=raw)


# By the first bytes: the name of the compression, and what reads it.
_COMPRESSIONS: dict[bytes, tuple[str, Callable[[IO[bytes]], Any]]] = {
    b"\x1f\x8b": ("gzip", _gzip),
    b"\x28\xb5\x2f\xfd": ("zstd", _zstd),
    b"BZh": ("bzip2", bz2.BZ2File),
    b"\xfd7zXZ\x00": ("xz", lzma.LZMAFile),
    b"\x04\x22\x4d\x18": ("lz4", _lz4),
}


def head_of(path: str | Path, size_bytes: int = _HEAD_BYTES) -> bytes:
    """The first bytes of a file's content, decompressed.

    Raises:
        InputError: It is no regular file, cannot be read, or is not compressed as it says.
    """
    path = existing_file(path)
    try:
        with path.open("rb") as file, _decompressed(file, path) as content:
            return content.read(size_bytes)
    except OSError as error:
        raise InputError(f"cannot be read: {reason_of(error)}", file=path) from None


def content_text(path: str | Path) -> str:
    """The text of a file, decompressed and decoded.

    Raises:
        InputError: It is no regular file, cannot be read, is too large, is not compressed as it says, or is not
            text in UTF-8 or, with a byte order mark, UTF-16 or UTF-32.
    """
    path = existing_file(path)
    try:
        with path.open("rb") as file, _decompressed(file, path) as stream:
            content = stream.read(MAX_CONTENT_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {reason_of(error)}", file=path) from None
    require_prices(content[:_HEAD_BYTES], path)
    if len(content) > MAX_CONTENT_BYTES:
        raise InputError(
            f"is larger than {MAX_CONTENT_BYTES // _MIB} MiB, the most that is read at once; split it", file=path
        )
    return as_text(content, path)


def as_text(content: bytes, path: str | Path) -> str:
    """Bytes as text: UTF-8, or what their byte order mark says, as PowerShell's `>` writes UTF-16."""
    if content.startswith(_UTF_32_MARKS) and len(content) % 4 == 0:
        encoding = "utf-32"
    elif content.startswith(_UTF_16_MARKS):
        encoding = "utf-16"
    else:
        return decoded_text(content, path)
    try:
        return decoded_text(content.decode(encoding).encode(), path)
    except UnicodeError:
        problem = f"is not UTF-8 text, nor {encoding.upper()} as its first bytes say; save it as UTF-8"
        raise InputError(problem, file=path) from None


def start_of_text(head: bytes, path: str | Path) -> str:
    """The first bytes of a file as text, whatever they are."""
    if head.startswith((*_UTF_16_MARKS, *_UTF_32_MARKS)):
        return as_text(head[: len(head) // 4 * 4], path)
    return head.decode("utf-8", errors="replace")


@contextmanager
def _decompressed(raw: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """The stream itself, or what it holds; whatever goes wrong in decompressing is an `InputError`."""
    import pyarrow

    stream: Any = raw
    name = ""
    with ExitStack() as opened:
        try:
            for layer in range(_MOST_LAYERS + 1):
                found = next((each for mark, each in _COMPRESSIONS.items() if _begins(stream, mark)), None)
                if found is None:
                    break
                if layer == _MOST_LAYERS:
                    raise InputError(f"is compressed more than {_MOST_LAYERS} times; unpack it first", file=path)
                name, reader = found
                stream = io.BufferedReader(_Raw(opened.enter_context(reader(stream))), _MIB)
            yield stream
        except (OSError, EOFError, zlib.error, lzma.LZMAError, pyarrow.ArrowException) as error:
            if not name:
                raise
            raise InputError(
                f"cannot be decompressed: it is cut short or damaged ({name}: {error})", file=path
            ) from None


def _begins(stream: Any, mark: bytes) -> bool:
    return bool(stream.peek(len(mark))[: len(mark)] == mark)


class _Raw(io.RawIOBase):
    """Raw input of a decompressor, which a buffered reader over it can look ahead in."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._stream.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


def is_archive(path: str | Path) -> bool:
    """Return whether a file is a zip or tar archive, compressed or not."""
    head = head_of(path, 512)
    return head.startswith(b"PK\x03\x04") or head[257:262] == b"ustar"


@contextmanager
def unpacked(path: str | Path) -> Iterator[list[tuple[Path, Path]]]:
    """The files of an archive or folder, or a file itself: each as the name for messages and the path to read.

    Files are in the natural order of their names, `9.csv` before `10.csv`. Hidden files, and those that hold no
    prices by their names (README, checksums), are left out of archives and folders.

    Raises:
        InputError: There is no such file, a folder or archive holds no files, or is damaged or too large.
    """
    path = Path(path)
    with tempfile.TemporaryDirectory(prefix="ebbtide-") as scratch:
        yield list(_files(path, path, Path(scratch), 0))


def _files(name: Path, path: Path, scratch: Path, layer: int) -> Iterator[tuple[Path, Path]]:
    if path.is_dir():
        found = [each for each in path.rglob("*") if each.is_file() and not _is_aside(each.relative_to(path))]
        if not found:
            raise InputError("the folder holds no files", file=name)
        for each in sorted(found, key=lambda each: _natural(each.relative_to(path))):
            yield from _files(name / each.relative_to(path), each, scratch, layer)
        return
    existing_file(path)
    if not is_archive(path):
        yield name, _openable(path, scratch, name)
        return
    if layer == _MOST_LAYERS:
        raise InputError("is an archive in an archive in an archive; unpack it first", file=name)
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        _unpack(path, folder, name)
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        EOFError,
        zlib.error,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise InputError(f"cannot be unpacked: {error}", file=name) from None
    yield from _files(name, folder, scratch, layer + 1)


def _openable(path: Path, scratch: Path, name: Path) -> Path:
    """The path of a file's content, decompressed where it is of a format that is opened by its path."""
    with path.open("rb") as file:
        is_plain = file.read(16).startswith(_OPENED_BY_PATH)
    if is_plain or not head_of(path, 16).startswith(_OPENED_BY_PATH):
        return path
    folder = Path(tempfile.mkdtemp(dir=scratch))
    target, left_bytes = folder / path.stem, MAX_CONTENT_BYTES
    with path.open("rb") as file, _decompressed(file, path) as content, target.open("wb") as out:
        while block := content.read(_MIB):
            left_bytes -= len(block)
            if left_bytes < 0:
                raise InputError(f"holds more than {MAX_CONTENT_BYTES // _MIB} MiB; unpack it first", file=name)
            out.write(block)
    return target


def _unpack(path: Path, folder: Path, name: Path) -> None:
    """Write the regular files of an archive below a folder, which none of their names can leave."""
    left_bytes = MAX_CONTENT_BYTES

    def copied(content: IO[bytes], out: IO[bytes]) -> None:
        nonlocal left_bytes
        while block := content.read(_MIB):
            left_bytes -= len(block)
            if left_bytes < 0:
                raise InputError(f"holds more than {MAX_CONTENT_BYTES // _MIB} MiB; unpack it first", file=name)
            out.write(block)

    with tempfile.TemporaryFile(dir=folder) as plain:
        with path.open("rb") as file, _decompressed(file, path) as stream:
            copied(stream, plain)
        left_bytes = MAX_CONTENT_BYTES
        plain.seek(0)
        for member, content in _members(plain, name):
            parts = [part for part in Path(member).parts if part not in ("/", "..", ".")]
            if parts and not _is_aside(Path(*parts)):
                target = folder.joinpath(*parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as out:
                    copied(content, out)


def _members(archive: IO[bytes], name: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Names and contents of the regular files of a zip or tar archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            require_archive(zipped.namelist(), name)
            for info in zipped.infolist():
                if not info.is_dir():
                    with zipped.open(info) as content:
                        yield info.filename, content
        return
    archive.seek(0)
    with tarfile.open(fileobj=archive, mode="r:") as tarred:
        for member in tarred:
            held = tarred.extractfile(member) if member.isfile() else None
            if held is not None:
                yield member.name, held


def _is_aside(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts) or bool(_ASIDE.fullmatch(relative.name))


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """A key by which numbers in names sort as numbers."""
    words = re.findall(r"\d+|\D+", path.as_posix())
    return [(0, int(word), "") if word.isdigit() else (1, 0, word) for word in words]
