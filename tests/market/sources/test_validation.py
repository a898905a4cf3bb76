"""Bad prices: each is told in one line that names file, row and field."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.market.sources.validation import cleaned


def table(**columns: Any) -> pd.DataFrame:
    """Four good rows of one market, with some columns replaced."""
    times = pd.to_datetime([f"2015-04-01T0{hour}:00:00Z" for hour in range(4)])
    good = {
        "timestamp": times,
        "cloud": "aws",
        "region": "us-east-1",
        "zone": "us-east-1a",
        "instance_type": "c3.xlarge",
        "product": "Linux/UNIX",
        "price_usd_per_hour": [0.1, 0.2, 0.1, 0.3],
    }
    return pd.DataFrame(good | columns)


def times(*hours: int) -> pd.DatetimeIndex:
    return pd.to_datetime([f"2015-04-01T{hour:02}:00:00Z" for hour in hours])


BAD = {
    "negative": (
        table(price_usd_per_hour=[0.1, -0.2, 0.1, 0.3]),
        "row 2, field price_usd_per_hour: -0.2 is negative",
    ),
    "missing": (
        table(price_usd_per_hour=[0.1, 0.2, np.nan, 0.3]),
        "row 3, field price_usd_per_hour: .*is missing",
    ),
    "infinite": (
        table(price_usd_per_hour=[np.inf, 0.2, 0.1, 0.3]),
        "row 1, field price_usd_per_hour: inf is not finite",
    ),
    "unparsable": (
        table(price_usd_per_hour=["0.1", "0.2", "cheap", "0.3"]),
        "row 3, field price_usd_per_hour: cheap",
    ),
    "no time zone": (
        table(timestamp=times(0, 1, 2, 3).tz_localize(None)),
        "row 1, field timestamp: 2015-04-01 00:00:00 has no time zone",
    ),
    "no offset in text": (
        table(
            timestamp=[
                "2015-04-01T00:00:00Z",
                "2015-04-01T01:00:00",
                "2015-04-01T02:00:00Z",
                "2015-04-01T03:00:00Z",
            ]
        ),
        "row 2, field timestamp: 2015-04-01T01:00:00 has no time zone",
    ),
    "no time at all": (
        table(timestamp=["2015-04-01T00:00:00Z", "noonZ", "2015-04-01T02:00:00Z", "2015-04-01T03:00:00Z"]),
        "row 2, field timestamp: noonZ is not a time",
    ),
    "missing time": (
        table(timestamp=times(0, 1, 2, 3).where([True, True, True, False])),
        "row 4, field timestamp",
    ),
    "out of order": (
        table(timestamp=times(0, 2, 1, 3)),
        "row 3, field timestamp: is earlier than row 2 of the same market",
    ),
    "repeated": (
        table(timestamp=times(0, 1, 1, 3)),
        "row 3, field timestamp: repeats market us-east-1a c3.xlarge",
    ),
    "unknown type": (
        table(instance_type=["c3.xlarge", "c3.xlarge", "c3.xlrage", "c3.xlarge"]),
        r"row 3, field instance_type: unknown aws instance type 'c3.xlrage' \(did you mean 'c3.xlarge'",
    ),
    "unknown cloud": (
        table(cloud=["aws", "aws", "aws", "awz"]),
        "row 4, field instance_type: unknown cloud 'awz'",
    ),
    "blank zone": (table(zone=["us-east-1a", "", "us-east-1a", "us-east-1a"]), "row 2, field zone: .*is blank"),
    "unknown column": (table(colour="red"), "field colour: has an unknown column 'colour'; needed are timestamp"),
    "missing column": (
        table().drop(columns="zone"),
        "field zone: has no column 'zone'; it has 'timestamp', .*; needed are timestamp",
    ),
    "empty": (table().iloc[:0], "holds no rows"),
}


@pytest.mark.parametrize(("frame", "problem"), BAD.values(), ids=BAD.keys())
def test_bad_prices_are_told_by_file_row_and_field(frame: pd.DataFrame, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    frame.to_parquet(path)
    with pytest.raises(InputError, match=rf"bad.parquet(: |, ){problem}") as caught:
        eb.PriceHistory.read(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_parquet_is_told(tmp_path: Path) -> None:
    empty, text = tmp_path / "empty.parquet", tmp_path / "text.parquet"
    empty.write_bytes(b"")
    text.write_text("prices")
    with pytest.raises(InputError, match=r"empty.parquet: is not a readable Parquet file: holds nothing"):
        eb.PriceHistory.read(empty)
    with pytest.raises(InputError, match=r"text.parquet: is not a readable Parquet file"):
        eb.PriceHistory.read(text)
    with pytest.raises(InputError, match="there is no such file"):
        eb.PriceHistory.read(tmp_path / "none.parquet")


def test_good_prices_pass_and_equal_prices_in_a_row_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "good.parquet"
    table(price_usd_per_hour=[0.1, 0.1, 25.0, 0.1]).to_parquet(path)
    assert eb.PriceHistory.read(path).change_points == 4


def test_cleaning_sorts_and_keeps_the_last_of_rows_with_one_time() -> None:
    frame, done = cleaned(table(timestamp=times(2, 1, 2, 0), price_usd_per_hour=[0.1, 0.2, 0.3, 0.4]), "x")
    assert frame["price_usd_per_hour"].tolist() == [0.4, 0.2, 0.3]
    assert (done.rows_in, done.rows_out, done.rows_sorted, done.duplicates_dropped) == (4, 3, 2, 1)
    assert "1 had the market and time of a later row" in str(done)


def test_cleaning_still_refuses_cells_that_are_not_prices() -> None:
    with pytest.raises(InputError, match="negative"):
        cleaned(table(price_usd_per_hour=[0.1, 0.2, -1, 0.3]), "x")


def test_an_export_of_exactly_a_thousand_rows_is_suspect() -> None:
    stamps = pd.date_range("2015-04-01", periods=1000, freq="min", tz="UTC")
    frame = pd.DataFrame({name: table()[name].iloc[0] for name in table().columns}, index=range(1000))
    _, done = cleaned(frame.assign(timestamp=stamps), "x")
    assert "exactly 1000 rows" in str(done)
