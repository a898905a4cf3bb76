"""`dvc.lock` is of this very code and these parameters; the documented picture of the pipeline is that of DVC."""

from __future__ import annotations

import re
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo
from tests.pipelines.project import ROOT, STAGES

# Made by the pipeline; what they were made from is compared instead.
MADE = ("data/", "models/", "reports/")


def stale(folder: str) -> list[str]:
    """What each stage was made from that is different now."""
    found = []
    for stage in Repo(folder).index.stages:
        changed: dict[str, Any] = {}
        for dependency in stage.deps:
            changed |= {name: what for name, what in dependency.status().items() if not name.startswith(MADE)}
        if stage.cmd_changed:
            changed["command"] = "modified"
        found += [f"{stage.name}: {name} {what}" for name, what in changed.items()]
    return found


def test_the_lock_is_current() -> None:
    told = stale(str(ROOT))
    assert not told, "dvc.lock is older; run `python -m pipelines repro` and commit it:\n" + "\n".join(told)


def test_the_documented_picture_is_that_of_dvc() -> None:
    told = (ROOT / "docs" / "pipeline.md").read_text()
    (picture,) = re.findall(r"```mermaid\nflowchart LR\n(.*?)```", told, re.DOTALL)
    drawn = set()
    for line in picture.splitlines():
        ends = [part.split(" & ") for part in line.strip().split(" --> ")]
        drawn |= {(a, b) for before, after in pairwise(ends) for a in before for b in after}
    graph = Repo(str(ROOT)).index.graph
    # A group of stages, as `solve@cookbook` is in, is one box.
    assert drawn == {(needed.name.split("@")[0], stage.name.split("@")[0]) for stage, needed in graph.edges}


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("file", "old", "new", "stages"),
    [
        ("flows/solve.py", "Solving", "Resolving", {name for name in STAGES if name.startswith("solve@")}),
        ("params.yaml", "\n  test_days: 3 ", "\n  test_days: 4 ", {"train_revpred"}),
    ],
)
def test_a_change_makes_it_stale(file: str, old: str, new: str, stages: set[str], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)
    before = set(stale(str(copy)))
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new, 1))
    assert {told.split(":")[0] for told in set(stale(str(copy))) - before} == stages
