"""A user's Spark application on machines of the local cloud, which are taken."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ebbtide.testing.spark_study import studied

pytest.importorskip("pyspark")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed")
def test_its_result_is_that_of_an_undisturbed_run_though_workers_are_taken(tmp_path: Path) -> None:
    report = studied(tmp_path, (2, 2, 1), 10, 0.6)
    assert report.problems == []
    assert report.revocations >= 3
