"""Lives of probed machines, from a log by hand and from the real one."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from ebbtide.errors import InputError
from ebbtide.market.lifetimes import Life, by_machine, read_probe_log

T0 = pd.Timestamp("2020-03-01T00:00:00Z")


def log(path: Path, *events: tuple[float, str, str, str]) -> Path:
    """Hours, event, machine, zone; GPUs are told at creation only."""
    rows = [
        [
            T0 + pd.Timedelta(hours=hours),
            "gcp",
            "c",
            event,
            name,
            8 if event == "created" else None,
            "nvidia-tesla-v100" if event == "created" else None,
            zone,
        ]
        for hours, event, name, zone in events
    ]
    names = ["timestamp", "cloud", "collection", "event", "instance", "gpus", "gpu_type", "zone"]
    pd.DataFrame(rows, columns=names).to_parquet(path / "log.parquet")
    return path / "log.parquet"


def test_lives_by_hand(tmp_path: Path) -> None:
    path = log(
        tmp_path,
        (0, "created", "one", "a"),
        (1, "running", "one", "a"),
        (3, "not_running", "one", "a"),
        (3.5, "creation_failed", "one", "a"),
        (4, "created", "one", "a"),
        (9, "running", "one", "a"),
        (2, "creation_failed", "two", "b"),
    )
    first, second = read_probe_log(path)
    assert first == Life("gcp", "a", "v100", 8, T0.timestamp(), T0.timestamp() + 3 * 3600, True)
    assert (second.start_s - first.start_s, second.end_s - second.start_s, second.preempted) == (
        4 * 3600,
        5 * 3600,
        False,
    )
    (row,) = by_machine([first, second]).values()
    assert row == {"machines": 2, "preempted": 1, "mean_h": 8.0, "median_seen_h": 4.0, "longest_seen_h": 5.0}


def test_a_log_that_is_none_is_refused(tmp_path: Path) -> None:
    path = log(tmp_path, (0, "vanished", "one", "a"))
    with pytest.raises(InputError, match="row 1.*event.*'vanished' is none of created, running"):
        read_probe_log(path)
    pd.DataFrame({"timestamp": []}).to_parquet(path)
    with pytest.raises(InputError, match="has no column 'cloud'"):
        read_probe_log(path)


@pytest.mark.real_traces
def test_gcp_ends_every_machine_within_a_day_and_aws_does_not(traces: Path) -> None:
    """Dynamic Pricing, 3.2.2."""
    lives = read_probe_log(traces / "gpu-availability-log-2020.parquet")
    hours = {
        cloud: [(life.end_s - life.start_s) / 3600 for life in lives if life.cloud == cloud]
        for cloud in ("aws", "gcp")
    }
    # They are seen gone at the next probe, up to an hour later.
    assert max(hours["gcp"]) < 25.0
    assert max(hours["aws"]) > 48
    assert len(hours["gcp"]) > 400
