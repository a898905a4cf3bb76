"""The programs beside other tools' (docs/beside/): ours trains through revocations, and what is counted is told."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from docs import line_counts as beside

import ebbtide as eb
from tests.harness.spiking_market import SpikingMarket

FOLDER = beside.FOLDER


def copied(tool: str, into: Path) -> Path:
    """A tool's files with the work that all share, as a user would have them."""
    folder = into / tool
    shutil.copytree(FOLDER / tool, folder)
    shutil.copy(FOLDER / "work.py", folder)
    return folder


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_ours_trains_all_settings_on_machines_that_are_taken(tmp_path: Path) -> None:
    folder = copied("ebbtide", tmp_path)
    # A training takes twenty seconds, so that machines are taken in the middle of it, with a notice of twelve.
    work = folder / "work.py"
    work.write_text(work.read_text().replace("SECONDS_AN_EPOCH = 0.1", "SECONDS_AN_EPOCH = 0.5"))
    market = SpikingMarket(
        zones=4, first_s=18.0, between_s=60.0, high_s=6.0, speed=10.0, instance_type="g6.xlarge"
    )
    local = market.local([4])
    run = eb.run(
        folder / "sweep.yaml",
        "reactive",
        provider="local",
        prices=local.prices,
        start=local.start_s,
        speed=local.speed,
        runs=tmp_path / "runs",
    )
    run.wait(timeout_s=600)
    result = run.result()
    assert result.finished
    assert result.revocations >= 1
    assert result.cost_usd <= 20
    # A revoked machine had saved: no trial began again at its first step.
    assert result.steps_lost == 0
    assert len(run.results()) == 4


@pytest.mark.usefixtures("processes")
@pytest.mark.exhaustive
@pytest.mark.parametrize("tool", ["skypilot", "dstack"])
def test_the_program_that_we_wrote_for_another_tool_resumes(tool: str, tmp_path: Path) -> None:
    folder = copied(tool, tmp_path)
    command = [sys.executable, "train.py", "--lr", "0.1", "--folder", str(tmp_path / "checkpoints")]
    first = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    for number in range(5):
        assert first.stdout.readline().startswith(f"{number} ")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    again = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env=os.environ)
    lines = again.stdout.splitlines()
    assert int(lines[0].split()[0]) >= 5
    assert lines[-1].startswith("39 ")


def test_lines_are_those_that_are_neither_blank_nor_comments(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("# what\n\na: 1\n  # why\n  b: 2 # kept\n")
    assert beside.lines_of(file) == 2


def test_the_table_is_what_the_files_say() -> None:
    text = beside.PAGE.read_text(encoding="utf-8")
    assert text == beside.with_table(text), "run `python -m docs.line_counts`"
    assert {tool.folder for tool in beside.TOOLS} == {path.name for path in FOLDER.iterdir() if path.is_dir()}


@pytest.mark.parametrize("tool", beside.TOOLS, ids=lambda tool: tool.folder)
def test_each_program_can_be_read_and_names_its_source(tool: beside.Tool) -> None:
    for file in beside.files_of(tool):
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".py":
            compile(text, str(file), "exec")
        elif file.suffix in (".yaml", ".yml"):
            assert yaml.safe_load(text)
    whole = "\n".join(file.read_text(encoding="utf-8") for file in beside.files_of(tool))
    assert tool.folder == "ebbtide" or re.search(r"\b[0-9a-f]{8,40}\b", whole)
