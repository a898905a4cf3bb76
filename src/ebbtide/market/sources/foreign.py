"""Files that are not what people take them for, by their first bytes: each with what to do instead."""

from __future__ import annotations

import re
from pathlib import Path

from ebbtide.errors import InputError

_EXCEL = "an Excel workbook; save its sheet as CSV"

_NO_SPOT = "which has no history of spot prices"

# By the first bytes: what a file is, and what to do.
_BINARY: dict[bytes, str] = {
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an old Excel workbook or another Office file; save its sheet as CSV",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it first",
    b"Rar!\x1a\x07": "a RAR archive; unpack it first",
    b"PK\x05\x06": "a zip archive without files",
    b"\x1f\x9d": "compressed by `compress`; unpack it with `uncompress`",
    b"LZIP\x01": "compressed by lzip; unpack it with `lzip -d`",
    b"\xff\x06\x00\x00sNaPpY": "compressed by Snappy; decompress it first",
    b"%PDF": "a PDF; prices are read from CSV, JSON or Parquet",
    b"ARROW1": "an Arrow or Feather file; write it as Parquet: pandas.read_feather(...).to_parquet(...)",
    b"ORC": "an ORC file; write it as Parquet: pandas.read_orc(...).to_parquet(...)",
    b"Obj\x01": "an Avro file; write it as Parquet or JSON lines",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file; write its table as Parquet or CSV",
    b"PARE": "an encrypted Parquet file; write it without encryption",
    b"\x93NUMPY": "an array of NumPy; write it as CSV with names of columns",
    **dict.fromkeys(
        (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"),
        "a pickle, which is not opened; write it as Parquet: frame.to_parquet(...)",
    ),
    **dict.fromkeys(
        (b"\x89PNG", b"\xff\xd8\xff", b"GIF8"), "a picture; prices are read from CSV, JSON or Parquet"
    ),
}
_TEXT: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (
        re.compile(rb"version https://git-lfs\.github\.com/spec/"),
        "a pointer of Git LFS, not the file itself; fetch it with `git lfs pull`",
    ),
    (
        re.compile(rb"(?is)(?:<\?xml[^>]*>\s*)?<(?:!doctype html|html|head|body)\b"),
        "a page of HTML, perhaps an error or a login instead of the file; download it again",
    ),
    (
        re.compile(rb"(?is)(?:<\?xml[^>]*>\s*)?<Error>.{0,200}?<Code>(?P<code>\w{1,60})</Code>"),
        "an error of a storage service instead of the file ({code}); download it again",
    ),
    (
        re.compile(rb"(?is)(?:<\?xml[^>]*>\s*)?(?:<\?mso-application[^>]*>\s*)?<Workbook\b"),
        _EXCEL,
    ),
    (re.compile(rb"<\?xml\b"), "XML; prices are read from CSV, JSON or Parquet"),
    (re.compile(rb"\{\\rtf"), "rich text; save it as plain text"),
    (
        re.compile(
            rb"(?s)\{(?=.{0,400}?\"offerCode\"\s*:)|\"FormatVersion\"|\{\s*\"(?:FormatVersion|PriceList)\"\s*:"
        ),
        f"AWS's price list, {_NO_SPOT}; spot prices: `aws ec2 describe-spot-price-history`",
    ),
    (
        re.compile(rb"(?s)[{\[](?=.{0,400}?\"skuId\"\s*:)(?=.{0,4000}?\"serviceRegions\"\s*:)"),
        f"Google's billing catalogue, {_NO_SPOT}; `ebbtide catalogue update --gcp REGION` reads that itself",
    ),
    (
        re.compile(rb"(?s)[{\[](?=.{0,4000}?\"resourceType\"\s*:\s*\"virtualMachines\")"),
        "Azure's list of machines, which has no prices; they are in https://prices.azure.com/api/retail/prices",
    ),
    (
        re.compile(rb"(?s)\{(?=.{0,4000}?\"(?:costComponents|projects)\"\s*:\s*\[)(?=.{0,4000}?\"currency\"\s*:)"),
        "an estimate of Infracost, which is of no moment in time and has no zones; give a history of spot prices",
    ),
)
# Names in zip files that are documents.
_DOCUMENTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"xl/.*"), _EXCEL),
    (re.compile(r"word/.*"), "a Word document; save its table as CSV"),
    (re.compile(r"content\.xml"), "an OpenDocument file; save its sheet as CSV"),
    (re.compile(r"Index/(?:Document|Tables/.*)\.iwa"), "a Numbers or Pages document; export it as CSV"),
)
_SHOWN_BYTES = 4096


def require_prices(head: bytes, path: str | Path) -> None:
    """Raise `InputError` for a file whose first bytes, decompressed, are of something else than prices."""
    what = next((what for mark, what in _BINARY.items() if head.startswith(mark)), None)
    if what is None:
        text = head[:_SHOWN_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip()
        for pattern, each in _TEXT:
            if (found := pattern.match(text)) is not None:
                named = {name: value.decode("ascii", "replace") for name, value in found.groupdict().items()}
                what = each.format(**named)
                break
    if what is not None:
        raise InputError(f"is {what}", file=path)


def require_archive(names: list[str], path: str | Path) -> None:
    """Raise `InputError` for a zip file that is a document, by the names of what is in it."""
    for pattern, what in _DOCUMENTS:
        if any(map(pattern.fullmatch, names)):
            raise InputError(f"is {what}", file=path)
