"""Files that are not what they should be, by accident or on purpose: one line each, and no memory filled."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.market.availability import Availability
from ebbtide.market.ingestion import ingest_files, read_source
from ebbtide.market.sources import parquet
from ebbtide.market.sources.ec2_json import read_ec2_json, read_price_table
from ebbtide.market.sources.exports import read_azure_csv, read_azure_json

PRICES = eb.generate_prices(days=1, seed=1, kind="auction").to_frame()
FAR_FUTURE = (
    pd.Series(np.full(len(PRICES), 9_000_000_000_000_000_000)).astype("datetime64[us]").dt.tz_localize("UTC")
)
AT = "2017-05-08 19:28:43+00:00"


def told(problem: str, read: Callable[[], object]) -> None:
    """Reading ends with one line of a sensible length."""
    with pytest.raises(InputError, match=problem) as caught:
        read()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ({"timestamp": FAR_FUTURE}, "row 1, field timestamp: .* is not in the years 1970 to 2199"),
        ({"timestamp": 142784640}, "field timestamp: 142784640 is a number, not a time"),
        ({"timestamp": 1e300}, "is a number, not a time"),
        ({"timestamp": "soon"}, "soon is not a time"),
        ({"price_usd_per_hour": True}, "True is not a price"),
        ({"price_usd_per_hour": "cheap"}, "cheap is not a price"),
        ({"price_usd_per_hour": "x" * 5000}, "x{60}... is not a price"),
        ({"price_usd_per_hour": np.inf}, "inf is not finite"),
        ({"zone": b"\xff\xfe"}, "field zone: holds bytes, not text"),
        ({"zone": [["a"]] * len(PRICES)}, "field zone: holds list<.*> in each row; single values are needed"),
        ({"zone": pd.Categorical([" "] * len(PRICES))}, "field zone: +is blank"),
    ],
    ids=range(11),
)
def test_columns_of_other_types_are_told(tmp_path: Path, cells: dict[str, object], problem: str) -> None:
    PRICES.assign(**cells).to_parquet(tmp_path / "prices.parquet", index=False)
    told(problem, lambda: eb.PriceHistory.read(tmp_path / "prices.parquet"))


def test_what_is_no_parquet_file_is_told(tmp_path: Path) -> None:
    good = tmp_path / "good.parquet"
    PRICES.to_parquet(good, index=False)
    content = good.read_bytes()
    for bad in (content[:2000], content[:100] + b"\xff" * 40 + content[140:], b"hello", b"PAR1"):
        path = written(tmp_path / "bad.parquet", bad)
        told("bad.parquet: is not a readable Parquet file", lambda: eb.PriceHistory.read(path))  # noqa: B023


def test_a_parquet_file_that_would_fill_the_memory_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million rows in 30 kB: nothing of it is read where so much may not be used."""
    rows = 1_000_000
    names = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(rows, "int8")), pyarrow.array(["x" * 9000]))
    table = pyarrow.table({"zone": names, "price_usd_per_hour": pyarrow.array(np.ones(rows))})
    pyarrow.parquet.write_table(table, tmp_path / "bomb.parquet", compression="zstd", store_schema=False)
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    # The names alone would be 9 GB once a row.
    monkeypatch.setattr(os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 8 << 18)
    told(
        "bomb.parquet: holds 1,000,000 rows, [89] GiB in memory",
        lambda: parquet.load_parquet(tmp_path / "bomb.parquet"),
    )
    # As categories they are held once.
    assert len(parquet.load_prices(tmp_path / "bomb.parquet")) == rows


