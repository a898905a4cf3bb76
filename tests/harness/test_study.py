"""The frame of the studies."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.harness.study import failed, run_study

from ebbtide.errors import InputError


@dataclass(frozen=True)
class Doubled:
    """A number, and its double."""

    name: str
    doubled: int

    @property
    def problems(self) -> list[str]:
        return failed({"is odd": self.doubled % 4 == 0, "is negative": self.doubled >= 0})


def test_one_report_is_written_with_the_numbers_that_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "one.json"
    monkeypatch.setattr(sys, "argv", ["study", "--least-steps", "4", "--out", str(out)])
    folders: list[Path] = []

    def study(runs: Path, least_steps: int) -> Doubled:
        folders.append(runs)
        assert runs.is_dir()
        return Doubled("a", 2 * least_steps)

    run_study("A study.", "elsewhere.json", study, least_steps=1)
    assert json.loads(out.read_text()) == {"name": "a", "doubled": 8}
    assert not folders[0].exists()


def test_of_several_reports_each_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "several.json"
    monkeypatch.setattr(sys, "argv", ["study", "--runs", str(tmp_path / "kept")])
    with pytest.raises(InputError, match="^b: is odd; c: is odd; c: is negative$"):
        run_study("A study.", str(out), lambda _: [Doubled("a", 8), Doubled("b", 6), Doubled("c", -2)])
    assert [row["name"] for row in json.loads(out.read_text())] == ["a", "b", "c"]
