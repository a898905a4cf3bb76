"""Records keep when they begin and end in their files, beyond their rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.markets import C3, R3, START_S, history

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.ingestion import ingest_files
from ebbtide.market.parquet_notes import write_with_notes
from ebbtide.market.price_store import PriceStore


def test_a_market_whose_price_never_changes_keeps_the_length_of_its_record(tmp_path: Path) -> None:
    prices = history({C3: [(0, 0.03)]}, hours=480)
    prices.write(tmp_path / "prices.parquet")
    read = eb.PriceHistory.read(tmp_path / "prices.parquet")
    assert (read.start_s, read.end_s) == (START_S, START_S + 480 * 3600)


changes = st.lists(st.integers(0, 10_000_000), min_size=1, max_size=5, unique=True).map(sorted)


@settings(max_examples=30, deadline=None)
@given(changes, changes, st.integers(0, 10**12), st.integers(0, 10**12))
def test_any_history_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, ours: list[int], theirs: list[int], before_us: int, after_us: int
) -> None:
    file = tmp_path_factory.mktemp("round") / "prices.parquet"
    series = {C3: [(at_s, 0.03 + at_s / 1e4) for at_s in ours], R3: [(at_s, 0.02 + at_s / 1e4) for at_s in theirs]}
    known = history(series)
    prices = eb.PriceHistory(
        dict(known), start_s=START_S - before_us / 1e6, end_s=START_S + 10_000_000 + after_us / 1e6
    )
    prices.write(file)
    assert eb.PriceHistory.read(file).equals(prices)


@settings(max_examples=30, deadline=None)
@given(changes, st.lists(st.integers(0, 3), min_size=5, max_size=5), st.integers(1, 10**12))
def test_any_record_of_capacity_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, at_s: list[int], nodes: list[int], more_us: int
) -> None:
    file = tmp_path_factory.mktemp("round") / "capacity.parquet"
    times_s = START_S + np.array(at_s, dtype=float)
    series = CapacitySeries(times_s, np.array(nodes[: len(at_s)]), float(times_s[-1]) + more_us / 1e6)
    Availability({C3: series}).write(file)
    read = Availability.read(file)[C3]
    assert (read.times_s.tolist(), read.nodes.tolist()) == (series.times_s.tolist(), series.nodes.tolist())
    assert read.end_s == series.end_s


def test_adding_prices_keeps_the_latest_end_of_all_records(tmp_path: Path) -> None:
    known, added, later = (tmp_path / f"{name}.parquet" for name in ("known", "added", "later"))
    history({C3: [(0, 0.03)]}, hours=480).write(known)
    history({R3: [(0, 0.02), (60, 0.03)]}, hours=1).write(added)
    assert ingest_files([added], known).history.end_s == START_S + 480 * 3600
    history({R3: [(0, 0.02)]}, hours=500).write(later)
    assert ingest_files([later], known).history.end_s == START_S + 500 * 3600
    assert eb.PriceHistory.read(known).end_s == START_S + 500 * 3600


def test_a_store_that_was_polled_after_its_last_change_is_added_with_that_time(tmp_path: Path) -> None:
    store = PriceStore(tmp_path / "prices.db")
    store.add(history({C3: [(0, 0.03)]}).to_frame(), looked_at="2015-04-02T00:00:00Z")
    assert ingest_files([store.path], tmp_path / "into.parquet").history.end_s == START_S + 86_400


@pytest.mark.parametrize("notes", [{"end_s": "soon"}, {"end_s": float("nan")}, {"start_s": None}])
def test_a_span_that_is_none_is_refused(notes: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "prices.parquet"
    write_with_notes(file, history({C3: [(0, 0.03)]}).to_frame(), notes)
    with pytest.raises(InputError, match="of its record is"):
        eb.PriceHistory.read(file)
