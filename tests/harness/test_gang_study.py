"""Machines of the local cloud that train as one with torchrun, and are revoked."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.gang_study import studied, undisturbed

pytestmark = pytest.mark.usefixtures("processes", "in_project")

pytest.importorskip("torch")
GANG = Path("examples/gang/gang.yaml")


@pytest.mark.exhaustive
def test_four_machines_that_are_taken_end_with_the_weights_of_an_undisturbed_run(tmp_path: Path) -> None:
    options = ("--epochs", "12", "--step-s", "0.25")
    row = studied(GANG, tmp_path, (1, 2), options, undisturbed(options[:2]))
    assert row.problems == []
    assert row.weights_equal
    assert row.revocations == 3
    assert row.assignments >= 3
