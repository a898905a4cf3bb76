"""Memory of agent and controller while a program prints a great deal."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.memory_study import quarters, studied


@pytest.mark.exhaustive
@pytest.mark.usefixtures("processes")
def test_memory_stays_as_it_is(tmp_path: Path) -> None:
    report = studied(tmp_path, 120, 30_000)
    assert report.problems == []
    assert report.samples >= 8


def test_the_first_quarter_is_left_out() -> None:
    assert quarters([9, 9, 1, 1, 5, 5, 2, 2, 7]) == (1.0, 4.5)
    with pytest.raises(ValueError, match="fewer than four"):
        quarters([1, 2, 3])