def test_folders_pipes_devices_and_files_that_are_not_there_are_told_alike(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder.csv").mkdir()
    cases = {
        tmp_path / "pipe": "is a pipe",
        tmp_path / "folder.csv": "is a folder",
        Path("/dev/zero"): "is a device",
        tmp_path / "none": "there is no such file",
        Path("a\0b"): "null (byte|character)",
    }
    for path, problem in cases.items():
        for read in (
            read_price_table,
            read_azure_csv,
            read_azure_json,
            read_ec2_json,
            read_source,
            Availability.read,
            eb.PriceHistory.read,
        ):
            told(problem, lambda: read(path))  # type: ignore[operator]  # noqa: B023


def test_a_folder_of_prices_is_refused_with_the_way_to_make_one_file(tmp_path: Path) -> None:
    PRICES.to_parquet(tmp_path / "a.parquet", index=False)
    told("is a folder; .*`ebbtide ingest FOLDER --into prices.parquet`", lambda: eb.PriceHistory.read(tmp_path))


def test_a_file_without_permission_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = written(tmp_path / "a.csv", f"{AT},c3.xlarge,Linux/UNIX,us-east-1a,1\n")
    monkeypatch.setattr(Path, "open", refused)
    told("a.csv: cannot be read: Permission denied", lambda: read_source(path))
    told("a.csv: cannot be read: Permission denied", lambda: read_price_table(path))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[" * 100_000, "is JSON nested too deeply"),
        ('{"Items": [' + "9" * 5000 + "]}", "a whole number of too many digits"),
        ('{"Items": {"a": 1}}', "it has no list named Items"),
        ('{"Items": null}', "it has no list named Items"),
        ('{"Items": [1, 2]}', "row 1, field Items: item is not a record"),
        ("[]", "it has no list named Items"),
        ('{"Items": [{"skuName": "a Spot", "effectiveStartDate": {"a": 1}}]}', "item has no effectiveStartDate"),
        (
            '{"Items": [{"skuName": "a Spot", "effectiveStartDate": "2024-01-01T00:00:00Z", "armRegionName": "a", '
            '"armSkuName": "b", "retailPrice": "many"}]}',
            "many is not a price",
        ),
        ("{", "is not JSON"),
        (b"\xff\xfe{", "is not UTF-8 text"),
        ('{"Items": "\0"}', "line 1 holds a NUL byte"),
    ],
    ids=range(11),
)
def test_hostile_json_is_told(tmp_path: Path, content: str | bytes, problem: str) -> None:
    told(problem, lambda: read_azure_json(written(tmp_path / "a.json", content)))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[" * 100_000, "is JSON nested too deeply"),
        ("[" + "9" * 5000 + "]", "a whole number of too many digits"),
        ('{"SpotPriceHistory": null}', "no list named SpotPriceHistory"),
        ("3", "no list named SpotPriceHistory"),
        ("[1]", "row 1: entry is not a record"),
        (json.dumps([{"Timestamp": ["a"]}]), "row 1, field Timestamp: is not a single value"),
    ],
    ids=range(6),
)
def test_hostile_json_of_ec2_is_told(tmp_path: Path, content: str, problem: str) -> None:
    told(problem, lambda: read_ec2_json(written(tmp_path / "a.json", content)))


def test_thousands_of_documents_in_one_file_take_no_time_each(tmp_path: Path) -> None:
    entry = {
        "Timestamp": AT,
        "AvailabilityZone": "a",
        "InstanceType": "b",
        "ProductDescription": "c",
        "SpotPrice": "1",
    }
    path = written(tmp_path / "a.json", "\n".join([json.dumps([entry])] * 5000))
    assert len(read_ec2_json(path)) == 5000


def test_documented_columns_are_read_in_any_order(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.csv", f"region,price,os,instance_type,datetime\nus-east-1a,0.5,Linux/UNIX,m5.large,{AT}\n"
    )
    frame = read_price_table(path)
    assert frame[["zone", "instance_type", "price_usd_per_hour"]].values.tolist() == [
        ["us-east-1a", "m5.large", 0.5]
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("when,what\n1,2\n", "first line is not recognised as a header: when, what; needed are datetime"),
        ("datetime,type,os,region,price\n", "has no column 'instance_type'; it has 'datetime', 'type'"),
        ("datetime,datetime,os,region,price\n", "field datetime: two columns have this name"),
        (f"{AT},c3.xlarge\n", "row 1: has no header and 2 columns; needed are datetime"),
        (
            f"datetime,instance_type,os,region,price\n{AT},c3.xlarge,Linux/UNIX,us-east-1a,1,7\n",
            "is not a CSV file|Length",
        ),
        ("\n\n", "holds nothing"),
        (b"datetime,instance_type,os,region,price\ncaf\xe9", "is not UTF-8 text .* in line 2"),
        ("datetime\0", "holds a NUL byte"),
    ],
    ids=range(8),
)
def test_headers_that_are_not_known_are_told_as_headers(
    tmp_path: Path, content: str | bytes, problem: str
) -> None:
    told(problem, lambda: read_price_table(written(tmp_path / "a.csv", content)))


