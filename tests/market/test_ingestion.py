from pathlib import Path

import pandas as pd
import pytest

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.market.markets import MARKET_FIELDS

HEAD = "datetime,instance_type,os,region,price\n"


def export(path: Path, *rows: tuple[str, float], zone: str = "us-east-1a") -> Path:
    lines = [f"2017-05-08 {time}+00:00,c3.xlarge,Linux/UNIX,{zone},{price}\n" for time, price in rows]
    path.write_text(HEAD + "".join(lines))
    return path


def prices(history: eb.PriceHistory) -> list[float]:
    (series,) = history.values()
    return series.prices.tolist()


def test_overlapping_exports_become_one_history_and_the_last_word_counts(tmp_path: Path) -> None:
    first = export(tmp_path / "1.csv", ("02:00:00", 0.2), ("01:00:00", 0.1), ("03:00:00", 0.3))
    second = export(tmp_path / "2.csv", ("03:00:00", 0.35), ("04:00:00", 0.4))
    into = tmp_path / "out" / "prices.parquet"
    done = eb.ingest_files([first, second], into)
    assert prices(eb.PriceHistory.read(into)) == [0.1, 0.2, 0.35, 0.4]
    assert done.rows_added == 4
    assert done.cleaning.rows_sorted == 1


def test_ingesting_again_adds_nothing_and_leaves_the_file_alone(tmp_path: Path) -> None:
    first = export(tmp_path / "1.csv", ("01:00:00", 0.1), ("02:00:00", 0.2))
    into = tmp_path / "prices.parquet"
    eb.ingest_files([first], into)
    before = into.stat().st_mtime_ns
    assert eb.ingest_files([first], into).rows_added == 0
    assert into.stat().st_mtime_ns == before
    later = export(tmp_path / "2.csv", ("02:00:00", 0.25), ("05:00:00", 0.5))
    done = eb.ingest_files([later], into)
    assert (done.rows_before, done.rows_added) == (2, 1)
    assert prices(done.history) == [0.1, 0.25, 0.5]


def test_a_folder_is_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "exports"
    folder.mkdir()
    export(folder / "a.csv", ("01:00:00", 0.1))
    export(folder / "b.csv", ("01:00:00", 0.2), zone="us-east-1b")
    assert len(eb.ingest_files([folder], tmp_path / "p.parquet").history) == 2
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="the folder holds no files"):
        eb.ingest_files([tmp_path / "none"], tmp_path / "p.parquet")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (
            "2017-05-08 01:00:00+00:00,c3.xlarge,Linux/UNIX,us-east-1a,-1\n",
            "bad.csv, row 2, field price: -1 is negative",
        ),
        (
            "2017-05-08 01:00:00,c3.xlarge,Linux/UNIX,us-east-1a,1\n",
            "bad.csv, row 2, field datetime: .*no time zone",
        ),
    ],
)
def test_one_bad_row_and_nothing_is_written(tmp_path: Path, rows: str, problem: str) -> None:
    good = export(tmp_path / "good.csv", ("01:00:00", 0.1))
    bad = export(tmp_path / "bad.csv", ("01:00:00", 0.1))
    bad.write_text(bad.read_text() + rows)
    into = tmp_path / "prices.parquet"
    with pytest.raises(InputError, match=problem):
        eb.ingest_files([good, bad], into)
    assert not into.exists()
    eb.ingest_files([good], into)
    before = into.read_bytes()
    with pytest.raises(InputError):
        eb.ingest_files([bad], into)
    assert into.read_bytes() == before


@pytest.mark.real_traces
def test_every_real_price_file_can_be_ingested_and_loses_nothing(traces: Path, tmp_path: Path) -> None:
    for name in ("ec2-auction-2015", "azure-gpu-2020", "ec2-auction-2013-01"):
        done = eb.ingest_files([traces / f"{name}.parquet"], tmp_path / f"{name}.parquet")
        rows = pd.read_parquet(traces / f"{name}.parquet")
        # Both names of one product are one market, which has one price at a time.
        rows["product"] = rows["product"].str.removesuffix(" (Amazon VPC)")
        times = rows.drop_duplicates(["timestamp", *MARKET_FIELDS])
        assert done.history.change_points == len(times)
