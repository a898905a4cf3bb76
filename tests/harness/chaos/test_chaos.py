"""Live runs with faults at random moments: training, agents and the controller killed, storage failing.

One short run; `make chaos` has five longer ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.chaos.chaos import chaos_run

pytestmark = pytest.mark.usefixtures("processes")

FAULTS = 16


@pytest.mark.long
def test_nothing_is_lost_counted_twice_left_running_or_paid_unseen(tmp_path: Path) -> None:
    report = chaos_run(5, FAULTS, tmp_path)
    assert sum(report.faults.values()) >= FAULTS
    assert all(report.faults.get(kind) for kind in ("training", "agent", "controller", "storage"))
    assert report.is_whole, report
