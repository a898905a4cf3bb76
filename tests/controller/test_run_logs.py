"""A log keeps its newest part, whatever a program prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.controller import run_logs
from ebbtide.controller.run_logs import append_line, older_part


def test_of_a_long_log_the_newest_part_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_logs, "_MOST_BYTES", 1_000)
    path = tmp_path / "run-000.log"
    for number in range(1_000):
        append_line(path, f"line {number}")
        assert path.stat().st_size <= 1_000
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run-000.log", "run-000.log.1"]
    first, *lines = path.read_text().splitlines()
    assert first == f"ebbtide: earlier lines are in {older_part(path)}, and those before them are gone"
    before = older_part(path).read_text().splitlines()[1:]
    kept = [int(line.split()[1]) for line in [*before, *lines]]
    assert kept == list(range(kept[0], 1_000))
    assert path.stat().st_mode & 0o077 == 0
