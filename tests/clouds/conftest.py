"""Fixtures of the tests of clouds."""

from __future__ import annotations

import pytest
from tests.agent.bare_python import bare_python


@pytest.fixture(scope="session")
def machine_python(processes: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python without any package, as machines have it: what they run comes with the run."""
    return str(bare_python(tmp_path_factory.mktemp("machine") / "python"))
