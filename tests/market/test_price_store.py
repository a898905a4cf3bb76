"""The price store: changes only, whatever order they come in; whole or not at all."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ebbtide as eb
from ebbtide.base.utc import from_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.price_store import PriceStore
from ebbtide.market.sources.stored import is_price_store

HERE = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")
THERE = eb.Market("aws", "eu-west-1", "eu-west-1a", "c3.xlarge")
T0 = 1_400_000_000


def rows(*points: tuple[int, float], market: eb.Market = HERE) -> pd.DataFrame:
    return pd.DataFrame(
        [
            [
                from_epoch_s(T0 + time_s),
                market.cloud,
                market.region,
                market.zone,
                market.instance_type,
                market.product,
                price,
            ]
            for time_s, price in points
        ],
        columns=["timestamp", "cloud", "region", "zone", "instance_type", "product", "price_usd_per_hour"],
    )


def points(store: PriceStore, market: eb.Market = HERE) -> list[tuple[float, float]]:
    series = store.history()[market]
    return list(zip((series.times_s - T0).tolist(), series.prices.tolist(), strict=True))


def test_only_changes_are_stored(tmp_path: Path) -> None:
    store = PriceStore(tmp_path / "sub" / "prices.db")
    assert store.add(rows((0, 0.1), (60, 0.1), (120, 0.2), (180, 0.2))) == 2
    assert store.add(rows((240, 0.2), (300, 0.1))) == 1
    assert store.add(rows((0, 0.1), (300, 0.1))) == 0
    assert points(store) == [(0, 0.1), (120, 0.2), (300, 0.1)]
    assert store.quotes() == {HERE: 0.1}
    assert is_price_store(store.path)


def test_the_last_price_holds_until_it_was_last_looked_at(tmp_path: Path) -> None:
    store = PriceStore(tmp_path / "prices.db")
    store.add(rows((0, 0.1)), looked_at=T0 + 500, places={"us-east-1": "aws", "eu-west-1": "aws"})
    store.add(pd.DataFrame(), looked_at=T0 + 400, places={"us-east-1": "aws"})
    assert store.newest_s() == {"us-east-1": T0 + 500, "eu-west-1": T0 + 500}
    assert store.history().end_s == T0 + 500


BATCHES = st.lists(
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from([0.1, 0.2, 0.3])),
        min_size=1,
        max_size=8,
        unique_by=lambda point: point[0],
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(BATCHES)
def test_however_it_is_cut_up_it_holds_what_the_prices_say(batches: list[list[tuple[int, float]]]) -> None:
    ordered = sorted({time: price for batch in batches for time, price in batch}.items())
    with tempfile.TemporaryDirectory() as folder:
        store = PriceStore(Path(folder) / "prices.db")
        for low in range(0, len(ordered), 3):
            store.add(rows(*ordered[low : low + 3]))
        found = points(store)
    changes = [point for n, point in enumerate(ordered) if n == 0 or point[1] != ordered[n - 1][1]]
    assert found == changes


def test_what_goes_wrong_leaves_it_as_it_was(tmp_path: Path) -> None:
    store = PriceStore(tmp_path / "prices.db")
    store.add(rows((0, 0.1)))
    with pytest.raises(InputError, match="price_usd_per_hour"):
        store.add(pd.concat([rows((60, 0.3)), rows((70, -1.0))], ignore_index=True))
    assert points(store) == [(0, 0.1)]


def test_others_read_while_it_is_added_to(tmp_path: Path) -> None:
    store = PriceStore(tmp_path / "prices.db")
    store.add(rows((0, 0.1)))
    writing = sqlite3.connect(store.path)
    writing.execute("BEGIN IMMEDIATE")
    writing.execute("UPDATE prices SET price_usd_per_hour = 9.0")
    assert PriceStore(store.path).quotes() == {HERE: 0.1}
    writing.rollback()
    writing.close()


def test_another_file_is_not_taken_for_one(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    other.write_text("not a database, but long enough to be looked at as one")
    with pytest.raises(InputError, match="cannot be used as a price store"):
        PriceStore(other)
    assert not is_price_store(other)
    plain = tmp_path / "plain.db"
    connection = sqlite3.connect(plain)
    connection.execute("CREATE TABLE x (y)")
    connection.close()
    with pytest.raises(InputError, match="is no price store of version 1"):
        PriceStore(plain)
    with pytest.raises(InputError, match="nothing is stored there"):
        PriceStore(tmp_path / "none.db").history()
    assert PriceStore(tmp_path / "none.db").quotes() == {}


def test_it_can_be_ingested(tmp_path: Path) -> None:
    PriceStore(tmp_path / "prices.db").add(pd.concat([rows((0, 0.1), (60, 0.2)), rows((5, 0.3), market=THERE)]))
    eb.ingest_files([tmp_path / "prices.db"], tmp_path / "prices.parquet")
    assert eb.PriceHistory.read(tmp_path / "prices.parquet").change_points == 3
