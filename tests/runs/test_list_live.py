"""Several jobs in one run on the local cloud: in order, through revocations and a controller that is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.runs.sweeps import PROGRAM, START_S, flapping, total
from tests.waiting import eventually

from ebbtide.clouds.settings import NewRun, RunFolder
from ebbtide.jobs.job_files import read_runnable
from ebbtide.jobs.job_list import JobList
from ebbtide.policies.for_job import policy_for
from ebbtide.policies.registry import DEFAULT
from ebbtide.runs.fetched_results import fetch_results
from ebbtide.runs.fetching import fetch_trial
from ebbtide.runs.start_local import LocalMarket, begin_local, end_local, run_local
from ebbtide.runs.status import standing_of

pytestmark = pytest.mark.usefixtures("processes")

PART = """
import os, pathlib, sys, time
time.sleep(0.2)
(pathlib.Path(os.environ["EBBTIDE_RESULT_DIR"]) / "part.txt").write_text(sys.argv[1])
"""
SUM = """
import json, os, pathlib
inputs = pathlib.Path(os.environ["EBBTIDE_INPUTS"])
state = json.loads((inputs / "train" / "checkpoint" / "state.json").read_text())
parts = sorted(path.read_text() for path in inputs.glob("parts/results/*/part.txt"))
pathlib.Path("sum.json").write_text(json.dumps([state, parts]))
print("sum", state, parts, flush=True)
"""
FAILS = "raise SystemExit('no such data')"
CONTROLLER = """
import sys
import time
from pathlib import Path
from ebbtide.jobs.job_list import runnable
from ebbtide.runs.start_local import run_local
from ebbtide.clouds.settings import RunFolder
from ebbtide.policies.for_job import policy_for
folder = RunFolder(Path(sys.argv[1]))
run_local(folder, policy_for(runnable(folder.settings.sweep), "default"))
"""


def jobs(folder: Path, *more: dict[str, object]) -> JobList:
    """Two parts, a training that needs them, and a sum that needs all; further jobs beside them."""
    rates = {"steps_per_hour": {"c3.xlarge": 1_400}}
    for name, text in (("part.py", PART), ("program.py", PROGRAM), ("sum.py", SUM), ("fails.py", FAILS)):
        (folder / name).write_text(text)
    content = [
        {"name": "parts", "tasks": 2, "command": f"{sys.executable} part.py {{task}}"},
        {
            "name": "train",
            "needs": "parts",
            "command": f"{sys.executable} program.py {{checkpoint_dir}} {{max_steps}} 0.1",
            "steps": 200,
            "checkpoint": {"save_s": 5, "restore_s": 20},
            **rates,
        },
        {"name": "sum", "needs": ["parts", "train"], "command": f"{sys.executable} sum.py", "policy": "reactive"},
        *more,
    ]
    path = folder / "jobs.yaml"
    path.write_text(yaml.safe_dump({"name": "in order", "jobs": content}))
    found = read_runnable(path, to_run=True)
    assert isinstance(found, JobList)
    return found


def begun(tmp_path: Path, work: JobList) -> RunFolder:
    market = LocalMarket(flapping(0.25), START_S, 120.0)
    return begin_local(work, tmp_path, NewRun(tmp_path / "runs"), market, policy=DEFAULT)


def test_jobs_in_order_through_revocations_and_a_killed_controller(tmp_path: Path) -> None:
    work = jobs(tmp_path)
    folder = begun(tmp_path, work)
    try:
        with subprocess.Popen([sys.executable, "-c", CONTROLLER, str(folder.path)]) as controller:
            log = folder.log_of(f"{folder.settings.run}-001")
            eventually(lambda: log.exists() and log.read_text())
            controller.send_signal(signal.SIGKILL)
        ended = run_local(folder, policy_for(work, DEFAULT))
    finally:
        end_local(folder)
    assert ended.outcome.finished
    assert ended.left_running == 0
    assert ended.outcome.cost_usd == pytest.approx(ended.billed_usd, abs=1e-12)
    run = folder.settings.run
    fetch_trial(folder, f"{run}-002", tmp_path / "got")
    state, parts = json.loads((tmp_path / "got" / f"{run}-002" / "outputs" / "sum.json").read_text())
    assert state == [200, pytest.approx(total(0.1, 200))]
    assert parts == ["0", "1"]
    assert fetch_results(folder, tmp_path / "results").done == 2
    standing = standing_of(folder, folder.catalogue)
    assert [(trial.setting, trial.state) for trial in standing.trials] == [
        ("parts", "done"),
        ("train", "done"),
        ("sum", "done"),
    ]
    assert standing.best is None
    assert standing.jobs == 3


def test_what_needs_a_failed_job_is_not_begun_and_the_rest_goes_on(tmp_path: Path) -> None:
    fails = {"name": "fails", "command": f"{sys.executable} fails.py"}
    after = {"name": "after", "needs": ["fails", "sum"], "command": f"{sys.executable} sum.py"}
    work = jobs(tmp_path, fails, after)
    folder = begun(tmp_path, work)
    try:
        ended = run_local(folder, policy_for(work, DEFAULT))
    finally:
        end_local(folder)
    standing = standing_of(folder, folder.catalogue)
    assert {trial.setting: trial.state for trial in standing.trials} == {
        "parts": "done",
        "train": "done",
        "sum": "done",
        "fails": "failed",
        "after": "not begun",
    }
    assert standing.state == "failed"
    assert "no such data" in standing.failed[0].problem
    assert ended.left_running == 0
