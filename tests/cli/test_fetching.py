"""`ebbtide fetch`: what is damaged of one job keeps nobody from the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from ebbtide.agent.results import TaskResult, TaskResults
from ebbtide.cli.main import main
from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.jobs.job_files import read_runnable
from ebbtide.storage.objects import FolderStore


def test_an_array_with_a_damaged_result_does_not_keep_back_those_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = [{"name": name, "tasks": 1, "command": "python part.py {task}"} for name in ("a", "b")]
    (tmp_path / "part.py").write_text("")
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump({"name": "two", "jobs": listed}))
    work = read_runnable(tmp_path / "jobs.yaml", to_run=True).model_dump(mode="json")
    store = FolderStore(tmp_path / "store")
    folder = RunFolder(tmp_path / "runs" / "two")
    folder.begin(LiveSettings("two", "local", "reactive", work, ".", str(tmp_path / "store"), {}, 7))
    for number in range(2):
        written = tmp_path / str(number)
        written.mkdir()
        (written / "out.txt").write_text(str(number))
        results = TaskResults(store, f"two-{number:03d}")
        results.keep(TaskResult(0, "0", "m", 1, 1.0, "printed"), written)
    store.delete(next(store.keys("results/two-000/files/0/")))
    into = tmp_path / "got"
    with pytest.raises(SystemExit) as ended:
        main(["fetch", "two", "--into", str(into), "--runs", str(tmp_path / "runs")])
    assert ended.value.code == os.EX_IOERR
    out, errors = capsys.readouterr()
    assert "the files of task 0 are not in storage any more" in errors
    assert "1 results in" in out
    assert (into / "two-001" / "0" / "out.txt").read_text() == "1"
