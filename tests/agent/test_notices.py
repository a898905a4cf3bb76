"""How long a machine has after a notice, where its own clock may be wrong."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.runs.cloud_as_told import Clock

from ebbtide.agent.agent import Agent
from ebbtide.agent.config import AgentConfig
from ebbtide.storage.objects import FolderStore


class Still(Clock):
    """Nothing goes on beside the caller."""

    def begin(self, target: object) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("behind_s", "expected_s"),
    [
        (0.0, 110.0),
        (10.0, 120.0),  # a notice has 120 s at most
        (86_400.0, 120.0),
        (-100.0, 10.0),
        # What runs is not taken yet: its clock is ahead, and a notice has at least the time that clouds give.
        (-86_400.0, 30.0),
    ],
)
def test_a_clock_that_is_wrong_moves_it_no_further_than_notices_go(
    tmp_path: Path, behind_s: float, expected_s: float
) -> None:
    clock = Still()
    clock.now_s = 1e9 - behind_s
    machine = SimpleNamespace(runtime=clock, objects=FolderStore(tmp_path))
    config = AgentConfig("run", "m-1", str(tmp_path), str(tmp_path / "work"), key="00" * 32)
    agent = Agent(config, machine)
    assert agent._left_s(1e9 + 110.0) == expected_s
