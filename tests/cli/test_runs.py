"""`ebbtide status --watch`, `logs -n` and `rm` on runs as their controllers left them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.test_running import command
from tests.ui.made_run import made_run

from ebbtide.cli import runs as cli_runs
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.journal.journal import Journal
from ebbtide.controller.run_state import State, phase_of


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return made_run(tmp_path / "runs", 3, stops_after_h=0.6)


def end(folder: RunFolder, state: State = State.FINISHED) -> None:
    journal = Journal(folder.journal)
    phase = phase_of(journal)
    assert phase is not None
    journal.keep({"phase": phase.end(state).encode()})


def test_the_last_lines_of_each_log_are_printed(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    logs = folder.path / "logs"
    logs.mkdir(exist_ok=True)
    (logs / "made-000.log").write_text("a\nb\nc\n")
    (logs / "made-001.log").write_text("d\n")
    words = ("logs", "made", "--runs", folder.path.parent)
    assert command(capsys, *words)[1].splitlines() == ["[0] a", "[0] b", "[0] c", "[1] d"]
    assert command(capsys, *words, "-n", 2)[1].splitlines() == ["[0] b", "[0] c", "[1] d"]
    assert command(capsys, *words, "-n", 0)[1] == ""


def test_a_status_is_shown_again_until_nothing_runs(
    folder: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def sleep(_seconds: float) -> None:
        looks.append(len(looks))
        if len(looks) == 3:
            monkeypatch.undo()
            end(folder)

    monkeypatch.setattr(cli_runs.time, "sleep", sleep)
    monkeypatch.setattr(cli_runs, "_CHANGING", frozenset({State.GONE, State.RUNNING}))
    code, out, _ = command(capsys, "status", "made", "--watch", "--runs", folder.path.parent)
    assert (code, len(looks)) == (0, 3)
    assert "finished" in out.splitlines()[-1]
    code, out, error = command(capsys, "status", "--watch", "--json", "--runs", folder.path.parent)
    assert (code, out) == (2, "")
    assert "give one of them" in error


def test_a_run_that_has_ended_is_removed_and_no_other(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("rm", "made", "--runs", folder.path.parent)
    code, out, error = command(capsys, *words)
    assert (code, out) == (2, "")
    assert "run made has not ended (" in error
    assert "`ebbtide down made` ends it and its machines" in error
    assert folder.is_begun
    end(folder)
    assert command(capsys, *words) == (0, "made removed\n", "")
    assert [path for path in folder.path.parent.iterdir() if path.is_dir()] == []
    # What is stored elsewhere is another's, or for later.
    there = made_run(folder.path.parent, 3, name="other", stops_after_h=0.6)
    there.begin(replace(there.settings, store="s3://bucket/runs"))
    end(there)
    code, out, _ = command(capsys, "rm", "other", "--runs", folder.path.parent)
    assert (code, out) == (0, "other removed; what it stored stays in s3://bucket/runs\n")


def test_machines_that_may_still_run_keep_their_run(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    end(folder, State.DOWN)
    Journal(folder.journal).keep({"unended": {"made-m0001": "the cloud refused"}})
    code, _, error = command(capsys, "rm", "made", "--runs", folder.path.parent)
    assert code == 2
    assert "and machines may still run" in error
    assert folder.is_begun
