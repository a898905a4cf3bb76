"""MPI on machines of the local cloud, which are revoked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.harness.mpi_study import studied

pytestmark = pytest.mark.usefixtures("processes", "in_project")

pytest.importorskip("mpi4py")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_four_ranks_whose_machines_are_taken_end_as_undisturbed(tmp_path: Path) -> None:
    report = studied(tmp_path, (1, 2), 300)
    assert report.problems == []
    assert report.revocations == 3
    assert report.assignments == 3
