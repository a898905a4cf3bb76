"""A night is killed while DVC runs: what it left is ended, and its half-written lock files are mended."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from flows.dvc_process import DvcProcess
from tests.waiting import eventually

from ebbtide.errors import InputError

pytestmark = pytest.mark.usefixtures("processes")

STAGES = """stages:
  first:
    cmd: echo once >> runs.txt && cp given.txt first.txt
    deps: [given.txt]
    outs: [first.txt]
  second:
    cmd: echo once >> runs.txt && cp first.txt second.txt
    deps: [first.txt]
    outs: [second.txt]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet", "--no-scm"], check=True)
    (tmp_path / "dvc.yaml").write_text(STAGES)
    (tmp_path / "given.txt").write_text("1")
    (tmp_path / "state").mkdir()
    return tmp_path


def killed(project: Path) -> DvcProcess:
    """What the next night has, if DVC was killed as soon as it had started."""
    (project / "state" / "dvc-process").write_text("0" * 32)
    return DvcProcess(project / "state")


@pytest.mark.long
@pytest.mark.parametrize("left", ["", '{"read": {}, "wri'])
def test_a_torn_file_of_who_reads_and_writes_does_not_end_the_next_night(project: Path, left: str) -> None:
    torn = project / ".dvc" / "tmp" / "rwlock"
    torn.parent.mkdir(exist_ok=True)
    torn.write_text(left)
    with pytest.raises(InputError, match="corrupted"):
        DvcProcess(project / "state").run("repro")
    night = killed(project)
    night.end_leftovers()
    night.run("repro")
    assert night.stages_run() == ("first", "second")


@pytest.mark.long
def test_a_torn_lock_file_is_the_one_before_it_and_nothing_is_run_twice(project: Path) -> None:
    night = DvcProcess(project / "state")
    night.run("repro")
    night.run("status")
    lock = project / "dvc.lock"
    whole = lock.read_text()
    for kept in (0, 1, len(whole) // 3, whole.index("  second:"), len(whole) - 40):
        lock.write_text(whole[:kept])
        killed(project).end_leftovers()
        assert lock.read_text() == whole
    night.run("repro")
    assert (project / "runs.txt").read_text() == "once\n" * 2


def test_a_torn_lock_file_that_was_the_first_is_removed(project: Path) -> None:
    (project / "dvc.lock").write_text("schema: '2.0'\nstages:\n  first:\n    cmd: [")
    night = killed(project)
    night.end_leftovers()
    night.run("repro")
    assert night.stages_run() == ("first", "second")


def test_lock_files_are_left_as_they_are_where_no_night_was_killed(project: Path) -> None:
    (project / "dvc.lock").write_text("torn: [")
    DvcProcess(project / "state").end_leftovers()
    assert (project / "dvc.lock").read_text() == "torn: ["


def names(process: psutil.Process) -> list[str]:
    """The name of a process, if it is there still."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [process.name()]
    return []


def test_what_a_killed_night_left_running_is_ended_and_nothing_else(project: Path) -> None:
    (project / "dvc.yaml").write_text("stages:\n  waits:\n    cmd: touch began && setsid sleep 1000\n")
    program = (
        "from pathlib import Path; from flows.dvc_process import DvcProcess as D; D(Path('state')).run('repro')"
    )
    root = str(Path(__file__).parents[2])
    other = subprocess.Popen(["sleep", "1000"])
    night = subprocess.Popen([sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r}); {program}"])
    try:
        eventually((project / "began").exists)
        whole = psutil.Process(night.pid)
        eventually(lambda: any("sleep" in names(one) for one in whole.children(recursive=True)))
        left = whole.children(recursive=True)
        night.kill()
        night.wait()
        assert [one for one in left if one.is_running() and one.name() == "sleep"]
        DvcProcess(project / "state").end_leftovers()
        assert [one for one in left if one.is_running()] == []
        assert other.poll() is None
    finally:
        for process in (night, other):
            process.kill()
            process.wait()
