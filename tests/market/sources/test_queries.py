"""Prices cut out by `aws --query`, `jq` and by hand: with other names, without names, with comments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.market.sources.test_forms import ROWS, Row, as_drawn, expected, history, records, stamp

from ebbtide.errors import InputError
from ebbtide.market.ingestion import ingest_files, read_source

LINUX = "Linux/UNIX"
ROW = Row(1_700_000_000, "us-east-1a", "g4dn.xlarge", LINUX, "0.157800")


def of_four(row: Row) -> list[str]:
    return [row.zone, row.kind, row.usd, stamp(row)]


def of_five(row: Row) -> list[str]:
    return [row.zone, row.kind, row.product, row.usd, stamp(row)]


def drawn_without_names(rows: list[Row]) -> str:
    return "\n".join(line for line in as_drawn(rows).splitlines() if "InstanceType" not in line)


WITH_PRODUCT: dict[str, Callable[[list[Row]], str]] = {
    "lists": lambda rows: json.dumps([of_five(row) for row in rows], indent=4),
    "lists, a price as number": lambda rows: json.dumps([[*of_five(r)[:3], float(r.usd), stamp(r)] for r in rows]),
    "a list a line": lambda rows: "\n".join(json.dumps(of_five(row)) for row in rows),
    "lists in YAML": lambda rows: yaml.safe_dump([of_five(row) for row in rows]),
    "text": lambda rows: "\n".join("\t".join(of_five(row)) for row in rows),
    "a table": drawn_without_names,
    "own names": lambda rows: json.dumps(
        [{"Type": r.kind, "AZ": r.zone, "Price": r.usd, "When": stamp(r), "Platform": r.product} for r in rows]
    ),
    "own names a line": lambda rows: "\n".join(
        json.dumps({"machine": r.kind, "place": r.zone, "usd": r.usd, "date": stamp(r), "os": r.product})
        for r in rows
    ),
    "initials": lambda rows: json.dumps(
        [{"t": stamp(r), "i": r.kind, "z": r.zone, "p": r.usd, "d": r.product} for r in rows]
    ),
    "own names in CSV": lambda rows: (
        "type,where,platform,cost,when\n"
        + "\n".join(f"{r.kind},{r.zone},{r.product},{r.usd},{stamp(r)}" for r in rows)
    ),
}

WITHOUT_PRODUCT: dict[str, Callable[[list[Row]], str]] = {
    "lists": lambda rows: json.dumps([of_four(row) for row in rows]),
    "text": lambda rows: "\n".join("\t".join(of_four(row)) for row in rows),
    "names of EC2": lambda rows: json.dumps(
        [
            {"AvailabilityZone": r.zone, "InstanceType": r.kind, "SpotPrice": r.usd, "Timestamp": stamp(r)}
            for r in rows
        ]
    ),
    "own names": lambda rows: json.dumps(
        [{"az": r.zone, "type": r.kind, "price": r.usd, "t": stamp(r)} for r in rows]
    ),
    "CSV": lambda rows: "type,az,price,time\n" + "\n".join(f"{r.kind},{r.zone},{r.usd},{stamp(r)}" for r in rows),
}


def written(folder: Path, text: str) -> Path:
    (folder / "prices.dat").write_text(text)
    return folder / "prices.dat"


@pytest.mark.parametrize("form", WITH_PRODUCT)
@pytest.mark.parametrize("rows", [ROWS, [ROW]], ids=["two rows", "one row"])
def test_queries_are_read(tmp_path: Path, form: str, rows: list[Row]) -> None:
    assert history(written(tmp_path, WITH_PRODUCT[form](rows))).equals(expected(rows))


@pytest.mark.parametrize("form", WITHOUT_PRODUCT)
def test_rows_without_a_product_need_one(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, WITHOUT_PRODUCT[form](ROWS))
    with pytest.raises(InputError, match=r"row 1.*do not say their product: add ProductDescription.*--product"):
        read_source(path)
    done = ingest_files([path], tmp_path / "p.parquet", product="Windows")
    ((market, series),) = done.history.items()
    assert (market.zone, market.product, series.prices.tolist()) == ("us-east-1a", "Windows", [0.1578, 0.1578])


def test_a_product_is_not_given_to_rows_of_several(tmp_path: Path) -> None:
    rows = [*ROWS, ROWS[1]._replace(usd="0.3")]
    path = written(tmp_path, WITHOUT_PRODUCT["lists"](rows))
    with pytest.raises(InputError, match=r"row 3.*has another price than a row of the same zone, type and time"):
        read_source(path, product=LINUX)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        # Two columns may be the price.
        (json.dumps([{"az": "us-east-1a", "type": "c3.large", "os": LINUX, "usd": "1", "spot": "2", "time": "x"}]),
         "has no column 'SpotPrice'; it has 'az', 'type', 'os', 'usd', 'spot', 'time'"),
        # The name of a time above something else.
        ("type,az,os,price,when\nc3.large,us-east-1a,Linux/UNIX,0.1,yesterday\n", "has no column 'Timestamp'"),
        (json.dumps([of_four(ROW), of_four(ROW)[:3]]), "row 2: entry has 3 values, the first has 4"),
        (json.dumps([of_four(ROW), {"SpotPrice": "1"}]), "row 2: entry is not a list of values, as the first is"),
        (json.dumps([of_four(ROW)[:3]]), "has no header and 3 columns"),
        (json.dumps([["0.1"], ["0.2"]]), "has no header and 1 columns"),
    ],
    ids=range(6),
)  # fmt: skip
def test_what_can_be_two_things_is_told(tmp_path: Path, content: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_source(written(tmp_path, content))


HEADER = "datetime,instance_type,os,region,price"
LINES = [f"{stamp(r)},{r.kind},{r.product},{r.zone},{r.usd}" for r in ROWS]


@pytest.mark.parametrize(
    "lines",
    [
        ["# Prices of g4dn", "#", HEADER, *LINES],
        ["", "# Prices, of us-east-1, in USD", "", HEADER, LINES[0], "# the day after", LINES[1], "# end"],
        [f"# {HEADER}", *LINES],
        ["# Prices", f"#{HEADER}", *LINES],
        ["#TYPE System.Management.Automation.PSCustomObject", HEADER, *LINES],
        ['"# note",,,,', HEADER, *LINES],
        ["# note", *LINES],
        ["#," + HEADER, *(f"{number},{line}" for number, line in enumerate(LINES))],
        ["# note", "sep=,", HEADER, *LINES],
        ["# note", *("\t".join(["SPOTPRICEHISTORY", *of_five(row)]) for row in ROWS)],
        ["# note", *as_drawn(ROWS).splitlines()],
        ["# note", "SpotPriceHistory:", *(f"- {json.dumps(one)}" for one in records(ROWS))],
    ],
    ids=range(12),
)  # fmt: skip
def test_comments_are_no_rows(tmp_path: Path, lines: list[str]) -> None:
    assert history(written(tmp_path, "\n".join(lines))).equals(expected(ROWS))


def test_comments_stand_in_sheets_of_azure(tmp_path: Path) -> None:
    path = tmp_path / "us_east.csv"
    path.write_text("# from the portal\nDate,NC6s v3\n# spring\n2024-04-01,0.5\n")
    assert read_source(path)[["region", "instance_type", "price_usd_per_hour"]].values.tolist() == [
        ["us-east", "NC6s v3", 0.5]
    ]
