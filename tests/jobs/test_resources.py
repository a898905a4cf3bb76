"""What a training asks of its machine, as people write it."""

from __future__ import annotations

import pytest

from ebbtide.jobs.resources import Resources


@pytest.mark.parametrize(
    ("written", "meant"),
    [("A100", "A100:1"), ("A100:1", "A100:1"), ("H100:8", "H100:8"), ("NVIDIA L4", "NVIDIA L4:1")],
)
def test_accelerators_without_a_number_are_one_and_said_to_be(written: str, meant: str) -> None:
    asked = Resources(accelerators=written)
    assert asked.accelerators == meant
    assert asked.asked == f"accelerators {meant}"
