"""One history, written in every form in which people have prices, is the same history when it is read."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.market.ingestion import ingest_files, read_source
from ebbtide.market.sources.contents import content_text, unpacked
from ebbtide.market.sources.validation import cleaned

TYPES = ("g4dn.xlarge", "c3.large", "p3.16xlarge", "r5dn.8xlarge")
ZONES = ("us-east-1a", "eu-central-1c", "us-gov-west-1b", "us-west-2-lax-1a", "ap-southeast-2b")
IDS = {
    "us-east-1a": "use1-az2",
    "eu-central-1c": "euc1-az3",
    "us-gov-west-1b": "usgw1-az1",
    "us-west-2-lax-1a": "usw2-lax1-az1",
    "ap-southeast-2b": "apse2-az1",
}
PRODUCTS = ("Linux/UNIX", "Windows", "SUSE Linux", "Red Hat Enterprise Linux")


class Row(NamedTuple):
    """One price: time in seconds since 1970, zone, type, product and the price as EC2 writes it."""

    time_s: int
    zone: str
    kind: str
    product: str
    usd: str


rows_of_history = st.lists(
    st.builds(
        Row,
        st.integers(1_300_000_000, 1_900_000_000),
        st.sampled_from(ZONES),
        st.sampled_from(TYPES),
        st.sampled_from(PRODUCTS),
        st.integers(1, 90_000_000).map(lambda micros: f"{micros / 1e6:.6f}"),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda row: row[:4],
)


def stamp(row: Row, form: str = "%Y-%m-%dT%H:%M:%S.000Z") -> str:
    return datetime.fromtimestamp(row.time_s, UTC).strftime(form)


def records(rows: Sequence[Row], *, price: Callable[[str], object] = str) -> list[dict[str, object]]:
    return [
        {
            "AvailabilityZone": row.zone,
            "InstanceType": row.kind,
            "ProductDescription": row.product,
            "SpotPrice": price(row.usd),
            "Timestamp": stamp(row),
        }
        for row in rows
    ]


def csv_text(
    rows: Sequence[Row], head: Sequence[str], cells: Callable[[Row], Sequence[str]], mark: str = ","
) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=mark, lineterminator="\n").writerows([head, *map(cells, rows)])
    return text.getvalue()


def as_text(rows: Sequence[Row]) -> str:
    lines = [f"SPOTPRICEHISTORY\t{r.zone}\t{r.kind}\t{r.product}\t{r.usd}\t{stamp(r)}" for r in rows]
    return "\n".join(["NEXTTOKEN\tabc", *lines, ""])


def as_text_with_ids(rows: Sequence[Row]) -> str:
    lines = [
        f"SPOTPRICEHISTORY\t{r.zone}\t{IDS[r.zone]}\t{r.kind}\t{r.product}\t{r.usd}\t{stamp(r)}\n" for r in rows
    ]
    return "".join(lines)


def as_old_text(rows: Sequence[Row], mark: str = "\t") -> str:
    lines = []
    for row in rows:
        local = datetime.fromtimestamp(row.time_s - 8 * 3600, UTC).strftime("%Y-%m-%dT%H:%M:%S-0800")
        lines.append(mark.join(["SPOTINSTANCEPRICE", row.usd, local, row.kind, row.product, row.zone]))
    return "\r\n".join(lines)


def as_drawn(rows: Sequence[Row]) -> str:
    cells = [[r.zone, r.kind, r.product, r.usd, stamp(r)] for r in rows]
    names = ["AvailabilityZone", "InstanceType", "ProductDescription", "SpotPrice", "Timestamp"]
    widths = [max(len(line[place]) for line in (names, *cells)) + 2 for place in range(5)]
    rule = "|+" + "+".join("-" * width for width in widths) + "+|"
    drawn = [
        "||" + "|".join(cell.center(width) for cell, width in zip(line, widths, strict=True)) + "||"
        for line in (names, *cells)
    ]
    width = len(rule)
    top = ["-" * width, "|" + "DescribeSpotPriceHistory".center(width - 2) + "|", "+" + "-" * (width - 2) + "+"]
    title = ["||" + "SpotPriceHistory".center(width - 4) + "||", rule]
    return "\n".join([*top, *title, drawn[0], rule, *drawn[1:], rule, ""])


def as_pages(rows: Sequence[Row]) -> str:
    pages: list[dict[str, Any]] = [{"SpotPriceHistory": [one], "NextToken": "x"} for one in records(rows)]
    return json.dumps([*pages, {"SpotPriceHistory": [], "ResponseMetadata": {"HTTPStatusCode": 200}}])


def kaggle(row: Row) -> list[str]:
    return [stamp(row, "%Y-%m-%d %H:%M:%S+00:00"), row.kind, row.product, row.zone, row.usd]


def frame_of(rows: Sequence[Row]) -> pd.DataFrame:
    frame = pd.DataFrame(records(rows))
    return frame.assign(Timestamp=pd.to_datetime(frame["Timestamp"], utc=True))


EC2 = ["Timestamp", "InstanceType", "ProductDescription", "SpotPrice", "AvailabilityZone"]
SNAKE = ["availability_zone", "spot_price", "timestamp", "product_description", "instance_type"]

FORMS: dict[str, Callable[[Sequence[Row]], str]] = {
    "aws --output json": lambda rows: json.dumps({"SpotPriceHistory": records(rows)}, indent=4),
    "a list of records": lambda rows: json.dumps(records(rows)),
    "prices as numbers": lambda rows: json.dumps(records(rows, price=float)),
    "one record a line": lambda rows: "\n".join(map(json.dumps, records(rows))),
    "a list of pages": as_pages,
    "documents one after the other": lambda rows: "".join(
        json.dumps({"SpotPriceHistory": [one]}) for one in records(rows)
    ),
    "snake case in JSON": lambda rows: json.dumps(
        [{re.sub(r"(?<!^)(?=[A-Z])", "_", k).lower(): v for k, v in one.items()} for one in records(rows)]
    ),
    "aws --output yaml": lambda rows: yaml.safe_dump({"SpotPriceHistory": records(rows)}),
    "aws --output yaml-stream": lambda rows: yaml.safe_dump([{"SpotPriceHistory": [r]} for r in records(rows)]),
    "aws --output text": as_text,
    "aws --output text with ids of zones": as_text_with_ids,
    "aws --output table": as_drawn,
    "old tools": as_old_text,
    "old tools, tabs lost": lambda rows: as_old_text(rows, " "),
    "CSV by EC2's names": lambda rows: csv_text(rows, EC2, lambda r: [stamp(r), r.kind, r.product, r.usd, r.zone]),
    "CSV in small letters with an index": lambda rows: csv_text(
        rows, ["", *map(str.lower, EC2)], lambda r: ["7", stamp(r), r.kind, r.product, r.usd, r.zone]
    ),
    "TSV in snake case": lambda rows: csv_text(
        rows, SNAKE, lambda r: [r.zone, r.usd, stamp(r), r.product, r.kind], "\t"
    ),
    "semicolons": lambda rows: csv_text(rows, EC2, lambda r: [stamp(r), r.kind, r.product, r.usd, r.zone], ";"),
    "the documented CSV": lambda rows: csv_text(
        rows, ["datetime", "instance_type", "os", "region", "price"], kaggle
    ),
    "the documented CSV without names": lambda rows: csv_text(rows[1:], kaggle(rows[0]), kaggle),
    "dollar signs": lambda rows: csv_text(rows, EC2, lambda r: [stamp(r), r.kind, r.product, f"${r.usd}", r.zone]),
    "times of Postgres": lambda rows: csv_text(
        rows, EC2, lambda r: [stamp(r, "%Y-%m-%d %H:%M:%S+00"), r.kind, r.product, r.usd, r.zone]
    ),
    "Unix times": lambda rows: csv_text(rows, EC2, lambda r: [str(r.time_s), r.kind, r.product, r.usd, r.zone]),
    "Unix times in milliseconds": lambda rows: json.dumps(
        [one | {"Timestamp": row.time_s * 1000} for one, row in zip(records(rows), rows, strict=True)]
    ),
    "names with units, as people head sheets": lambda rows: csv_text(
        rows,
        ["Timestamp (UTC)", "Instance Type", "Product Description", "Spot Price (USD/h)", "Availability Zone"],
        lambda r: [stamp(r), r.kind, r.product, r.usd, r.zone],
    ),
    "pandas by columns": lambda rows: frame_of(rows).to_json(date_format="iso"),
    "pandas in two lists": lambda rows: frame_of(rows).to_json(orient="split", date_format="iso"),
    "pandas with a schema": lambda rows: frame_of(rows).to_json(orient="table"),
    "columns in any order without names": lambda rows: "".join(
        f"{r.usd}\t{r.product}\t{stamp(r)}\t{r.zone}\t{r.kind}\n" for r in rows
    ),
}

PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
}
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16")


def history(path: Path) -> eb.PriceHistory:
    return eb.PriceHistory.from_frame(cleaned(read_source(path), path)[0])


def expected(rows: Sequence[Row]) -> eb.PriceHistory:
    frame = pd.DataFrame(
        {
            "timestamp": pd.to_datetime([row.time_s for row in rows], unit="s", utc=True),
            "cloud": "aws",
            "region": [re.match(r"[a-z]+(-[a-z]+)+-\d", row.zone).group() for row in rows],  # type: ignore[union-attr]
            "zone": [row.zone for row in rows],
            "instance_type": [row.kind for row in rows],
            "product": [row.product for row in rows],
            "price_usd_per_hour": [float(row.usd) for row in rows],
        }
    )
    return eb.PriceHistory.from_frame(cleaned(frame, "expected")[0])


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=rows_of_history,
    suffix=st.sampled_from(list(PACKED)),
    encoding=st.sampled_from(ENCODINGS),
    line_end=st.sampled_from(["\n", "\r\n"]),
)
def test_every_form_is_the_same_history(
    tmp_path: Path, form: str, rows: list[Row], suffix: str, encoding: str, line_end: str
) -> None:
    text = FORMS[form](rows)
    # Its name does not say what it is.
    path = tmp_path / "prices.dat"
    path.write_bytes(PACKED[suffix](line_end.join(text.splitlines()).encode(encoding)))
    assert history(path).equals(expected(rows))


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=rows_of_history)
def test_archives_by_month_name_zones_by_their_ids(tmp_path: Path, rows: list[Row]) -> None:
    lines = [
        f"{IDS[r.zone]}\t{r.kind}\t{r.product}\t{r.usd}\t{stamp(r, '%Y-%m-%dT%H:%M:%S+00:00')}\n" for r in rows
    ]
    # Several frames one after the other, as `cat *.zst` makes them.
    content = b"".join(pyarrow.compress(line.encode(), "zstd", asbytes=True) for line in lines)
    (tmp_path / "2023-01.tsv.zst").write_bytes(content)
    found, wanted = history(tmp_path / "2023-01.tsv.zst"), expected(rows)
    assert {(m.region, m.zone, m.instance_type, m.product) for m in found} == {
        (m.region, IDS[m.zone], m.instance_type, m.product) for m in wanted
    }
    assert found.change_points == wanted.change_points


def spotlake(rows: Sequence[Sequence[object]], path: Path, *, head: str = "") -> Path:
    head = head or "Time,InstanceType,Region,AZ,SPS,T3,T2,IF,OndemandPrice,SpotPrice,Savings"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join([head, *(",".join(map(str, row)) for row in rows)])
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_a_folder_of_spotlake_is_read_in_the_order_of_time(tmp_path: Path) -> None:
    for day, usd in (("01", 0.2), ("02", 0.3), ("10", 0.4)):
        rows = [
            [f"2025-10-{day} 00:10:00", "g4dn.xlarge", "us-east-1", "use1-az1", 3, 50, 50, 3.0, 0.526, usd, 60],
            [f"2025-10-{day} 00:10:00", "g4dn.xlarge", "us-east-1", "use1-az2", "", "", "", "", "", "", ""],
            [f"2025-10-{day} 00:10:00", "g4dn.xlarge", "us-east-1", "use1-az3", -1, 0, 0, -1, -1, -1.0, -1],
        ]
        spotlake(rows, tmp_path / "aws" / "2025" / "10" / day / "00-10-00.csv.gz")
    (tmp_path / "aws" / "README.md").write_text("How it was collected")
    done = ingest_files([tmp_path / "aws"], tmp_path / "p.parquet")
    ((market, series),) = done.history.items()
    assert (market.region, market.zone, market.product) == ("us-east-1", "use1-az1", "Linux/UNIX")
    assert series.prices.tolist() == [0.2, 0.3, 0.4]
    assert done.history.end_s == pd.Timestamp("2025-10-10T00:10:00Z").timestamp()


def test_a_spotlake_file_without_times_has_that_of_its_name(tmp_path: Path) -> None:
    head = "InstanceType,Region,AZ,SPS,IF,OndemandPrice,SpotPrice,Savings"
    row = ["c3.large", "eu-west-1", "euw1-az1", 3, 3.0, 0.12, 0.05, 50]
    path = spotlake([row], tmp_path / "2024" / "03" / "04" / "05-06-07.csv.gz", head=head)
    assert read_source(path)["timestamp"].tolist() == [pd.Timestamp("2024-03-04T05:06:07Z")]
    unnamed = spotlake([row], tmp_path / "x.csv.gz", head=head)
    with pytest.raises(InputError, match="no column Time"):
        read_source(unnamed)


def test_spotlakes_other_clouds_are_read(tmp_path: Path) -> None:
    azure = "InstanceTier,InstanceType,Region,AZ,Score,OndemandPrice,SpotPrice,Savings,IF,Time"
    path = spotlake(
        [["Standard", "NC6s_v3", "eastus", 1, "High", 3.06, 0.5, 80, 3.0, "2025-01-01 00:00:00"]],
        tmp_path / "a.csv.gz",
        head=azure,
    )
    assert read_source(path)[["cloud", "zone", "instance_type", "product"]].values.tolist() == [
        ["azure", "eastus", "NC6s v3", "Linux"]
    ]
    gcp = "InstanceType,Region,OndemandPrice,SpotPrice,Savings,Time"
    path = spotlake(
        [["n2-standard-8", "us-east1", 0.4, 0.1, 75, "2025-01-01 00:00:00"]], tmp_path / "g.csv.gz", head=gcp
    )
    assert read_source(path)[["cloud", "region", "zone"]].values.tolist() == [["gcp", "us-east1", "us-east1"]]


ROWS = [Row(1_700_000_000 + hour * 3600, "us-east-1a", "g4dn.xlarge", "Linux/UNIX", "0.157800") for hour in (0, 5)]


def test_archives_are_folders(tmp_path: Path) -> None:
    files = {
        "2023/10.csv": csv_text(ROWS[1:], EC2, lambda r: [stamp(r), r.kind, r.product, "0.3", r.zone]).encode(),
        "2023/9.json.gz": gzip.compress(json.dumps(records(ROWS)).encode()),
        "README.md": b"Prices",
        "../outside.csv": FORMS["aws --output text"](ROWS[:1]).encode(),
    }
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tarred:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tarred.addfile(info, io.BytesIO(content))
    for name in ("a.zip", "a.tar.gz"):
        done = ingest_files([tmp_path / name], tmp_path / f"{name}.parquet")
        (series,) = done.history.values()
        assert series.prices.tolist() == [0.1578, 0.3]
    assert not (tmp_path.parent / "outside.csv").exists()
    with unpacked(tmp_path / "a.zip") as found:
        assert [str(name.relative_to(tmp_path / "a.zip")) for name, _ in found] == [
            "2023/9.json.gz",
            "2023/10.csv",
            "outside.csv",
        ]


def test_an_error_in_an_archive_names_the_file_in_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(
            "b.csv",
            "datetime,instance_type,os,region,price\n2020-01-01T00:00:00Z,c3.large,Linux/UNIX,us-east-1a,x\n",
        )
    with pytest.raises(InputError, match=r"a\.zip/b\.csv, row 1, field price: x is not a price"):
        ingest_files([tmp_path / "a.zip"], tmp_path / "p.parquet")


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_what_is_cut_short_is_told(tmp_path: Path, suffix: str) -> None:
    content = PACKED[suffix](FORMS["aws --output json"](ROWS).encode())
    path = tmp_path / f"a.json{suffix}"
    path.write_bytes(content[: len(content) - 12])
    with pytest.raises(InputError, match=r"a\.json.*cannot be decompressed: it is cut short or damaged"):
        read_source(path)


def test_what_would_fill_the_memory_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.market.sources.contents.MAX_CONTENT_BYTES", 1 << 20)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"0" * (2 << 20)))
    with pytest.raises(InputError, match="is larger than 1 MiB"):
        content_text(tmp_path / "a.csv.gz")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", b"0" * (2 << 20))
    with pytest.raises(InputError, match="holds more than 1 MiB"):
        ingest_files([tmp_path / "a.zip"], tmp_path / "p.parquet")


def test_columns_that_may_be_two_things_need_names(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("use1-az1\tc3.large\tLinux/UNIX\t0.1\t0.2\t2020-01-01T00:00:00Z\n")
    with pytest.raises(InputError, match="2 columns that may be the price; write a first line"):
        read_source(tmp_path / "a.tsv")


def test_two_names_of_one_product_are_one_market(tmp_path: Path) -> None:
    rows = [
        Row(1_700_000_000, "us-east-1a", "c3.large", "Linux/UNIX", "0.1"),
        Row(1_700_000_000, "us-east-1a", "c3.large", "Linux/UNIX (Amazon VPC)", "0.1"),
        Row(1_700_003_600, "us-east-1a", "c3.large", "Linux/UNIX (Amazon VPC)", "0.2"),
        Row(1_700_007_200, "us-east-1a", "c3.large", "Linux/UNIX", "0.3"),
        Row(1_700_007_200, "us-east-1a", "c3.large", "Linux/UNIX", "0.3"),
    ]
    (tmp_path / "a.json").write_text(json.dumps(records(rows)))
    done = ingest_files([tmp_path / "a.json"], tmp_path / "p.parquet")
    assert {str(m): s.prices.tolist() for m, s in done.history.items()} == {"us-east-1a c3.large": [0.1, 0.2, 0.3]}
    # A file of ours from before they were one.
    frame = pd.concat([history(tmp_path / "a.json").to_frame().astype({"product": "string"})] * 2)
    frame.iloc[:3, list(frame.columns).index("product")] = "Linux/UNIX (Amazon VPC)"
    frame.to_parquet(tmp_path / "old.parquet", index=False)
    assert eb.PriceHistory.read(tmp_path / "old.parquet").equals(done.history)


def test_rows_of_unknown_types_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [*ROWS, *(row._replace(kind="x99.huge") for row in ROWS), ROWS[0]._replace(kind="y1.tiny")]
    (tmp_path / "a.json").write_text(json.dumps(records(rows)))
    done = ingest_files([tmp_path / "a.json"], tmp_path / "p.parquet")
    assert (done.left_out.rows, done.left_out.types) == (3, ("x99.huge", "y1.tiny"))
    assert "left out 3 rows of 2 instance types that the catalogue does not know (x99.huge, y1.tiny)" in str(done)
    assert len(done.history) == 1
    (tmp_path / "b.json").write_text(json.dumps(records([ROWS[0]._replace(kind="g4dn.xlrage")])))
    with pytest.raises(InputError, match=r"b.json, row 1, field instance_type: unknown aws instance type"):
        ingest_files([tmp_path / "b.json"], tmp_path / "q.parquet")
    assert not (tmp_path / "q.parquet").exists()
    assert len(ingest_files([tmp_path / "a.json", tmp_path / "b.json"], tmp_path / "q.parquet").history) == 1
