"""Tables of probes: generated, and from files of several kinds."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tests.markets import C3, R3, history

from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.models import PROBE_COLUMNS, fit_market_spells
from ebbtide.forecasts.capacity.probes import before, generated_probes, read_probes, write_probes
from ebbtide.market.prices import PriceHistory


def _prices(hours: float = 48.0) -> PriceHistory:
    return history({C3: [(0.0, 0.1)], R3: [(0.0, 0.2)]}, hours)


def test_generated_probes_have_every_market_at_every_tick() -> None:
    prices = _prices()
    probes = generated_probes(prices, 1, 1800.0)
    times = probes.groupby("instance_type")["timestamp"]
    assert set(times.size()) == {97}  # one at each end of the two days
    assert (times.min() == pd.Timestamp(prices.start_s, unit="s", tz="UTC")).all()
    assert set(probes["available"]) == {0, 1}
    assert probes.equals(generated_probes(prices, 1, 1800.0))
    assert not probes.equals(generated_probes(prices, 2, 1800.0))


def test_what_is_written_is_read_again_and_fitted(tmp_path: Path) -> None:
    probes = generated_probes(_prices(24 * 20), 1, 1800.0)
    # One of the markets has no machine on every second day.
    is_off = (probes["instance_type"] == R3.instance_type) & (probes["timestamp"].dt.day % 2 == 0)
    probes.loc[is_off, "available"] = 0
    write_probes(probes, tmp_path / "capacity.parquet")
    again = read_probes([tmp_path / "capacity.parquet"])
    pd.testing.assert_frame_equal(again, probes, check_dtype=False)
    fitted = fit_market_spells(again)
    assert set(fitted.by_market) == {str(C3), str(R3)}
    # Each market is fitted to its own capacity.
    shares = probes.groupby("instance_type")["available"].mean()
    assert shares[R3.instance_type] < shares[C3.instance_type] - 0.1
    assert fitted.of(R3).share_up < fitted.of(C3).share_up


def test_ticks_and_rounds_become_probes(tmp_path: Path) -> None:
    start = pd.Timestamp("2026-01-01", tz="UTC")
    zone = {"cloud": ["aws"], "zone": ["us-west-2a"], "device": ["V100"], "device_count": [1], "start": [start]}
    pd.DataFrame({**zone, "gap_seconds": [600.0], "data": [[0, 2, 2, 0]]}).to_parquet(tmp_path / "ticks.parquet")
    where = {"cloud": "gcp", "region": "r", "zone": "r-a", "instance_type": "a3"}
    times = [start, start + pd.Timedelta("1h")]
    rounds = pd.DataFrame({"timestamp": times, **where, "launched": [0, 3], "requested": [4, 4]})
    rounds.to_parquet(tmp_path / "rounds.parquet")
    found = read_probes([tmp_path / "ticks.parquet", tmp_path / "rounds.parquet"])
    assert list(found.columns) == list(PROBE_COLUMNS)
    assert found["available"].tolist() == [0, 1, 1, 0, 0, 1]
    assert len(before(found, start.timestamp() + 600.0)) == 2
    assert len(before(found, start.timestamp() + 600.0, later=True)) == 4


def test_without_files_there_is_no_probe(tmp_path: Path) -> None:
    assert read_probes([]).empty
    with pytest.raises(InputError, match="positive"):
        generated_probes(_prices(), 1, 0.0)
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(InputError, match="not an availability record"):
        read_probes([tmp_path / "other.parquet"])
