"""Each test here is a program of its own, whatever trained before in the process of the tests."""

from __future__ import annotations

import pytest

from ebbtide.trial import Trial


@pytest.fixture(autouse=True)
def _no_training_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "_latest", None)