def test_a_byte_order_mark_before_the_header_is_no_part_of_it(tmp_path: Path) -> None:
    text = f"\ufeffdatetime,instance_type,os,region,price\n{AT},c3.xlarge,Linux/UNIX,us-east-1a,1\n"
    assert len(read_source(written(tmp_path / "a.csv", text))) == 1
    assert len(read_azure_csv(written(tmp_path / "us_east.csv", "\ufeffDate,A1\n2020-01-01,0.5\n"))) == 1


def test_times_of_a_parquet_file_without_a_zone_are_read_in_the_zone_named(tmp_path: Path) -> None:
    naive = PRICES.assign(timestamp=PRICES["timestamp"].dt.tz_localize(None))
    naive.to_parquet(tmp_path / "naive.parquet", index=False)
    into = tmp_path / "prices.parquet"
    told(
        "name its time zone \\(`ebbtide ingest --timezone UTC`\\)",
        lambda: ingest_files([tmp_path / "naive.parquet"], into),
    )
    assert not into.exists()
    ingest_files([tmp_path / "naive.parquet"], into, timezone="UTC")
    assert eb.PriceHistory.read(into).start_s == eb.PriceHistory.from_frame(PRICES).start_s
    ingest_files([tmp_path / "naive.parquet"], tmp_path / "late.parquet", timezone="America/New_York")
    late = eb.PriceHistory.read(tmp_path / "late.parquet")
    assert late.start_s == eb.PriceHistory.from_frame(PRICES).start_s + 4 * 3600


PROBE = {
    "timestamp": [AT, "2017-05-08 19:38:43+00:00"],
    "cloud": "aws",
    "region": "us-east-1",
    "zone": "us-east-1a",
    "instance_type": "c3.xlarge",
    "available": [1, 0],
}
TICKS = {
    "start": [AT],
    "cloud": "aws",
    "zone": "us-east-1a",
    "device": "V100",
    "gap_seconds": 600.0,
    "data": [[1, 0]],
}


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        (PROBE | {"available": ["yes", "no"]}, "row 1, field available: yes is not a number of machines"),
        (PROBE | {"available": [1, -1]}, "row 2, field available: is missing, negative or infinite"),
        (PROBE | {"available": [1, np.inf]}, "row 2, field available"),
        (PROBE | {"zone": ["us-east-1a", None]}, "row 2, field zone: is blank"),
        ({"a": [1]}, "is not an availability record: .*; it has a"),
        (TICKS | {"data": [["a"]]}, "row 1, field data: is not a list of counts"),
        (TICKS | {"data": [[]]}, "row 1, field data"),
        (TICKS | {"data": [[-1.0]]}, "row 1, field data"),
        (TICKS | {"data": 3}, "row 1, field data"),
        (TICKS | {"gap_seconds": "soon"}, "row 1, field gap_seconds: soon is not a positive number"),
        (TICKS | {"gap_seconds": 0.0}, "row 1, field gap_seconds"),
    ],
    ids=range(11),
)
def test_records_of_availability_are_told_by_row_and_field(
    tmp_path: Path, cells: dict[str, object], problem: str
) -> None:
    pd.DataFrame(cells).to_parquet(tmp_path / "a.parquet")
    told(problem, lambda: Availability.read(tmp_path / "a.parquet"))
