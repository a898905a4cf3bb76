"""Programs of training frameworks on the local cloud, whose machines are revoked."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.framework_study import EXAMPLES, NAMES, lines_changed, options_for, studied, undisturbed


@pytest.mark.usefixtures("processes", "in_project")
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    NAMES,
)
def test_a_program_whose_machine_is_taken_ends_with_the_weights_of_an_undisturbed_run(
    name: str, tmp_path: Path
) -> None:
    pytest.importorskip(name if name != "lightning" else "lightning.pytorch")
    options = options_for(1)
    row = studied(name, tmp_path, 1, options, undisturbed(name, options[:2]))
    assert row.problems == []
    assert row.revocations == 1


@pytest.mark.usefixtures("in_project")
def test_each_framework_takes_three_lines_at_most() -> None:
    lines = {name: lines_changed(EXAMPLES / f"{name}_digits.py") for name in NAMES}
    assert lines == {"lightning": 3, "transformers": 3, "accelerate": 3, "keras": 2}
