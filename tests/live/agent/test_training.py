"""Lines of a training program, as the agent hears them."""

from __future__ import annotations

import queue
import sys
from pathlib import Path

import pytest

from ebbtide.live.agent.processes import TrainingProcess


def heard(program: str, folder: Path) -> list[object]:
    lines: queue.Queue[object] = queue.Queue()
    TrainingProcess([sys.executable, "-c", program], {}, folder, lines.put)
    found = []
    while (line := lines.get(timeout=30)) is not None:
        found.append(line)
    return found


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ('print(\'{"step": 1, "loss": 0.5}\')', [{"step": 1, "loss": 0.5}]),
        ("print('words {not json}')", ["words {not json}"]),
        ("print('[1, 2]')", ["[1, 2]"]),
        ("print('{\"open\": ')", ['{"open": ']),
        # A progress bar on standard error ends in no line feed: what is reported stands behind it.
        (
            "import os\nos.write(2, b'\\r 50%|### | 5/10')\nos.write(1, b'{\"step\": 5}\\n')",
            ["", {"step": 5}],
        ),
    ],
)
def test_reports_are_told_from_words(program: str, expected: list[object], tmp_path: Path) -> None:
    assert heard(program, tmp_path) == expected
