"""Commands in the process of a test tell no progress, however slow the machine is."""

from __future__ import annotations

import pytest

from ebbtide.cli import progress


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_LINE_S", 1e6)
