"""Memory, storage and journal of a run of days on the virtual clock."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.week_study import held_bytes, studied


@pytest.mark.long
def test_half_a_day_breaks_nothing(tmp_path: Path) -> None:
    reports = studied(tmp_path, 0.5, 0)
    assert [(report.finished, report.violations) for report in reports] == [(True, ()), (True, ())]
    assert all(report.faults > 20 and report.controller_bytes[0] > 0 for report in reports)


def test_all_that_an_object_holds_is_counted_once() -> None:
    class Holder:
        def __init__(self) -> None:
            self.first = self.second = [bytes(100_000)]

    held = Holder()
    assert 100_000 < held_bytes(held) < 102_000
    held.second = [bytes(100_000)]
    assert 200_000 < held_bytes(held) < 202_000
