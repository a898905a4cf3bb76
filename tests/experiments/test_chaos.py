"""The other two seeds of `tests/execution/live/test_chaos.py`: a file is run by one worker, and these take a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.experiments.chaos.chaos import chaos_run


@pytest.mark.parametrize("seed", [3, 4])
def test_nothing_is_lost_counted_twice_left_running_or_paid_unseen(seed: int, tmp_path: Path) -> None:
    report = chaos_run(seed, 50, tmp_path)
    assert sum(report.faults.values()) >= 50
    assert report.is_whole, report
