import math
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import InputError
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.markets import Market


def test_capacity_is_known_between_its_first_and_last_record_only() -> None:
    series = CapacitySeries(np.array([0.0, 60, 120, 180]), np.array([2, 2, 0, 1]), 240.0)
    assert [series.at(t) for t in (-1, 0, 119, 120, 180, 239, 240)] == [0, 2, 2, 0, 1, 1, 0]
    assert series.next_below(0, 1) == 120
    assert series.next_below(0, 3) == 0
    assert series.next_below(200, 1) == 240
    assert [series.next_change(t) for t in (0, 120, 180)] == [120, 180, 240]
    assert math.isinf(series.next_change(240))
    assert series.share_available() == pytest.approx(0.75)
    assert series.share_available(2) == pytest.approx(0.5)


def test_launch_probes_are_read(tmp_path: Path) -> None:
    times = pd.to_datetime(["2022-10-26T22:05:04Z", "2022-10-26T22:15:04Z", "2022-10-26T22:25:04Z"])
    frame = pd.DataFrame(
        {
            "timestamp": times,
            "cloud": "aws",
            "region": "us-west-2",
            "zone": "us-west-2a",
            "instance_type": "p3.2xlarge",
            "available": [1, 0, 1],
        }
    )
    path = tmp_path / "probes.parquet"
    frame.to_parquet(path)
    series = Availability.read(path)[Market("aws", "us-west-2", "us-west-2a", "p3.2xlarge")]
    assert series.nodes.tolist() == [1, 0, 1]
    assert series.end_s - series.times_s[0] == 3 * 600


def test_tick_lists_are_read_and_devices_become_instance_types(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "kind": "availability",
            "nodes": 1,
            "cloud": "aws",
            "zone": "us-west-2a",
            "device": "v100",
            "start": pd.to_datetime(["2022-10-26T22:05:04Z"]),
            "device_count": [8],
            "gap_seconds": [600],
            "data": [[0, 1, 1, 0]],
        }
    )
    path = tmp_path / "ticks.parquet"
    frame.to_parquet(path)
    ((market, series),) = Availability.read(path).items()
    assert market.instance_type == "p3.16xlarge"
    assert series.nodes.tolist() == [0, 1, 0]
    assert series.end_s - series.times_s[0] == 4 * 600


def test_what_is_no_record_of_capacity_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(path)
    with pytest.raises(InputError, match=r"other.parquet: is not an availability record"):
        Availability.read(path)
    frame = pd.DataFrame(
        {
            "timestamp": pd.to_datetime(["2022-10-26T22:05:04Z"]),
            "cloud": "aws",
            "region": "r",
            "zone": "z",
            "instance_type": "t",
            "available": [-1],
        }
    )
    frame.to_parquet(path)
    with pytest.raises(InputError, match=r"other.parquet, row 1, field available"):
        Availability.read(path)


@pytest.mark.real_traces
def test_real_tick_lists_have_the_share_that_their_file_states(traces: Path) -> None:
    path = traces / "spot-availability-2022-2023.parquet"
    stated = pd.read_parquet(path)
    read = Availability.read(path)
    assert len(read) == len(stated)
    single = stated[(stated["nodes"] == 1)]["up"].sort_values().to_numpy()
    shares = np.array(sorted(series.share_available() for series in read.values()))
    for share in single:
        assert np.abs(shares - share).min() < 0.01


@pytest.mark.real_traces
def test_real_probes_and_rounds_are_read(traces: Path) -> None:
    assert len(Availability.read(traces / "ec2-gpu-availability-2022-2023.parquet")) == 9
    rounds = Availability.read(traces / "gcp-h100-capacity-2025.parquet")
    assert len(rounds) == 10
    assert max(int(series.nodes.max()) for series in rounds.values()) == 16


@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    gaps=st.lists(st.integers(1, 10_000), min_size=12, max_size=12),
    last=st.integers(1, 10_000),
)
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read_as_it_was(counts: list[int], gaps: list[int], last: int) -> None:
    times_s = 1.7e9 + np.cumsum(np.array(gaps[: len(counts)], dtype=float))
    market = Market("gcp", "us-west1", "us-west1-a", "a2-highgpu-1g")
    known = CapacitySeries(times_s, np.array(counts), float(times_s[-1]) + last)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "capacity.parquet"
        Availability({market: known}).write(path)
        ((again, read),) = Availability.read(path).items()
    assert again == market
    moments = np.concatenate([times_s - 0.5, times_s, times_s + 0.5, [known.end_s - 0.5, known.end_s, 1.8e9]])
    assert [read.at(moment) for moment in moments] == [known.at(moment) for moment in moments]
    for moment in moments.tolist():
        assert read.next_below(moment, 1) == known.next_below(moment, 1)
