"""Each test here is a program of its own, whatever trained before in the process of the tests."""

from __future__ import annotations

import pytest

from ebbtide.trial import Trial


@pytest.fixture(autouse=True)
def _no_training_before() -> None:
    # Not by monkeypatch, which tests undo in their midst.
    Trial._latest = None
