"""A matrix program with a cookbook on the local cloud; machines are revoked, and the controller is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.cookbook_study import Size, studied

pytestmark = pytest.mark.usefixtures("processes", "in_project")

pytest.importorskip("distributed")


@pytest.mark.exhaustive
def test_its_result_is_numpy_s_and_the_deadline_is_kept_though_machines_are_taken(tmp_path: Path) -> None:
    report = studied(tmp_path, Size(power=6, deadline_h=24.0, least_revocations=1))
    assert report.problems == []
    assert report.killed == 1
    assert report.market == "us-east-1a c3.xlarge"
