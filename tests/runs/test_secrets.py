"""Secrets: the program has them, and neither the run's folder nor storage nor a list of processes."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runs.sweeps import START_S, flapping
from tests.waiting import LIMIT_S

import ebbtide as eb
from ebbtide.agent.config import Assignment
from ebbtide.agent.protocol import Train, key_of
from ebbtide.agent.secret_values import opened, with_secrets
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.mailboxes import Mailboxes
from ebbtide.errors import InputError
from ebbtide.jobs.one_training import sweep_of
from ebbtide.runs.run import begin
from ebbtide.runs.start_local import end_local
from ebbtide.storage.objects import FolderStore

VALUE = "hf-3d9f0c4ab27e"
PROGRAM = """
import hashlib, os, pathlib
value = os.environ["HUB_TOKEN"].encode()
shown = [p.name for p in pathlib.Path("/proc").glob("[0-9]*/cmdline") if value in p.read_bytes()]
print("digest", hashlib.sha256(value).hexdigest(), "shown", shown)
"""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "runs"
    yield folder
    for path in folder.glob("*/run.json"):
        end_local(RunFolder(path.parent))


def files_with(folder: Path, value: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and value.encode() in path.read_bytes()]


@pytest.mark.usefixtures("processes")
def test_the_program_has_it_and_nothing_else(tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_TOKEN", VALUE)
    code = tmp_path / "code"
    code.mkdir()
    (code / "program.py").write_text(PROGRAM)
    work = eb.Job(command=[sys.executable, "program.py"], secrets=["HUB_TOKEN"])
    run = eb.run(work, "reactive", prices=flapping(), start=START_S, folder=code, runs=runs)
    run.result(LIMIT_S)
    printed = next((Path(run.folder) / "logs").glob("*.log")).read_text()
    assert f"digest {hashlib.sha256(VALUE.encode()).hexdigest()} shown []" in printed
    assert files_with(tmp_path, VALUE) == []
    # The journal in its folder, or wherever it is, names the variable alone.
    assert files_with(Path(run.folder), "HUB_TOKEN") != []


def test_without_it_nothing_is_begun(tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUB_TOKEN", raising=False)
    work = eb.Job(command=[sys.executable, "-c", "pass"], secrets=["HUB_TOKEN"])
    with pytest.raises(InputError, match="HUB_TOKEN is not set in the environment"):
        eb.run(work, "reactive", prices=flapping(), start=START_S, folder=tmp_path, runs=runs)
    assert not runs.exists()


@pytest.mark.parametrize(
    ("name", "told"), [("hf_Ab-3.x", "and never values"), ("EBBTIDE_TRIAL_ID", "is set by Ebbtide itself")]
)
def test_a_value_in_place_of_a_name_is_refused_and_not_repeated(name: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as refused:
        eb.Job(command="python train.py", secrets=[name])
    assert "hf_Ab" not in str(refused.value)


def test_an_order_has_it_sealed_for_its_machine(tmp_path: Path) -> None:
    store, run_key = FolderStore(tmp_path), b"k" * 32
    boxes = Mailboxes(store, run_key, lambda lease: f"run-{lease}", values={"HUB_TOKEN": VALUE * 9, "OTHER": "o"})
    assignment = Assignment("a-0", ("true",), 0, "", {"LR": "1"}, secrets=("HUB_TOKEN",))
    boxes.order(1, Train(assignment))
    (kept,) = boxes.items.values()
    assert VALUE not in str(kept)
    boxes.write([1])
    assert files_with(tmp_path, VALUE) == []
    found = with_seal(assignment, run_key)
    assert opened(found, key_of(run_key, "run-1")).environment == {"LR": "1", "HUB_TOKEN": VALUE}
    assert opened(assignment, run_key) is assignment
    with pytest.raises(ValueError):
        opened(found, key_of(run_key, "run-2"))


def with_seal(assignment: Assignment, run_key: bytes) -> Assignment:
    sealed = with_secrets(assignment, {"HUB_TOKEN": VALUE}, key_of(run_key, "run-1"))
    again = with_secrets(assignment, {"HUB_TOKEN": VALUE}, key_of(run_key, "run-1"))
    assert sealed.sealed != again.sealed
    # As it comes out of a message.
    assert Assignment.decode(sealed.encode()) == sealed
    return sealed


def test_nobody_else_may_read_a_run(tmp_path: Path, runs: Path) -> None:
    before = os.umask(0o022)
    try:
        (tmp_path / "train.py").write_text("")
        work = sweep_of(eb.Job(command=[sys.executable, "train.py", "--token", VALUE]))
        begun = begin(work, tmp_path, "reactive", "local", {"prices": flapping(), "start": START_S, "runs": runs})
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(begun.folder).stat().st_mode) == 0o700
    holds = files_with(Path(begun.folder), VALUE)
    assert holds
    assert {stat.S_IMODE(path.stat().st_mode) for path in holds} == {0o600}
