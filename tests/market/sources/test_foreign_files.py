"""Files that are something else than their names say: read by what they are, or told what they are."""

from __future__ import annotations

import bz2
import gzip
import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.feather
import pytest
from tests.market.sources.test_forms import FORMS, ROWS, expected, history

from ebbtide.errors import InputError
from ebbtide.market.ingestion import ingest_files, read_source

CSV = FORMS["the documented CSV"](ROWS).encode()


def zipped(files: Mapping[str, bytes]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return held.getvalue()


def tarred(files: Mapping[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return held.getvalue()


def parquet() -> bytes:
    held = io.BytesIO()
    expected(ROWS).to_frame().to_parquet(held, index=False)
    return held.getvalue()


PACKED: dict[str, Callable[[], bytes]] = {
    "gzipped twice": lambda: gzip.compress(gzip.compress(CSV)),
    "gzipped in Zstandard in bzip2": lambda: bz2.compress(
        pyarrow.compress(gzip.compress(CSV), "zstd", asbytes=True)
    ),
    "Parquet in gzip": lambda: gzip.compress(parquet()),
    "Parquet in gzip in gzip": lambda: gzip.compress(gzip.compress(parquet())),
    "Parquet in gzip in zip": lambda: zipped({"a.parquet.gz": gzip.compress(parquet())}),
    "zip in gzip": lambda: gzip.compress(zipped({"a.csv": CSV})),
    "tar in gzip in gzip": lambda: gzip.compress(tarred({"a/b.csv.gz": gzip.compress(CSV)})),
    "CSV": lambda: CSV,
    "Parquet": parquet,
}


@pytest.mark.parametrize("name", ["a", "a.csv", "a.gz", "a.parquet", "a.xlsx", "a.zip"])
@pytest.mark.parametrize("packed", PACKED)
def test_names_do_not_count(tmp_path: Path, name: str, packed: str) -> None:
    (tmp_path / name).write_bytes(PACKED[packed]())
    done = ingest_files([tmp_path / name], tmp_path / "into.parquet")
    assert done.history.equals(expected(ROWS))


def test_a_text_in_a_text_of_gzip_is_read_as_one_batch(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(PACKED["gzipped twice"]())
    assert history(tmp_path / "a.csv").equals(expected(ROWS))
    (tmp_path / "b.csv").write_bytes(PACKED["zip in gzip"]())
    with pytest.raises(InputError, match="is an archive; `ebbtide ingest` reads the files in it"):
        read_source(tmp_path / "b.csv")


def feather() -> bytes:
    held = io.BytesIO()
    pyarrow.feather.write_feather(pyarrow.table({"price": [1.0]}), held)
    return held.getvalue()


def numpy_array() -> bytes:
    held = io.BytesIO()
    np.save(held, np.zeros(3))
    return held.getvalue()


FOREIGN: dict[str, tuple[bytes, str]] = {
    "xlsx": (zipped({"[Content_Types].xml": b"<x/>", "xl/workbook.xml": b"<x/>"}), "is an Excel workbook; save its"),
    "xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), "is an old Excel workbook"),
    "xml of Excel": (b'<?xml version="1.0"?>\n<?mso-application progid="x"?>\n<Workbook xmlns="x">', "is an Excel work"),
    "ods": (zipped({"mimetype": b"x", "content.xml": b"<x/>"}), "is an OpenDocument file"),
    "numbers": (zipped({"Index/Document.iwa": b"x"}), "is a Numbers or Pages document"),
    "docx": (zipped({"word/document.xml": b"x"}), "is a Word document"),
    "7z": (b"7z\xbc\xaf\x27\x1c" + bytes(100), "is a 7z archive; unpack it"),
    "rar": (b"Rar!\x1a\x07\x01\x00", "is a RAR archive"),
    "an empty zip": (zipped({}), "is a zip archive without files"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3", "is a PDF"),
    "feather": (feather(), "is an Arrow or Feather file; write it as Parquet"),
    "pickle": (pickle.dumps({"price": 1.0}), "is a pickle, which is not opened"),
    "numpy": (numpy_array(), "is an array of NumPy"),
    "a login": (b"\n<!DOCTYPE html><html>Sign in", "is a page of HTML, perhaps an error or a login"),
    "an error of S3": (
        b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>',
        r"is an error of a storage service instead of the file \(AccessDenied\)",
    ),
    "other xml": (b"<?xml version='1.0'?><prices/>", "is XML; prices are read from CSV"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "is a pointer of Git LFS"),
    "AWS's price list": (
        b'{\n  "formatVersion" : "v1.0",\n  "disclaimer" : "x",\n  "offerCode" : "AmazonEC2",\n  "products" : {} }',
        "is AWS's price list, which has no history of spot prices",
    ),
    "AWS's price list as CSV": (b'"FormatVersion","v1.0"\n"Disclaimer","x"\n', "is AWS's price list"),
    "aws pricing get-products": (b'{"FormatVersion": "aws_v1", "PriceList": ["{}"]}', "is AWS's price list"),
    "Google's catalogue": (
        b'{"skus": [{"name": "services/1", "skuId": "0048", "serviceRegions": ["us-central1"]}]}',
        "is Google's billing catalogue",
    ),
    "az vm list-skus": (
        b'[{"apiVersions": null, "locations": ["eastus"], "resourceType": "virtualMachines", "restrictions": []}]',
        "is Azure's list of machines, which has no prices",
    ),
    "infracost": (b'{"version": "0.2", "currency": "USD", "projects": [{"name": "x"}]}', "is an estimate of Infracost"),
    "gzip four times": (gzip.compress(gzip.compress(gzip.compress(gzip.compress(CSV)))), "compressed more than 3"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("packed", [bytes, gzip.compress], ids=["", "gz"])
def test_what_a_file_really_is_is_told(tmp_path: Path, kind: str, packed: Callable[[bytes], bytes]) -> None:
    content, problem = FOREIGN[kind]
    (tmp_path / "prices.csv").write_bytes(packed(content))
    with pytest.raises(InputError, match=problem) as caught:
        ingest_files([tmp_path / "prices.csv"], tmp_path / "into.parquet")
    assert caught.value.file == str(tmp_path / "prices.csv")
    assert not (tmp_path / "into.parquet").exists()


def test_a_named_format_does_not_hide_what_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(FOREIGN["a login"][0])
    with pytest.raises(InputError, match="is a page of HTML"):
        read_source(tmp_path / "a.json", file_format="ec2-json")


def test_a_workbook_among_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zipped({"b.csv": CSV, "c.xlsx": FOREIGN["xlsx"][0]}))
    with pytest.raises(InputError, match=r"a\.zip/c\.xlsx: is an Excel workbook"):
        ingest_files([tmp_path / "a.zip"], tmp_path / "into.parquet")


@pytest.mark.parametrize("cut", [30, 12])
def test_what_is_cut_short_within_is_told(tmp_path: Path, cut: int) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(gzip.compress(CSV)[:-cut]))
    with pytest.raises(InputError, match="cannot be decompressed: it is cut short or damaged"):
        read_source(tmp_path / "a.gz")
