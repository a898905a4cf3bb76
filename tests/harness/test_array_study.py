"""An array on machines of the local cloud, which are revoked."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.array_study import studied

pytestmark = pytest.mark.usefixtures("processes", "in_project")


@pytest.mark.exhaustive
def test_each_result_is_there_once_though_machines_are_lost(tmp_path: Path) -> None:
    report = studied(tmp_path, 240, 8)
    assert report.problems == []
    assert report.revocations >= 4
