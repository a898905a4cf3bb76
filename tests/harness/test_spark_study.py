"""A user's Spark application on machines of the local cloud, which are taken."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.harness.spark_study import studied

pytestmark = pytest.mark.usefixtures("processes", "in_project")

pytest.importorskip("pyspark")


@pytest.mark.long
@pytest.mark.skipif(
    shutil.which("java") is None, reason="needs Java: on Debian, the package openjdk-17-jre-headless"
)
def test_its_result_is_that_of_an_undisturbed_run_though_workers_are_taken(tmp_path: Path) -> None:
    report = studied(tmp_path, (2, 1), 6, 0.6)
    # Beside other work Spark's driver may give up, and is begun again: `make spark` asks that it is not.
    logs = "\n".join(path.read_text()[-3000:] for path in tmp_path.glob("*/logs/*"))
    assert set(report.problems) <= {"it was begun again"}, logs
    assert report.revocations >= 3
